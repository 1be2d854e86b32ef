"""The stage ``ingest``: a source's images into packs under ``ROOT/raw``, byte for byte, with an image list for each.

Run again on a source that has changed, it makes the next generation of raw: packs stay as they are, new and changed
images go to new packs, and a table that the marker names lists the rows of old packs whose image is gone. Further
columns of images may come from a table that the user gives: CSV or Parquet, with a column ``key`` and any others.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.options.stage_options import DEFAULT_PACK_SIZE
from etl.raw.packs import copy_to_packs, list_in_place, publish_removed, require_same_storage
from etl.raw.source_diff import VERSIONS_FILE, Comparison, compare, has_known_versions, versions_bytes
from etl.sources.base import SOURCE_OPTIONS, Source, SourceImage, SourceOptions, fingerprint, reject_duplicates
from etl.sources.detect import open_source
from etl.sources.fields import PARQUET_NAMES, is_visible, known_columns, read_classes
from etl.sources.file_list import csv_rows
from etl.stages.layout import PACKS, RAW_FORMAT, raw_stage
from etl.stages.lease import BusyError
from etl.stages.marker import Generation, fingerprint_of
from etl.stages.run import Run, RunRecord
from etl.stages.stage import Stage
from etl.stages.summary import Summary, speed
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place, json_bytes, open_place
from etl.values import parse_bytes

Pack = Callable[[list[SourceImage], int], list[dict[str, Any]]]

SAME = Comparison.with_nothing(0)
KEY_COLUMN = "key"  # of a table of further columns


def ingest(source_place: Place, root: Place, values: Mapping[str, Any], overwrite: bool = False) -> Summary:
    """Pack the images of a source; ``values`` are those of `etl.options.stage_options.INGEST_OPTIONS`.

    Continues an unfinished run of the same source; does nothing if it is done; packs what is new if the source has
    changed since.

    Raises UsageError if there is no source, if the root lies in it or has another dataset, and for options
    that do not apply here; DataError if a file changes while it is read.
    """
    stage, record = raw_stage(root), RunRecord(source=str(source_place))
    _refuse_root_inside(source_place, root)
    _refuse_inputs_inside(stage.folder, source_place, values)
    parent = None if overwrite or not stage.marker.exists() else stage.read_generation()
    options = _source_options(values)
    recorded = parent.marker["config"]["classes"] if parent else None
    grown = _has_grown(recorded, options.classes, values["classes"], stage.folder)
    known = tuple(parent.marker["classes"]) if parent else ()
    source = open_source(source_place, replace(options, known=known))
    joined = _join(source, values["columns"])
    if in_place := bool(values["in_place"]):
        require_same_storage(source.large_files(), root.uri)
    pack_bytes: int = values["pack_size"] or parse_bytes(DEFAULT_PACK_SIZE)
    config = {"in_place": in_place, "pack_bytes": None if in_place else pack_bytes, **options.to_json()}
    identity: dict[str, Any] = {"config": config, "input": fingerprint(source.images, source.classes)}
    listing = _listing(source, identity["input"], in_place)
    versions = partial(versions_bytes, source.images, listing)
    found, looked = Comparison.with_nothing(len(source.images)), True
    if parent is not None:
        stage.refuse_another(parent.marker, {"config": config | ({"classes": recorded} if grown else {})})
        looked = grown or not has_known_versions(stage, listing, parent.fingerprint)
        found = compare(source, root, parent, stage) if looked else SAME
        found.require_most_known(values["max_removed"], stage.folder)
        if found.is_the_same and source.classes == parent.marker["classes"]:
            identity["input"] = parent.marker["input"]  # in another order the images are the same
    record.note(packed=len(found.unpacked), removed=found.missing + found.changed, reused=len(found.kept))
    before, changed = (parent.fingerprint, not found.is_the_same) if parent else (None, False)
    changes = frozenset({"input", "config"} if grown else {"input"})
    run = stage.renew(identity, before, listing, force=changed, changes=changes, overwrite=overwrite)
    if run is not None:
        with run:
            pack = list_in_place if in_place else partial(copy_to_packs, pack_bytes=pack_bytes)
            pack = partial(pack, run, source, at_once=values["packs_at_once"])
            marker = {"format": RAW_FORMAT, **identity, **_write(run, source, parent, found, pack)}
            run.commit(marker, record, {VERSIONS_FILE: versions(fingerprint_of(json_bytes(marker)))})
    elif parent is not None and looked:
        _note_versions(stage, parent.fingerprint, versions(parent.fingerprint))
    summary = _summary(stage, already_done=run is None)
    summary.facts |= joined
    return summary


def _has_grown(recorded: list[str] | None, given: Sequence[str] | None, file: str | None, folder: Place) -> bool:
    """True if the list of --classes has new names after those that are ``recorded``.

    Raises UsageError if it does not begin with these.
    """
    if recorded is None or given is None:
        return False
    for line, there in enumerate(recorded, start=1):
        asked = given[line - 1] if line <= len(given) else None
        if asked != there:
            found = "missing" if asked is None else repr(asked)
            raise UsageError(
                f"--classes {file}: line {line} is {found}, but {folder} was made with {there!r}; a list may only grow"
                " at its end; give --overwrite to replace what is there"
            )
    return len(given) > len(recorded)


def _refuse_root_inside(source: Place, root: Place) -> None:
    """Raise UsageError if ROOT is or lies below a file, or if the next run would find packs among SOURCE's images.

    Hidden folders are not part of a source.
    """
    found, missing = root, None
    while found.info().type == fs.FileType.NotFound and found.parent != found:
        found, missing = found.parent, found
    if found.exists() and found.info().type != fs.FileType.Directory:
        what = "is a file" if found == root else f"lies below the file {found}"
        raise UsageError(f"ROOT {root} {what}. Give a folder")
    if missing and missing.name in found.filesystem.links(found.path):
        raise UsageError(f"ROOT {root}: {missing} is a symbolic link to nothing. Make what it leads to, or remove it")
    if source.info().type != fs.FileType.Directory:
        return
    path = root.path_within(source)
    if path is not None and is_visible(path):
        raise UsageError(
            f"ROOT {root} lies in SOURCE {source}, where its packs would be taken for images; give a ROOT outside"
        )


def _refuse_inputs_inside(raw: Place, source: Place, values: Mapping[str, Any]) -> None:
    """Raise UsageError if SOURCE, or a table of --classes or --columns, lies in the folder that ingest writes."""
    tables = ((f"--{name}", open_place(values[name])) for name in ("classes", "columns") if values[name])
    for what, given in (("SOURCE", source), *tables):
        if given.path_within(raw) is not None:
            raise UsageError(f"{what} {given} lies in {raw}, which ingest writes; give another ROOT")


def _source_options(values: Mapping[str, Any]) -> SourceOptions:
    """The options of the source. Raises UsageError if they exclude each other."""
    if values["in_place"] and values["pack_size"]:
        raise UsageError("--pack-size: with --in-place each file of SOURCE is a pack; leave one of the two out")
    classes = read_classes(open_place(values["classes"])) if values["classes"] else None
    return SourceOptions(**{name: values[name] for name in SOURCE_OPTIONS}, classes=classes)


def _listing(source: Source, images_sha256: str, in_place: bool) -> str:
    """Fingerprint of a source: that of its images, their versions, and with ``in_place`` the URIs of its files."""
    uris = [file.place.uri for file in source.large_files()] if in_place else []
    versions = ",".join(str(image.version) for image in source.images)
    return fingerprint_of("\n".join([images_sha256, versions, *uris]).encode())


def _join(source: Source, table: str | None) -> dict[str, Any]:
    """Give the images their columns from the table at this place; returns the facts for the summary.

    Raises UsageError if it has a row for none of them.
    """
    if table is None:
        return {}
    source.images, facts = join_columns(source.images, read_columns(open_place(table)))
    if facts["images_without_row"] == len(source.images):
        raise UsageError(
            f"--columns {table}: none of its {facts['rows']} keys is that of an image, as {source.images[0].key!r} is;"
            " correct the keys, or give another table"
        )
    return {"columns": facts}


def read_columns(place: Place) -> pa.Table:
    """The table with all columns as text; a cell without a value is null.

    Raises UsageError if it has no column ``key``, no other, or a key twice; DataError if it cannot be read as text.
    """
    if place.info().type != fs.FileType.File:
        raise UsageError(f"--columns {place}: no such file; give a CSV or Parquet table with a column 'key'")
    table = _read_table(place)
    names = table.column_names
    if KEY_COLUMN not in names or len(names) < 2 or len(set(names)) < len(names):
        found = ", ".join(map(repr, names))
        raise UsageError(f"--columns {place} has the columns {found}; it needs 'key' and others, each once")
    keys = table[KEY_COLUMN].combine_chunks()
    if keys.null_count:
        raise UsageError(
            f"--columns {place} has {keys.null_count} rows without a key; give each row the key of its image"
        )
    reject_duplicates(keys.to_pylist(), lambda row: f"row {row + 1} of --columns {place}")
    return table


def _read_table(place: Place) -> pa.Table:
    if PARQUET_NAMES.search(place.name):
        table = parquet_tables.read_table(place)
        try:
            table = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
            table.validate(full=True)  # Arrow does not check that text is UTF-8 as it reads
        except pa.ArrowException as error:
            what = str(error).splitlines()[0]
            raise DataError(f"--columns {place}: a column is neither text nor numbers ({what}); leave it out") from None
        return table
    rows = [row for _, row in csv_rows(place)]
    if not rows:
        raise DataError(f"--columns {place} has no rows; give a table with the columns of the images")
    return pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in rows[0]})


def join_columns(images: Sequence[SourceImage], table: pa.Table) -> tuple[list[SourceImage], dict[str, int]]:
    """The images with the columns of their rows and their own, and how many images have no row, and rows no image.

    If both have a column, the table's cell is taken if it has a value.
    """
    rows = pc.index_in(pa.array([image.key for image in images], pa.string()), value_set=table[KEY_COLUMN])
    names = sorted(name for name in table.column_names if name != KEY_COLUMN)
    values = [pc.take(table[name].combine_chunks(), rows).to_pylist() for name in names]
    joined = []
    for image, cells in zip(images, zip(*values, strict=True), strict=True):
        columns = dict(image.columns or ()) | dict(known_columns(names, cells) or ())
        joined.append(image._replace(columns=tuple(sorted(columns.items())) or None))
    unknown = rows.null_count
    facts = {"rows": table.num_rows, "rows_without_image": table.num_rows - (len(images) - unknown)}
    return joined, facts | {"images_without_row": unknown}


def _note_versions(stage: Stage, generation: str, versions: bytes) -> None:
    """Replace what is known of the versions of a finished stage; skipped if another run works on it, which will."""
    with suppress(BusyError), stage.lease() as run:
        if stage.fingerprint() == generation:
            replace_bytes(run.folder / VERSIONS_FILE, run.staging, versions)


def _write(run: Run, source: Source, parent: Generation | None, found: Comparison, pack: Pack) -> dict[str, Any]:
    """Write the packs of what is new, and the table of removed rows; returns the marker's entries of them."""
    known = {pack["name"]: pack for pack in parent.entries} if parent and found.kept else {}
    kept = [known[name] | {"removed": len(removed)} for name, removed in found.kept.items()]
    first = parent.marker["next_pack"] if parent else 0
    images = [source.images[number] for number in found.unpacked]
    written = pack(images, first)
    removed = publish_removed(run.folder, run.staging, found.removed_rows)
    return {
        "parent": parent.fingerprint if parent else None,
        "kind": source.kind,
        "classes": source.classes,
        "pixels": source.pixels,
        "counts": count_source(source.images, source.classes, source.skipped),
        "removed": removed,
        "next_pack": first + len(written),  # a name is never used again, even if all that had it are gone
        PACKS.name: PACKS.publish(run.folder, run.staging, [*kept, *written]),
    }


