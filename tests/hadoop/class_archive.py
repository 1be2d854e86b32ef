"""An archive of the classes that Hadoop's daemons and commands load, which halves what starting them costs.

The JVM makes it from lists of classes that it writes while it runs (class data sharing), and passes over one that does
not fit. So the first cluster that starts from a new Hadoop home writes such lists.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.hadoop.distribution import JARS, lock

ARCHIVE = "classes.jsa"  # home/launcher.sh looks for it
COMMANDS = (
    ("hadoop", "fs", "-ls", "/"),
    ("hadoop", "fs", "-put", "-f", "/dev/null", "/tmp/.classes"),
    ("hadoop", "fs", "-rm", "/tmp/.classes"),
    ("mapred", "job", "-list"),
)
TIMEOUT_S = 120


def is_missing(home: Path) -> bool:
    return not (home / ARCHIVE).exists()


def listing(folder: Path, name: str) -> str:
    """The JVM's option to write a list of classes to ``folder``."""
    return f"-XX:DumpLoadedClassList={folder / name}.classes"


def make(home: Path, folder: Path, java: Path, environment: Mapping[str, str]) -> None:
    """Make the archive from the lists that the daemons wrote to ``folder``, and from those of some commands.

    ``environment`` is a running cluster's. A failure costs time at later starts only, so it is left at that.
    """
    for number, (program, *words) in enumerate(COMMANDS):
        more = {"HADOOP_CLIENT_OPTS": listing(folder, f"command-{number}"), "PATH": os.environ["PATH"]}
        command = [str(home / "bin" / program), *words]
        subprocess.run(command, env={**environment, **more}, capture_output=True, timeout=TIMEOUT_S)
    names: dict[str, None] = {}
    for path in sorted(folder.glob("*.classes")):
        lines = path.read_text().split("\n")[:-1]  # the last may be half a line
        # not those of other loaders than the class path's
        names |= dict.fromkeys(line for line in lines if " source: " not in line and not line.startswith("#"))
    chosen = folder / "all"
    chosen.write_text("".join(f"{name}\n" for name in names))
    jars = ":".join(str(jar) for jar in sorted((home / JARS).glob("*.jar")))
    with lock(home.with_name(f"{home.name}.lock")), tempfile.TemporaryDirectory(dir=home) as building:
        if not is_missing(home):  # another cluster, started at the same time, was faster
            return
        archive = Path(building) / ARCHIVE
        options = [f"-XX:SharedClassListFile={chosen}", f"-XX:SharedArchiveFile={archive}"]
        command = [str(java / "bin" / "java"), "-Xshare:dump", "-XX:+UseSerialGC", *options, "-cp", jars]
        subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
        archive.touch()  # an empty one: this JVM makes none
        archive.rename(home / ARCHIVE)
