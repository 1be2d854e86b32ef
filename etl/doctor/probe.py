"""What may crash or hang, in a process of its own: ``python -m etl.doctor.probe WHAT [URI NAME]``.

- ``libhdfs`` loads libhdfs and starts its JVM, without a connection; what Java prints goes to standard error;
- ``place`` publishes a file in a new folder NAME below URI, or below its nearest parent that exists, and deletes it;
- ``remove`` only deletes that folder, after a probe that was killed.
"""

import os
import resource
import sys
import time

from pyarrow import fs

from etl.errors import DEBUG_VARIABLE, EnvironmentFailure, end_process, run_reporting
from etl.storage.atomic import TakenError, publish_bytes
from etl.storage.hdfs_settings import HdfsSettings
from etl.storage.place import Place, open_place

CONTENT = bytes(range(256)) * 256


def main() -> int:
    """Returns the exit status: 3, with one line, if something fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    what, *words = sys.argv[1:]
    if what == "libhdfs":
        start_jvm()
        return 0
    place = open_place(words[0])
    base = nearest_folder(place)
    if what == "remove":
        (base / words[1]).delete()
    else:
        began = time.monotonic()
        try_out(base / words[1])
        where = place if base == place else f"{place} (not there yet; tried in {base.path})"
        taken_ms = (time.monotonic() - began) * 1000
        print(f"wrote, read, renamed and deleted {where} in {taken_ms:.0f} ms; a taken name was refused")
    return 0


def start_jvm() -> None:
    from etl.storage.libhdfs import start_environment  # not to be loaded by the other probes

    os.environ[DEBUG_VARIABLE] = "1"  # so that Java prints
    start_environment(HdfsSettings.from_environment().heap_bytes)
    os.environ["LIBHDFS_OPTS"] += f" -XX:ErrorFile={os.devnull}"  # a crash writes no hs_err file here
    try:
        fs.HadoopFileSystem("127.0.0.1", 1)  # makes a client that asks for nothing: no NameNode is needed
    except OSError as error:
        raise EnvironmentFailure(f"libhdfs.so: {error}") from None


def nearest_folder(place: Place) -> Place:
    """The folder itself, or its nearest parent that exists. Raises EnvironmentFailure if that is a file."""
    while (kind := place.info().type) == fs.FileType.NotFound and place.path != "/":
        place = place.parent
    if kind == fs.FileType.File:
        raise EnvironmentFailure(f"{place} is a file; give a folder")
    return place


def try_out(folder: Place) -> None:
    """Make ``folder``, publish a file in it, read it, publish another one under its name, and delete all."""
    try:
        file = folder.make_folder() / "file"
        publish_bytes(file, folder, CONTENT)
        if file.read_bytes() != CONTENT:
            raise EnvironmentFailure(f"{file} has other bytes than were written; the storage is damaged")
        try:
            publish_bytes(file, folder, CONTENT[:-1])
        except TakenError:
            return
        raise EnvironmentFailure(
            f"{file} was overwritten by a rename that must refuse a taken name; results are not safe on this filesystem"
        )
    finally:
        folder.delete()


if __name__ == "__main__":
    end_process(run_reporting(main))
