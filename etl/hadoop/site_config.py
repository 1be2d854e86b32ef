"""The configuration of a Hadoop site as Hadoop's own clients read it, and where its programs and libraries are.

Site files may have XInclude and ``${...}`` in values.
"""

import getpass
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementInclude, ElementTree

from etl.errors import EnvironmentFailure

SITE_VARIABLES = ("HADOOP_CONF_DIR", "HADOOP_HOME")  # that name the site's folders
USER_VARIABLE = "HADOOP_USER_NAME"
SITE_FILES = ("core-site.xml", "hdfs-site.xml", "mapred-site.xml", "yarn-site.xml")
COMMAND_TIMEOUT_S = 60
MAX_SUBSTITUTIONS = 20  # in one value; Hadoop's own limit
UMASK, DEFAULT_UMASK = "fs.permissions.umask-mode", "022"  # Hadoop's own

_VARIABLE = re.compile(r"\$\{([^}$ ]+)\}")
_ENVIRONMENT = re.compile(r"env\.([^-:]+)(?:(:?-)(.*))?")


def configuration_folder() -> Path | None:
    """HADOOP_CONF_DIR, else HADOOP_HOME/etc/hadoop if that is a folder; None if the site names neither."""
    if folder := os.environ.get("HADOOP_CONF_DIR"):
        return Path(folder)
    home = os.environ.get("HADOOP_HOME")
    folder_of_home = Path(home, "etc", "hadoop") if home else None
    return folder_of_home if folder_of_home and folder_of_home.is_dir() else None


def hadoop_user() -> str:
    """The user on Hadoop without Kerberos: HADOOP_USER_NAME, else that of this process.

    Raises EnvironmentFailure if that has no name.
    """
    try:
        return os.environ.get(USER_VARIABLE) or getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that its list of users does not have
        raise EnvironmentFailure(f"user {os.getuid()} has no name on this machine; give --hdfs-user NAME") from None


def site_configuration() -> dict[str, str]:
    """The properties of the site's files by name; a later file of `SITE_FILES` wins, except over a ``final`` one. Empty
    if there are none.

    Raises EnvironmentFailure if one of them is not XML, or HADOOP_CONF_DIR is not a folder.
    """
    folder = configuration_folder()
    if folder is None:
        return {}
    if not folder.is_dir():
        raise EnvironmentFailure(f"HADOOP_CONF_DIR {folder} is not a folder; set it to the one that has core-site.xml")
    properties, final = dict[str, str](), set[str]()
    for path in (folder / name for name in SITE_FILES):
        for name, value, is_final in read_site_file(path) if path.is_file() else ():
            if name not in final:
                properties[name] = value
            if is_final:
                final.add(name)
    return substitute_variables(properties)


def site_umask(site: Mapping[str, str]) -> int:
    """The site's umask for new files and folders. Raises EnvironmentFailure if it is not octal."""
    text = site.get(UMASK, DEFAULT_UMASK)
    if not re.fullmatch(r"[0-7]{1,4}", text):
        raise EnvironmentFailure(
            f"{UMASK} {text!r} of the files under HADOOP_CONF_DIR is not an octal number; set it to one like 027"
        )
    return int(text, 8) & 0o777


def read_site_file(path: Path) -> list[tuple[str, str, bool]]:
    """Name, value and whether it is final of the properties of one site file and of those it includes (XInclude).

    Raises EnvironmentFailure for a file that is not XML, and for an include of itself or of no file.
    """
    root = _load(str(path))
    try:
        ElementInclude.include(root, _load, base_url=str(path), max_depth=None)  # type: ignore[arg-type]
    except (ElementInclude.FatalIncludeError, OSError) as error:
        raise EnvironmentFailure(f"{path} has an xi:include that cannot be read ({error}); correct it") from None
    found = (
        [each.get(key, each.findtext(key)) for key in ("name", "value", "final")] for each in root.iter("property")
    )
    return [
        (name.strip(), value.strip(), (final or "").strip() == "true")
        for name, value, final in found
        if name and value is not None
    ]


