"""Which kind of source a place is, by what it holds."""

import re
from collections.abc import Callable

from pyarrow import fs

from etl.errors import UsageError
from etl.sources.archive import ARCHIVE_NAMES, ArchiveSource
from etl.sources.base import PLAIN, Reading, Source, is_visible
from etl.sources.folder import FolderSource, walk
from etl.sources.idx import IDX_IMAGES, IdxSource
from etl.sources.listed import LIST_NAMES, ListSource
from etl.sources.parquet import PARQUET_NAMES, ParquetSource
from etl.storage import Place

OpenFiles = Callable[[Place, list[Place], Reading], Source]

_KINDS: dict[re.Pattern[str], OpenFiles] = {ARCHIVE_NAMES: ArchiveSource, PARQUET_NAMES: ParquetSource}
_BESIDE = re.compile(r"(?i)^_|\.(json|md|txt|yaml|yml|idx|crc)$")  # what describes data lies beside it


def open_source(place: Place, reading: Reading = PLAIN) -> Source:
    """The source in this folder or file, by what it holds.

    A list (CSV or JSONL) is a file; archives and Parquet files are one file, or a folder that holds nothing else.

    Raises UsageError where there is no such place or nothing in it that is a source.
    """
    info = place.info()
    if info.type == fs.FileType.NotFound:
        raise UsageError(
            f"{place}: no such folder or file; give a folder of images, archives, Parquet files, or a list"
        )
    if info.type != fs.FileType.Directory:
        return _open_file(place, reading)
    if any(IDX_IMAGES.fullmatch(child.base_name) for child in place.children()):
        return IdxSource(place, reading)
    open_files, files = _large_files(place)
    return open_files(place, files, reading) if open_files else FolderSource(place, reading)


def _open_file(place: Place, reading: Reading) -> Source:
    if LIST_NAMES.search(place.name):
        return ListSource(place, reading)
    if open_files := _kind_of(place.name):
        return open_files(place.parent, [place], reading)
    raise UsageError(
        f"{place} is a file of no kind that is known here; give a folder, a list (.csv, .jsonl), an archive"
        " (.tar, .tar.gz, .tar.zst), or a Parquet file (.parquet)"
    )


def _kind_of(name: str) -> OpenFiles | None:
    return next((source for names, source in _KINDS.items() if names.search(name)), None)


def _large_files(place: Place) -> tuple[OpenFiles | None, list[Place]]:
    """The archives or Parquet files below a folder that holds nothing else but small files that describe them.

    A Parquet file may describe an archive, too: it is named like that, as `img2dataset` has them.
    """
    found: dict[re.Pattern[str], list[Place]] = {}
    for info in walk(place, ()):
        path = info.path[len(place.path.rstrip("/")) + 1 :]
        if not is_visible(path) or _BESIDE.search(info.base_name):
            continue
        names = next((names for names in _KINDS if names.search(info.base_name)), None)
        if names is None:
            return None, []
        found.setdefault(names, []).append(Place(place.filesystem, info.path))
    if len(found) > 1 and _stems(found, ARCHIVE_NAMES) >= _stems(found, PARQUET_NAMES):
        del found[PARQUET_NAMES]
    if len(found) != 1:
        return None, []
    ((names, files),) = found.items()
    return _KINDS[names], sorted(files, key=lambda file: file.path)


def _stems(found: dict[re.Pattern[str], list[Place]], names: re.Pattern[str]) -> set[str]:
    return {names.sub("", file.path) for file in found[names]}
