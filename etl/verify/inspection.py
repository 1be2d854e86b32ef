"""The command ``inspect``: what a slice or part is, what one of its examples contains, and where that came from.

A slice or part is a file of records of a finished stage; it is found by its path.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.example import parse, picture_of
from etl.formats.records import Record
from etl.normalized.parts import pack_of, part_remedy, read_record, records_place, rows_place
from etl.raw.packs import list_place, pack_place
from etl.slices.manifest import located_slices, read_manifest, table_file
from etl.stages.layout import check_target, folders_of, normalized_stage, slices_stage_in
from etl.stages.stage import Stage
from etl.stages.summary import text_of
from etl.storage.atomic import publish_bytes, replace_bytes
from etl.storage.place import Place, open_place

ENDINGS = (".tfrecord", ".idx", ".parquet")
MAX_LEVELS = 4  # of folders between a slice and its manifest, that folder counted
FIRST_EXAMPLES = 5

Facts = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """A slice or a part: its file, what is recorded of it (``entry``), and its rows in ``rows_file``.

    ``first_row`` is the first of these rows.
    ``root`` is that of the dataset, None if slices lie outside of one; ``remedy`` is what to do if the file is damaged.
    """

    kind: str
    name: str
    place: Place
    entry: Mapping[str, Any]
    classes: Sequence[str]
    rows_file: Place
    first_row: int = 0
    root: Place | None
    remedy: str

    @property
    def records(self) -> int:
        """Return the number of records that the marker states."""
        return int(self.entry["records"])

    def rows(self, columns: list[str] | None = None, start: int = 0, stop: int | None = None) -> pa.Table:
        """The rows of records ``start`` to before ``stop``: of the table of examples, or the part's own."""
        end = self.records if stop is None else stop
        return parquet_tables.read_range(self.rows_file, self.first_row + start, self.first_row + end, columns)

    def find(self, key: str) -> int:
        """The number of the record with this key. Raises UsageError if there is none."""
        found = pc.index(self.rows(["key"])["key"], key).as_py()
        if found < 0:
            table = f"; {self.rows_file} has the slice of each key" if self.kind == "slice" else ""
            raise UsageError(f"{self.kind} {self.name} has no example with the key {key!r}{table}")
        return int(found)

    def read(self, number: int) -> tuple[dict[str, Any], Record]:
        """The row and the record of an example; nothing else of the file is read.

        Raises UsageError for a number that is out of range, DataError if the record is damaged.
        """
        if not 0 <= number < self.records:
            raise UsageError(
                f"--index {number} is out of range: {self.kind} {self.name} has {self.records} examples,"
                f" 0 to {self.records - 1}"
            )
        row: dict[str, Any] = self.rows(None, number, number + 1).to_pylist()[0]
        try:
            return row, read_record(self.place, row["offset"], row["size"])
        except DataError as error:
            raise DataError(f"{error} (example {number}); {self.remedy}") from None


def open_record_file(uri: str) -> RecordFile:
    """The slice or part at a path or URI, with or without its ending.

    Raises UsageError if no finished stage has it, DataError if one has and the file is missing.
    """
    place = open_place(uri.rstrip("/") or uri)
    name = next((place.name.removesuffix(ending) for ending in ENDINGS if place.name.endswith(ending)), place.name)
    normalized = normalized_stage(place.parent.parent.parent)
    is_part = place.parent == normalized.folder / "parts" and normalized.marker.exists()
    found = _part(normalized, name) if is_part else _slice(place, name)
    if not found.place.exists():
        raise DataError(f"{found.place} is missing; {found.remedy}")
    return found


def _part(normalized: Stage, name: str) -> RecordFile:
    rows_file = rows_place(normalized.folder, name)
    if not rows_file.exists():
        raise UsageError(f"{normalized.folder} has no part {name}")
    return RecordFile(
        kind="part",
        name=name,
        place=records_place(normalized.folder, name),
        entry=parquet_tables.read_facts(rows_file),
        classes=normalized.read_marker()["classes"],
        rows_file=rows_file,
        root=normalized.folder.parent,
        remedy=part_remedy(normalized.folder.parent),
    )


def _slice(place: Place, name: str) -> RecordFile:
    folder, levels = place.parent, MAX_LEVELS
    while not (stage := slices_stage_in(folder)).marker.exists():
        folder, name, levels = folder.parent, f"{folder.name}/{name}", levels - 1
        if not levels:
            raise UsageError(
                f"{place} is not a slice: there is no manifest.json above it;"
                " give something like ROOT/slices/default/train/train-00000-of-00008"
            )
    manifest = read_manifest(stage)
    found = next((each for each in located_slices(manifest) if each[1]["name"] == name), None)
    if found is None:
        raise UsageError(f"{stage.marker} has no slice {name}")
    root = folder.parent.parent if folder.parent.name == "slices" else None
    return RecordFile(
        kind="slice",
        name=name,
        place=folder / f"{name}.tfrecord",
        entry=found[1],
        classes=manifest["classes"],
        rows_file=folder / table_file("examples"),
        first_row=found[2],
        root=root,
        remedy=f"run: ringslice verify {root} --name {folder.name} --repair" if root else "copy the slices again",
    )


def inspect_slice(uri: str, index: int | None, key: str | None, save: tuple[str | None, bool], as_json: bool) -> None:
    """Print the facts of the slice at ``uri``, or of one of its examples.

    ``save`` is the file for the image of that example, and whether it may replace one. Raises UsageError if something
    does not exist, DataError if record, index and tables do not agree.
    """
    file = open_record_file(uri)
    if index is None and key is None:
        facts = inspect_file(file)
    else:
        number = file.find(key) if key is not None else index or 0
        facts = inspect_example(file, number)
        target, force = save
        if target is not None:
            facts["saved"] = save_image(file, number, open_place(target), force)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        print("\n".join(_lines(facts)), flush=True)


