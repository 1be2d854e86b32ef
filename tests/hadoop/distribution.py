"""A Hadoop home with the layout of Hadoop's own release, made of Maven's artifacts, once, in the user's cache."""

import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import java_home

VERSION = "3.4.2"
BUILDER = 1  # raise it when what is built changes by this module alone
HERE = Path(__file__).parent
SOURCES = (HERE / "pom.xml", HERE / "home" / "launcher.sh", HERE / "home" / "log4j.properties")
JARS = Path("share/hadoop/common/lib")
TOOLS = Path("share/hadoop/tools/lib")
WEBAPPS = Path("share/hadoop/hdfs/webapps")
NATIVE = Path("lib/native")
NAME_IMAGE = Path("name")  # a formatted NameNode's folder, to copy
# A Rust package that has Hadoop's own C sources of libhdfs; no Rust is compiled.
LIBHDFS_SOURCES = "https://static.crates.io/crates/hdfs-sys/hdfs-sys-0.3.1.crate"
LIBHDFS_SOURCES_SHA256 = "18138c3dacdf0e95f834369f996b21d2b6fa99e71787ef45e2ece09b37bd1dd1"
JDK = "openjdk-17-jdk-headless"
COMMAND_TIMEOUT_S = 900
FETCH_TIMEOUT_S = 60.0


def cache_folder() -> Path:
    """Where everything that is set up once is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringslice"


def hadoop_home() -> Path:
    """The Hadoop home, which is set up first if it does not exist."""
    digest = hashlib.sha256(b"\0".join([*(each.read_bytes() for each in SOURCES), str(BUILDER).encode()]))
    home = cache_folder() / f"hadoop-{VERSION}-{digest.hexdigest()[:12]}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with lock(home.with_name(f"{home.name}.lock")):
            if not home.is_dir():
                _set_up(home)
    return home


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock on ``path`` while the block runs; it ends with this process at the latest."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends: each command of a set-up has its own limit
        yield


def _set_up(home: Path) -> None:
    java = _check_tools()
    print(f"setting up Hadoop {VERSION} in {home} (once)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=f"{home.name}.", dir=home.parent) as folder:
        building = Path(folder) / "home"
        _lay_out(building)
        _copy_jars(building)
        _add_libhdfs(building / NATIVE / "libhdfs.so", java, Path(folder))
        _format(building, java)
        building.rename(home)


def _check_tools() -> Path:
    """JAVA_HOME; fails before anything is fetched where a tool is missing."""
    for command, package in (("mvn", "maven"), ("gcc", "gcc libc6-dev")):
        if shutil.which(command) is None:
            raise EnvironmentFailure(f"{command} is missing; install it first: apt-get install {package}")
    java = java_home()
    if not (java / "include" / "jni.h").is_file():
        raise EnvironmentFailure(f"{java} has no include/jni.h; install it first: apt-get install {JDK}")
    return java


def _lay_out(home: Path) -> None:
    for folder in ("bin", "etc/hadoop", JARS, TOOLS, NATIVE):
        (home / folder).mkdir(parents=True)
    launcher = home / "bin" / "hadoop"
    shutil.copy(HERE / "home" / "launcher.sh", launcher)
    launcher.chmod(0o755)
    for name in ("hdfs", "yarn", "mapred"):
        (home / "bin" / name).symlink_to(launcher.name)
    shutil.copy(HERE / "home" / "log4j.properties", home / "etc" / "hadoop")
    for site in ("core", "hdfs", "yarn", "mapred"):
        (home / "etc" / "hadoop" / f"{site}-site.xml").write_text("<configuration/>\n")
    for name in ("hdfs", "datanode"):  # HDFS' web servers ask for their folders, even to serve nothing but JSON
        (home / WEBAPPS / name / "WEB-INF").mkdir(parents=True)
        (home / WEBAPPS / name / "WEB-INF" / "web.xml").write_text("<web-app/>\n")


def _copy_jars(home: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / JARS}"]
    _run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *goal], "Check the network and Maven's settings.xml")
    for jar in (home / JARS).glob("hadoop-streaming-*.jar"):
        jar.rename(home / TOOLS / jar.name)


def _add_libhdfs(target: Path, java: Path, folder: Path) -> None:
    sources = _fetch_libhdfs_sources(folder) / "libhdfs" / "hdfs_3_3"
    includes = [sources.parent, sources, sources / "include", sources / "os", sources / "os" / "posix"]
    includes += [java / "include", java / "include" / "linux"]
    server = java / "lib" / "server"
    words = ["gcc", "-O2", "-w", "-fPIC", "-shared", "-fcommon", *(f"-I{each}" for each in includes)]
    words += [str(each) for each in sorted([*sources.glob("*.c"), *(sources / "os" / "posix").glob("*.c")])]
    words += [f"-L{server}", f"-Wl,-rpath,{server}", "-ljvm", "-lpthread", "-o", str(target)]
    _run(words, f"Check the compiler and the JDK: apt-get install gcc libc6-dev {JDK}")


def _fetch_libhdfs_sources(folder: Path) -> Path:
    """Fetch and unpack the sources below ``folder``; where they are. Raises EnvironmentFailure."""
    failed = f"set-up of Hadoop {VERSION}: {LIBHDFS_SOURCES}"
    try:
        with urllib.request.urlopen(LIBHDFS_SOURCES, timeout=FETCH_TIMEOUT_S) as answer:
            packed = answer.read()
    except OSError as error:
        raise EnvironmentFailure(f"{failed} cannot be fetched ({error}). Check the network and $https_proxy") from None
    if (found := hashlib.sha256(packed).hexdigest()) != LIBHDFS_SOURCES_SHA256:
        raise EnvironmentFailure(f"{failed} has the SHA-256 {found}, not {LIBHDFS_SOURCES_SHA256}. Check the proxy")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder)
    return folder / Path(LIBHDFS_SOURCES).stem


def _format(home: Path, java: Path) -> None:
    """Format a NameNode's folder, for clusters to copy: a JVM less to wait for at each start."""
    words = [str(home / "bin" / "hdfs"), "namenode", "-D", "fs.defaultFS=hdfs://127.0.0.1:8020"]
    words += ["-D", f"dfs.namenode.name.dir={(home / NAME_IMAGE).as_uri()}", "-format", "-nonInteractive"]
    environment = {"JAVA_HOME": str(java), "PATH": os.environ["PATH"], "HADOOP_LOG_DIR": tempfile.gettempdir()}
    _run(words, f"Check that {java} is a Java 17: apt-get install {JDK}", environment=environment)


