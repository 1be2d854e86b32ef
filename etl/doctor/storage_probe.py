"""Tries out a place, in a process of its own: ``python -m etl.doctor.storage_probe URI NAME``.

Below URI, or its nearest parent that is there, it makes the folder NAME, does in it what publishing stands on, and
removes it. It prints a line of JSON per step. With ``--remove`` it only removes the folder, for one that was killed.
"""

import argparse
import json
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyarrow import fs

from etl.errors import EnvironmentFailure, end_process, run_reporting
from etl.storage.place import Place, open_place

CONTENT = bytes(range(256)) * 256


def main() -> int:
    """Returns the exit status: 3, with one line, where a step fails."""
    parser = argparse.ArgumentParser(prog="python -m etl.doctor.storage_probe", description="Try out a place.")
    parser.add_argument("uri")
    parser.add_argument("name")
    parser.add_argument("--remove", action="store_true", help="only remove what a killed one left")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a JVM that crashes leaves nothing behind
    place = open_place(options.uri)
    if options.remove:
        (nearest_folder(place) / options.name).delete()
        return 0
    with step("look"):
        base = nearest_folder(place)
    free = shutil.disk_usage(base.path).free if place.filesystem.scheme == "file" else None
    _print(base=base.path, exists=base == place, free_bytes=free)
    try_out(base / options.name)
    return 0


def nearest_folder(place: Place) -> Place:
    """The folder itself, or its nearest parent that is there. Raises EnvironmentFailure where that is a file."""
    while (kind := place.info().type) == fs.FileType.NotFound and place.path != "/":
        place = place.parent
    if kind == fs.FileType.File:
        raise EnvironmentFailure(f"{place} is a file; give a folder")
    return place


def try_out(folder: Place) -> None:
    """Make ``folder``, keep every promise of `etl.storage.filesystem` once, and remove it, whatever happens."""
    try:
        with step("make a folder"):
            folder.make_folder()
        first, second = folder / "first", folder / "second"
        with step("write a file"):
            _write(first)
        with step("read it back"):
            if first.read_bytes() != CONTENT:
                raise EnvironmentFailure(f"{first} holds other bytes than were written; the storage is damaged")
        with step("refuse a taken name"):
            _write(second)
            _require_refusal(second, first)
        with step("rename"):
            second.filesystem.rename_new(second.path, (folder / "third").path)
            if second.exists() or (folder / "third").read_bytes() != CONTENT:
                raise EnvironmentFailure(f"{second} was renamed, and its new name does not hold its bytes")
    except BaseException:
        with suppress(Exception):  # the first failure is the one to tell
            folder.delete()
        raise
    with step("delete"):
        folder.delete()


def _write(place: Place) -> None:
    with place.filesystem.open_new(place.path) as stream:
        stream.write(CONTENT)
    place.filesystem.sync(place.path)


def _require_refusal(source: Place, taken: Place) -> None:
    try:
        source.filesystem.rename_new(source.path, taken.path)
    except FileExistsError:
        return
    raise EnvironmentFailure(
        f"{taken} was overwritten by a rename that must refuse a taken name; results are not safe on this filesystem"
    )


@contextmanager
def step(name: str) -> Iterator[None]:
    """A step: announced before, so that a crash can be told by it, and timed after."""
    _print(step=name)
    began = time.monotonic()
    yield
    _print(done=name, ms=round((time.monotonic() - began) * 1000, 1))


def _print(**told: object) -> None:
    print(json.dumps(told, allow_nan=False), flush=True)


if __name__ == "__main__":
    end_process(run_reporting(main))
