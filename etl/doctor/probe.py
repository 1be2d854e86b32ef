"""Use a place that may hang, in a process of its own: ``python -m etl.doctor.probe WHAT URI NAME``.

- ``try`` publishes a file in a new folder NAME below URI, or below its nearest parent that exists, and deletes it;
- ``remove`` only deletes that folder, after a probe that was killed.
"""

import resource
import shutil
import sys
import time

from pyarrow import fs

from etl.entry_point import end_process, run_reporting
from etl.errors import EnvironmentFailure
from etl.storage.atomic import TakenError, publish_bytes
from etl.storage.place import Place, open_place

CONTENT = bytes(range(256)) * 256


def main() -> int:
    """Returns the exit status: 3, with one line, if something fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    what, uri, name = sys.argv[1:]
    place = open_place(uri)
    base = nearest_folder(place)
    if what == "remove":
        (base / name).delete()
        return 0
    began = time.monotonic()
    try_out(base / name)
    where = place if base == place else f"{place} (not there yet; tried in {base.path})"
    taken_ms = (time.monotonic() - began) * 1000
    is_local = place.filesystem.scheme == "file"
    free = f"; {shutil.disk_usage(base.path).free / (1 << 30):,.1f} GiB free" if is_local else ""
    print(f"wrote, read, renamed and deleted {where} in {taken_ms:.0f} ms; a taken name was refused{free}")
    return 0


def nearest_folder(place: Place) -> Place:
    """The folder itself, or its nearest parent that exists. Raises EnvironmentFailure if that is a file."""
    while (kind := place.info().type) == fs.FileType.NotFound and place.path != "/":
        place = place.parent
    if kind == fs.FileType.File:
        raise EnvironmentFailure(f"{place} is a file; give a folder")
    return place


def try_out(folder: Place) -> None:
    """Make ``folder``, publish a file in it, read it, publish another one under its name, and delete all.

    Raises EnvironmentFailure if the bytes differ, or the file is overwritten.
    """
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