def copy_name_image(home: Path, target: Path) -> None:
    """Make ``target`` a formatted NameNode's folder, of a cluster id of its own: no other's DataNode joins it."""
    shutil.copytree(home / NAME_IMAGE, target)
    version = target / "current" / "VERSION"
    version.write_text(re.sub(r"(?m)^clusterID=.*$", f"clusterID=CID-{os.urandom(8).hex()}", version.read_text()))


def _run(words: list[str], remedy: str, environment: dict[str, str] | None = None) -> None:
    """Run a command of the set-up. If it fails, raise its first error, and ``remedy``, in one line."""
    failed = f"set-up of Hadoop {VERSION}: {Path(words[0]).name} failed"
    try:
        finished = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailure(f"{failed} (it took more than {COMMAND_TIMEOUT_S} s). {remedy}") from None
    if finished.returncode != 0:
        text = finished.stderr + finished.stdout
        output = text.strip().splitlines() or [f"status {finished.returncode}"]
        errors = [line for line in output if "ERROR" in line or "error" in line] or output
        if full := [line for line in output if os.strerror(errno.ENOSPC) in line]:
            errors, remedy = full, "Free space on that disk, or set XDG_CACHE_HOME to a folder on another"
        raise EnvironmentFailure(f"{failed} ({errors[0].strip()}). {remedy}")
