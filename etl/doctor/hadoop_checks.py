"""The checks of a Hadoop client: its configuration, Java, Hadoop's program and jars, and libhdfs."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from etl.doctor.check import NOTE, WARNING, Check, Notice
from etl.doctor.child import Ended, run_python, run_within
from etl.doctor.context import Surroundings
from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import (
    SITE_FILES,
    class_path,
    configuration_folder,
    hadoop_command,
    java_home,
    libhdfs_folder,
)
from etl.storage.hdfs_settings import LIBHDFS

GROUP = "Hadoop"
JAVA_TIMEOUT_S = 20.0
JVM_TIMEOUT_S = 60.0
JAVA_VERSIONS = (8, 11, 17)

_JAVA_CAUSE = re.compile(r"^(?:Caused by: |Error: )?((?:[\w.]+(?:Exception|Error): |Unrecognized VM).*)$", re.MULTILINE)
_NEEDED_FOR = "not set up; only needed for -r hadoop and --hdfs-driver libhdfs"


def checks(around: Surroundings) -> Iterator[Check]:
    """All of this group; what stands on Java is looked at only where there is one."""
    yield Check(GROUP, "configuration", lambda: _configuration(around))
    yield (java := Check(GROUP, "Java", lambda: _java(around)))
    yield (program := Check(GROUP, "hadoop program", lambda: _program(around)))
    if not around.wants_java and not java.passed:
        return
    yield (jars := Check(GROUP, "class path", lambda: _class_path(around, [java, program])))
    around.libhdfs = Check(GROUP, "libhdfs", lambda: _libhdfs(around, [java, jars]))
    yield around.libhdfs


def _configuration(around: Surroundings) -> str:
    if around.site_problem:
        raise EnvironmentFailure(around.site_problem)
    folder = configuration_folder()
    if folder is None:
        if around.has_site:
            raise EnvironmentFailure("HADOOP_HOME has no etc/hadoop; set HADOOP_CONF_DIR to the site's configuration")
        raise Notice(f"HADOOP_CONF_DIR is {_NEEDED_FOR}, and for places without a host such as hdfs:///datasets")
    files = [name for name in SITE_FILES if (folder / name).is_file()]
    if not files:
        raise EnvironmentFailure(
            f"{folder} holds none of {', '.join(SITE_FILES)}; set HADOOP_CONF_DIR to the cluster's configuration"
        )
    told = [f"{folder} with {', '.join(files)}"]
    default = around.site.get("fs.defaultFS") or around.site.get("fs.default.name")
    told.append(f"fs.defaultFS {default}" if default else "no fs.defaultFS")
    for name in filter(None, (each.strip() for each in around.site.get("dfs.nameservices", "").split(","))):
        nodes = around.site.get(f"dfs.ha.namenodes.{name}", "")
        told.append(f"nameservice {name}" + (f" ({nodes})" if nodes else ""))
    if not default:
        raise Notice(f"{'; '.join(told)}: hdfs:/// and -r hadoop need it", WARNING)
    return "; ".join(told)


def _java(around: Surroundings) -> str:
    try:
        home = java_home()
    except EnvironmentFailure:
        if around.wants_java:
            raise
        raise Notice(_NEEDED_FOR) from None
    ended = run_within(JAVA_TIMEOUT_S, [str(home / "bin" / "java"), "-version"], os.environ)
    if ended.status:
        raise EnvironmentFailure(f"{home}/bin/java {ended.complaint}; set JAVA_HOME to a Java 8, 11 or 17")
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', ended.errors + ended.output)
    if found is None:
        raise Notice(f"{home}/bin/java does not tell its version; take a Java 8, 11 or 17", WARNING)
    told = f"{found[0].removeprefix('version ').strip(chr(34))} in {home}"
    if int(found[1]) not in JAVA_VERSIONS:
        raise Notice(f"{told}; Hadoop 3 is made for 8, 11 or 17: set JAVA_HOME to one if jobs fail", WARNING)
    return told


def _program(around: Surroundings) -> str:
    try:
        return hadoop_command()
    except EnvironmentFailure:
        if around.has_site:
            raise
        raise Notice(_NEEDED_FOR) from None


def _class_path(around: Surroundings, needs: list[Check]) -> str:
    if not os.environ.get("CLASSPATH") and any(check.failed for check in needs):
        raise Notice("not looked at, for Java and the hadoop program come first")
    try:
        entries = [entry for entry in class_path().split(os.pathsep) if entry]
    except EnvironmentFailure:
        if around.wants_java:
            raise
        raise Notice(_NEEDED_FOR) from None
    jars = [path for entry in entries for path in _jars(entry)]
    source, remedy = "hadoop classpath --glob", "look at HADOOP_HOME"
    if os.environ.get("CLASSPATH"):
        remedy = f"unset CLASSPATH, or set it to what `{source}` prints"
        source = "CLASSPATH"
    if not any(path.name.startswith(("hadoop-common", "hadoop-client")) for path in jars):
        raise EnvironmentFailure(f"{source} names no hadoop-common*.jar that is there; {remedy}")
    return f"{len(jars)} jars, by {source}"


def _jars(entry: str) -> list[Path]:
    if entry.endswith("/*"):
        return list(Path(entry[:-2]).glob("*.jar"))
    return [Path(entry)] if entry.endswith(".jar") and Path(entry).is_file() else []


def _libhdfs(around: Surroundings, needs: list[Check]) -> str:
    """Load it and start its JVM, in a process that may crash."""
    try:
        folder = libhdfs_folder()
    except EnvironmentFailure as error:
        if around.settings.driver == LIBHDFS or os.environ.get("ARROW_LIBHDFS_DIR"):
            raise
        state = WARNING if around.has_site else NOTE
        raise Notice(f"{error}; only needed for that driver", state) from None
    if not all(check.passed for check in needs):
        raise Notice(f"{folder}/libhdfs.so was not tried, for Java or its class path comes first")
    around.require_site_configuration()
    ended = run_python(JVM_TIMEOUT_S, ["-m", "etl.doctor.libhdfs_probe"])
    if ended.status or ended.timeout_s:
        raise EnvironmentFailure(f"{_complaint(ended, folder)} (or take --hdfs-driver native)")
    loaded = ended.output.strip()
    wanted = os.environ.get("ARROW_LIBHDFS_DIR")
    if wanted and loaded and os.path.realpath(loaded) != os.path.realpath(f"{wanted}/libhdfs.so"):
        # pyarrow looks there after HADOOP_HOME
        raise Notice(f"{loaded} is taken, not one in ARROW_LIBHDFS_DIR {wanted}; unset that, or HADOOP_HOME", WARNING)
    return f"{loaded or folder}: its JVM starts"


def _complaint(ended: Ended, folder: Path) -> str:
    library = folder / "libhdfs.so"
    if ended.status < 0 or ended.timeout_s:
        return (
            f"{library} {ended.complaint} when it was loaded to start a JVM; it may be damaged or made for another"
            " machine or Java: take the one of the Hadoop that you use, set ARROW_LIBHDFS_DIR, and look at JAVA_HOME"
        )
    if "NoClassDefFoundError" in ended.errors:
        return "the JVM does not find Hadoop's classes; unset CLASSPATH, or set it to `hadoop classpath --glob`'s"
    causes = [cause for cause in _JAVA_CAUSE.findall(ended.errors) if not cause.startswith("etl.")]
    return f"{ended.complaint}" + (f": {causes[0]}" if causes else "; look at JAVA_HOME and LIBHDFS_OPTS")
