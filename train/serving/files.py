"""Exports of trained models, on any root: a SavedModel, and a JSON marker that names its files. Imports no TensorFlow.

PLACE/saved_model.pb      written last: without it, it is not a SavedModel
      variables/…         fingerprint.pb
      export.json         format, where it comes from, classes, size, files with SHA-256, checksum
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from etl.errors import DataError, UsageError
from etl.stages.champion import CHAMPION, read_champion, read_champions
from etl.stages.lease import Lease, lease_folder
from etl.storage.atomic import publish_bytes, publish_stream, replace_file, withdraw
from etl.storage.place import READ_BUFFER_BYTES, Place, has_checksum, json_bytes, open_place, with_checksum
from train.runs.folder import find_dataset

FORMAT = "ringslice.export/1"
FOLDER = "export"  # of a run
MARKER = "export.json"
MODEL = "saved_model.pb"
WORK_FOLDER = "_exporting"  # not a stage's, whose folder is never taken for an unfinished export

_OWN = {MARKER, MODEL, WORK_FOLDER, "assets", "fingerprint.pb", "variables"}
_AGAIN = "export the run again with train/export.py"


def require_free(place: Place) -> set[str]:
    """The names in ``place``, which is free, or has an export that may be replaced. Raises UsageError if not."""
    is_file = place.info().is_file
    there = set() if is_file else {info.base_name for info in place.children()}
    if is_file or there - _OWN or (there and not there & {MARKER, WORK_FOLDER}):
        raise UsageError(f"{place} already exists and is not an export; give another place with -o")
    return there


def write(made: Path, place: Place, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Put the SavedModel in the folder ``made`` and a marker of these ``facts`` into ``place``; returns the marker.

    An export that is there is removed once all of the new one is on the same storage, its `MODEL` before the rest; a
    reader at that moment finds that files are missing, or not those of the marker.

    Raises UsageError if ``place`` has something else, BusyError if another export to it is going on.
    """
    require_free(place)
    names = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    files = {name: {"sha256": open_place(str(made / name)).sha256()} for name in names}
    marker = with_checksum(json.loads(json_bytes({"format": FORMAT, **facts, "files": files})))
    with lease_folder(place / WORK_FOLDER, f"train/export.py to {place}") as lease:
        new = lease.staging / "new"
        for name in names:
            _copy(made / name, new / name, lease.staging)
        publish_bytes(new / MARKER, lease.staging, json_bytes(marker))
        _exchange(place, new, [name for name in (*names, MARKER) if name != MODEL] + [MODEL], lease)
    return marker


def _exchange(place: Place, new: Place, names: Sequence[str], lease: Lease) -> None:
    """Remove what is in ``place``, and put the files ``names`` of ``new`` there, in this order."""
    there = require_free(place)
    for name in (MODEL, MARKER):
        withdraw(place / name, lease.staging)
    for name in there - {WORK_FOLDER}:
        withdraw(place / name, lease.staging)
    for name in names:
        replace_file(new / name, place / name)


@contextmanager
def fetch_export(place: Place) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The export at ``place`` as a local copy, every byte checked, for as long as the block runs; and its marker.

    Raises UsageError if there is none, DataError if it is damaged.
    """
    marker = read_marker(place)
    with TemporaryDirectory(prefix="ringslice-export-") as folder:
        for name, recorded in marker["files"].items():
            copy = Path(folder) / name
            try:
                _fetch(place / name, copy)
            except FileNotFoundError:
                raise DataError(f"{place / name} is missing; {_AGAIN}") from None
            if open_place(str(copy)).sha256() != recorded["sha256"]:
                raise DataError(f"{place / name} is damaged: its SHA-256 is not that of {MARKER}; {_AGAIN}")
        yield Path(folder), marker


def read_marker(place: Place) -> dict[str, Any]:
    """The marker of the export at ``place``.

    Raises UsageError if there is none, DataError if it is damaged.
    """
    remedy = "make one with: train/export.py --data ROOT --run NAME"
    if not (place / MARKER).exists():
        raise UsageError(f"{place} has no export (no {MARKER}); {remedy}")
    marker = (place / MARKER).read_json()
    if marker.get("format") != FORMAT:
        raise UsageError(
            f"{place / MARKER} has format {marker.get('format')!r}, this version reads {FORMAT!r}; {remedy}"
        )
    if not has_checksum(marker) or not all(map(_is_below, marker["files"])):
        raise DataError(f"{place / MARKER} is damaged: its checksum is not that of its content; {_AGAIN}")
    return marker


def champion_export(data: Place) -> Place:
    """The export of the champion's run of ``data``, a root or a folder of roots, of which it is that of `find_dataset`.

    Raises UsageError if there is none, or it is of another checkpoint.
    """
    root = data if read_champions(data) else open_place(find_dataset(data.uri, None).root)
    champion = read_champion(root)
    place = root / "runs" / champion["run"] / FOLDER
    is_there = (place / MARKER).exists()
    if not is_there or read_marker(place)["checkpoint_sha256"] != champion["checkpoint_sha256"]:
        what = "is of another checkpoint than was promoted" if is_there else "is not there"
        raise UsageError(f"{place} {what}; make it with: train/export.py --data {root} --run {CHAMPION}")
    return place


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _fetch(place: Place, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with place.filesystem.explain_errors(place.path), place.open_stream() as stream, target.open("wb") as output:
        shutil.copyfileobj(stream, output, READ_BUFFER_BYTES)


def _copy(made: Path, place: Place, staging: Place) -> None:
    with made.open("rb") as stream, publish_stream(place, staging) as output:
        shutil.copyfileobj(stream, output, READ_BUFFER_BYTES)