def substitute_variables(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with their ``${…}`` replaced: Java's system properties, ``env.NAME``, then other properties.

    As in Hadoop, what has no value stays, and so does a value that leads back to itself.
    """
    return {name: _substituted(value, properties) for name, value in properties.items()}


def _load(href: str, parse: str = "xml", encoding: str | None = None) -> ElementTree.Element:
    del encoding
    if parse != "xml":
        raise ElementInclude.FatalIncludeError(f"parse={parse!r} of {href}")
    path = _path_of(href)
    try:
        root = ElementTree.parse(path).getroot()  # noqa: S314 - the site's own file, as trusted as its programs
    except ElementTree.ParseError as error:
        raise EnvironmentFailure(
            f"{path} is not XML ({error}); correct it, or set HADOOP_CONF_DIR to another"
        ) from None
    _take_fallbacks(root, href)
    return root


def _path_of(href: str) -> str:
    return unquote(urlsplit(href).path) if href.startswith("file:") else href


def _take_fallbacks(root: ElementTree.Element, base: str) -> None:
    """Replace includes of a file that is missing by what their fallback has, which may be nothing."""
    for parent in list(root.iter()):
        for place, child in reversed(list(enumerate(parent))):
            fallback = child.find(ElementInclude.XINCLUDE_FALLBACK)
            wanted = _path_of(urljoin(base, child.get("href", "")))
            if child.tag == ElementInclude.XINCLUDE_INCLUDE and fallback is not None and not Path(wanted).exists():
                parent[place : place + 1] = list(fallback)


def _substituted(value: str, properties: Mapping[str, str]) -> str:
    text = value
    for _ in range(MAX_SUBSTITUTIONS):
        variable = _VARIABLE.search(text)
        if variable is None:
            return text
        replacement = _variable_value(variable[1], properties)
        if replacement is None:
            return text
        if variable[0] in replacement:  # it refers to itself
            return value
        text = text[: variable.start()] + replacement + text[variable.end() :]
    return value


def _variable_value(name: str, properties: Mapping[str, str]) -> str | None:
    if variable := _ENVIRONMENT.fullmatch(name):
        found = os.environ.get(variable[1])
        if found is None or (not found and variable[2] == ":-"):
            found = variable[3]
        if found is not None:
            return found
    system = _system_property(name)
    return properties.get(name) if system is None else system


def _system_property(name: str) -> str | None:
    """The value of the Java system properties ``user.name`` and ``user.home``."""
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:  # a container's user may have no name
        return None
    return {"user.name": user.pw_name, "user.home": user.pw_dir}.get(name)


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
    except subprocess.TimeoutExpired:
        raise EnvironmentFailure(
            f"libhdfs needs CLASSPATH, and {command} classpath --glob took more than {COMMAND_TIMEOUT_S} s; export"
            " CLASSPATH, or take --hdfs-driver native"
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
    """Hadoop's streaming jar, below HADOOP_MAPRED_HOME or HADOOP_HOME, else below the home of the ``hadoop`` on PATH.

    Raises EnvironmentFailure.
    """
    homes = [Path(os.environ[name]) for name in ("HADOOP_MAPRED_HOME", "HADOOP_HOME") if os.environ.get(name)]
    homes = homes or [Path(hadoop_command()).resolve().parent.parent]
    for home in homes:
        for pattern in ("share/hadoop/tools/lib/hadoop-streaming*.jar", "**/hadoop-streaming*.jar"):
            if jars := sorted(jar for jar in home.glob(pattern) if "sources" not in jar.name):
                return jars[0]
    where = " or ".join(str(home) for home in homes)
    raise EnvironmentFailure(f"no hadoop-streaming jar below {where}; set HADOOP_HOME to Hadoop's folder")