def inspect_file(file: RecordFile) -> Facts:
    """A slice or part by the marker and its rows: file, sizes, examples by class, and the first examples.

    Raises DataError if its rows have a label without a class.
    """
    counts = Counter(file.rows(["label"])["label"].to_pylist())
    if unknown := [label for label in counts if not 0 <= label < len(file.classes)]:
        classes = f"there are {len(file.classes)} classes"
        raise DataError(f"{file.rows_file} has the label {unknown[0]}, and {classes}; {file.remedy}")
    first = file.rows(["key", "label", "offset", "size"], 0, min(FIRST_EXAMPLES, file.records)).to_pylist()
    return {
        file.kind: file.name,
        "file": file.place.uri,
        **{name: file.entry[name] for name in ("group", "worker") if name in file.entry},
        "examples": file.records,
        "bytes": file.entry["bytes"],
        "sha256": file.entry["sha256"],
        "classes": {file.classes[label]: counts[label] for label in sorted(counts)},
        "first": [row | {"class": file.classes[row["label"]]} for row in first],
    }


def inspect_example(file: RecordFile, number: int) -> Facts:
    """The content, position and origin of one example; only its record and rows of tables are read.

    Raises UsageError if ``number`` is out of range, DataError if record and tables do not agree.
    """
    row, record = file.read(number)
    example = parse(record.data)
    if (example.key, example.label, record.crc32c) != (row["key"], row["label"], row["crc32c"]):
        raise DataError(
            f"{file.place}: example {number} is {example.key}, not the {row['key']} of {file.rows_file.name};"
            f" {file.remedy}"
        )
    facts: Facts = {
        file.kind: file.name,
        "file": file.place.uri,
        "index": number,
        "examples": file.records,
        **vars(example),
        "encoded": {"bytes": len(example.encoded)},
        "position": {"offset": record.offset, "size": record.size, "crc32c": f"{record.crc32c:08x}"},
    }
    if file.root is None:
        return facts | {"origin": {"unknown": "these slices lie outside of their dataset"}}
    part = row["source"] if file.kind == "slice" else file.name
    return facts | {"origin": trace(file.root, part, example.key, row["sha256"])}


def trace(root: Place, part: str, key: str, sha256: bytes) -> Facts:
    """Where the image ``key`` with this SHA-256 is: its record in the part, its row there, its bytes in the pack.

    The reason why something is missing is ``unknown``.
    """
    normalized, raw, found = root / "normalized", root / "raw", Facts()
    try:
        number, row, facts = _find_row(rows_place(normalized, part), key, sha256)
        place = records_place(normalized, part)
        found["part"] = {"file": place.uri, "record": number, "offset": row["offset"], "size": row["size"]}
        source = {name: row[f"source_{name}"] for name in ("format", "width", "height")}
        columns = dict(row["columns"] or ())
        found["image"] = {"sha256": sha256.hex(), **source, "split": row["split"], "columns": columns}
        pack, file = pack_of(facts), facts.get("file")
        _, image, facts = _find_row(list_place(raw, pack), key, sha256)
        where = (
            {"column": facts["column"], "row": image["offset"]} if "column" in facts else {"offset": image["offset"]}
        )
        found["pack"] = {"file": pack_place(raw, pack, file).uri, **where, "size": image["size"]}
    except DataError as error:
        found["unknown"] = str(error)
    return found


def _find_row(place: Place, key: str, sha256: bytes) -> tuple[int, Facts, Facts]:
    """Number and content of the row of ``key``, and the facts of its table. Raises DataError if there is none."""
    try:
        rows = parquet_tables.read_table(place)
    except FileNotFoundError:
        raise DataError(f"{place} is not there any more") from None
    if not (facts := parquet_tables.facts_of(rows)):
        raise DataError(f"{place} has no facts; it was damaged or written by something else")
    number = pc.index(rows["key"], key).as_py()
    if number < 0:
        raise DataError(f"{place} has no row of {key}")
    row: Facts = rows.slice(number, 1).to_pylist()[0]
    if row["sha256"] != sha256:
        raise DataError(f"{place} has another image called {key}")
    return number, row, facts


def save_image(file: RecordFile, number: int, target: Place, force: bool) -> Facts:
    """Write the example's image: a JPEG or PNG as it is, raw pixels as a PNG. Returns what was written.

    Raises UsageError if ``target`` exists and ``force`` is not set, or it cannot be written.
    """
    target = check_target(target, "--save", folders_of(file.root) if file.root else [file.place.parent])
    if target.exists() and not force:
        raise UsageError(f"{target} already exists; give another name, or --force to replace a file")
    data, kind = picture_of(parse(file.read(number)[1].data))
    write = replace_bytes if force else publish_bytes
    write(target, target.parent, data)
    return {"file": target.uri, "format": kind, "bytes": len(data)}


def _lines(facts: Mapping[Any, Any], indent: str = "") -> Iterator[str]:
    """Nested facts, one line each; what contains no dict is on the line of its name."""
    for name, value in facts.items():
        children = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(children, dict) and any(isinstance(child, dict) and child for child in children.values()):
            yield f"{indent}{text_of(name)}:"
            yield from _lines(children, f"{indent}  ")
        else:
            yield f"{indent}{text_of(name)}: {text_of(value)}"
