"""What a Hadoop site tells its clients: the files under HADOOP_CONF_DIR, and where its programs and libraries lie."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from etl.errors import EnvironmentFailure
from etl.hadoop.site_files import read_site_file, resolve

SITE_VARIABLES = ("HADOOP_CONF_DIR", "HADOOP_HOME")  # which say where they are
SITE_FILES = ("core-site.xml", "hdfs-site.xml", "mapred-site.xml", "yarn-site.xml")
COMMAND_TIMEOUT_S = 60


def configuration_folder() -> Path | None:
    """HADOOP_CONF_DIR, else HADOOP_HOME/etc/hadoop where that is a folder; None where the site names neither."""
    if folder := os.environ.get("HADOOP_CONF_DIR"):
        return Path(folder)
    home = os.environ.get("HADOOP_HOME")
    folder_of_home = Path(home or "/nonexistent") / "etc" / "hadoop"
    return folder_of_home if folder_of_home.is_dir() else None


def site_configuration() -> dict[str, str]:
    """The properties of the site's files by name; a later file of `SITE_FILES` wins. Empty where there are none.

    Values are as Hadoop has them, with what they include and name (`etl.hadoop.site_files`).

    Raises EnvironmentFailure where one of them is not XML, or HADOOP_CONF_DIR names no folder.
    """
    folder = configuration_folder()
    if folder is None:
        return {}
    if not folder.is_dir():
        raise EnvironmentFailure(f"HADOOP_CONF_DIR {folder} is no folder; set it to the one that holds core-site.xml")
    properties: dict[str, str] = {}
    for path in (folder / name for name in SITE_FILES):
        if path.is_file():
            properties |= read_site_file(path)
    return resolve(properties)


def hadoop_command() -> str:
    """The site's ``hadoop`` program: HADOOP_HOME's, else the one on PATH. Raises EnvironmentFailure."""
    home = os.environ.get("HADOOP_HOME")
    found = shutil.which("hadoop", path=f"{home}/bin" if home else None)
    if found is None:
        where = f"{home}/bin" if home else "PATH"
        raise EnvironmentFailure(f"no hadoop program in {where}; set HADOOP_HOME to Hadoop's folder")
    return found


def java_home() -> Path:
    """JAVA_HOME, else the home of the ``java`` on PATH. Raises EnvironmentFailure."""
    if home := os.environ.get("JAVA_HOME"):
        if not Path(home, "bin", "java").exists():
            raise EnvironmentFailure(f"JAVA_HOME {home} has no bin/java; set it to a Java 8, 11 or 17 of this machine")
        return Path(home)
    if java := shutil.which("java"):
        return Path(java).resolve().parent.parent
    raise EnvironmentFailure("no Java found; install one (apt-get install openjdk-17-jre-headless) and set JAVA_HOME")


@functools.cache
def class_path() -> str:
    """CLASSPATH, else what ``hadoop classpath --glob`` says: the jars a JVM needs to speak with HDFS.

    Raises EnvironmentFailure.
    """
    if given := os.environ.get("CLASSPATH"):
        return given
    try:
        command = hadoop_command()
        environment = os.environ | {"JAVA_HOME": str(java_home())}
        done = subprocess.run(
            [command, "classpath", "--glob"], env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except EnvironmentFailure as error:
        raise EnvironmentFailure(
            f"libhdfs needs CLASSPATH, and {error} (or export CLASSPATH yourself, or take --hdfs-driver native)"
        ) from None
    if done.returncode or not done.stdout.strip():
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentFailure(f"libhdfs needs CLASSPATH, and {command} classpath --glob failed: {reason}")
    return done.stdout.strip()


def libhdfs_folder() -> Path:
    """The folder of libhdfs.so: HADOOP_HOME/lib/native, else ARROW_LIBHDFS_DIR, as pyarrow looks for it.

    Raises EnvironmentFailure.
    """
    home = os.environ.get("HADOOP_HOME")
    folders = [
        Path(each) for each in (home and os.path.join(home, "lib/native"), os.environ.get("ARROW_LIBHDFS_DIR")) if each
    ]
    for folder in folders:
        if (folder / "libhdfs.so").exists():
            return folder
    where = " or ".join(str(folder) for folder in folders) or "ARROW_LIBHDFS_DIR or HADOOP_HOME (neither is set)"
    raise EnvironmentFailure(f"no libhdfs.so in {where}; set ARROW_LIBHDFS_DIR, or take --hdfs-driver native")


def streaming_jar() -> Path:
    """Hadoop's streaming jar, below HADOOP_MAPRED_HOME or HADOOP_HOME. Raises EnvironmentFailure."""
    homes = [Path(os.environ[name]) for name in ("HADOOP_MAPRED_HOME", "HADOOP_HOME") if os.environ.get(name)]
    homes = homes or [Path(hadoop_command()).resolve().parent.parent]
    for home in homes:
        for pattern in ("share/hadoop/tools/lib/hadoop-streaming*.jar", "**/hadoop-streaming*.jar"):
            if jars := sorted(jar for jar in home.glob(pattern) if "sources" not in jar.name):
                return jars[0]
    where = " or ".join(str(home) for home in homes)
    raise EnvironmentFailure(f"no hadoop-streaming jar below {where}; set HADOOP_HOME to Hadoop's folder")
