"""Detect the kind of a source by its content."""

import re
from typing import Any

from pyarrow import fs

from etl.errors import UsageError
from etl.sources.archive import ArchiveSource
from etl.sources.base import Source, SourceOptions, reject_unsupported_options
from etl.sources.fields import ARCHIVE_NAMES, DESCRIPTION_NAMES, LIST_NAMES, PARQUET_NAMES, is_visible
from etl.sources.file_list import ListSource
from etl.sources.folder import FolderSource, walk
from etl.sources.idx import IDX_ENDINGS, IDX_IMAGES, IdxSource
from etl.sources.parquet import ParquetSource
from etl.storage.place import Place

_LargeFiles = type[ArchiveSource] | type[ParquetSource]

_Found = tuple[Any, tuple[Any, ...]]  # a source, and its arguments before the options

_KINDS: dict[re.Pattern[str], _LargeFiles] = {ARCHIVE_NAMES: ArchiveSource, PARQUET_NAMES: ParquetSource}


def open_source(place: Place, options: SourceOptions | None = None) -> Source:
    """Open the source in this folder or file; its content decides its kind.

    A list (CSV or JSONL) is a file; archives and Parquet files are one file, or a folder that contains nothing else.

    Raises UsageError if there is no such place or no source in it, and for options that do not apply to its kind.
    """
    options = options or SourceOptions()
    info = place.info()
    if info.type == fs.FileType.NotFound:
        raise UsageError(
            f"{place}: no such folder or file; give a folder of images, archives, Parquet files, or a list"
        )
    source, arguments = _find_in_folder(place) if info.type == fs.FileType.Directory else _find_file(place, info)
    reject_unsupported_options(options, source, place)
    return source(*arguments, options)


def _find_in_folder(place: Place) -> _Found:
    visible = [child for child in place.children() if is_visible(child.base_name)]
    if any(child.is_file and IDX_IMAGES.fullmatch(child.base_name) for child in visible):
        others = (each.base_name for each in visible if not (each.is_file or each.base_name.endswith(IDX_ENDINGS)))
        if (folder := next(others, None)) is not None:
            raise UsageError(f"{place} has IDX files and the folder {folder!r}; move one of them elsewhere")
        return IdxSource, (place,)
    source, files = _large_files(place)
    return (source, (place, files)) if source else (FolderSource, (place,))


def _find_file(place: Place, info: fs.FileInfo) -> _Found:
    if info.type != fs.FileType.File:  # to read a pipe would wait for ever
        raise UsageError(f"{place} is neither a file nor a folder; copy what it gives to a file")
    if LIST_NAMES.search(place.name):
        return ListSource, (place,)
    if names := _kind_of(place.name):
        return _KINDS[names], (place.parent, [place])
    raise UsageError(
        f"{place} is a file of no kind that is known here; give a folder, a list (.csv, .jsonl), an archive"
        " (.tar, .tar.gz, .tar.zst), or a Parquet file (.parquet)"
    )


def _kind_of(name: str) -> re.Pattern[str] | None:
    return next((names for names in _KINDS if names.search(name)), None)


def _large_files(place: Place) -> tuple[_LargeFiles | None, list[Place]]:
    """The archives or Parquet files below a folder that contains only these and small files that describe them.

    A Parquet file may describe an archive, too: it is named like that, as `img2dataset` has them.
    """
    found: dict[re.Pattern[str], list[Place]] = {}
    for path, info in walk(place):
        if not is_visible(path) or DESCRIPTION_NAMES.search(info.base_name):
            continue
        names = _kind_of(info.base_name)
        if names is None:
            return None, []
        file = Place(place.filesystem, info.path)
        if info.type != fs.FileType.File:
            raise UsageError(f"{file} is a pipe or a device, not a file; remove it")
        found.setdefault(names, []).append(file)
    if len(found) > 1 and _stems(found, ARCHIVE_NAMES) >= _stems(found, PARQUET_NAMES):
        del found[PARQUET_NAMES]
    if len(found) != 1:
        return None, []
    ((names, files),) = found.items()
    return _KINDS[names], sorted(files, key=lambda file: file.path)


def _stems(found: dict[re.Pattern[str], list[Place]], names: re.Pattern[str]) -> set[str]:
    return {names.sub("", file.path) for file in found[names]}