def count_source(images: Sequence[SourceImage], classes: Sequence[str], skipped: int) -> dict[str, Any]:
    """What the marker counts of these images, which are all that are live, and of other files."""
    labels = Counter(image.label for image in images)
    splits = Counter(image.split for image in images)
    return {
        "images": len(images),
        "bytes": sum(image.size_bytes for image in images),
        "skipped": skipped,
        "by_class": [labels[label] for label in range(len(classes))],
        "by_split": {split: count for split, count in sorted(splits.items(), key=str) if split is not None},
    }


def _summary(stage: Stage, already_done: bool) -> Summary:
    """The facts of a finished ``raw``."""
    marker, run = stage.read_marker(), stage.read_run()
    counts = marker["counts"]
    packs = marker["packs"]["rows"]
    facts = {
        "images": counts["images"],
        "newly_packed": 0 if already_done else run.get("packed", 0),
        "removed_or_changed": run.get("removed", 0),  # also if done before: a limit for it holds at a second try
        "classes": len(marker["classes"]),
        "skipped_files": counts["skipped"],
        "source_splits": counts["by_split"],
        "packs": packs,
        "reused_packs": packs if already_done else run.get("reused", 0),
        "bytes": counts["bytes"],
        **speed(run.get("packed", 0), run.get("seconds", 0.0)),
    }
    rows = [[name, count] for name, count in zip(marker["classes"], counts["by_class"], strict=True)]
    tables = [("images by class", ["class", "images"], rows)]
    changes = ("newly_packed", "removed_or_changed") if facts["reused_packs"] and not already_done else ()
    others = (name for name in ("skipped_files", "source_splits") if facts[name])
    brief = ("images", *changes, *others, "classes", "packs", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, tables, brief)
