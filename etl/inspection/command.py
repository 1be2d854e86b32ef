"""The command ``inspect``: what a slice or part is, what one of its examples contains, and where that came from."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.example import parse, picture_of
from etl.inspection.record_file import RecordFile, open_record_file
from etl.normalized.parts import pack_of, records_place, rows_place
from etl.raw.packs import list_place, pack_place
from etl.storage.atomic import publish_bytes, replace_bytes
from etl.storage.place import Place, open_place

FIRST_EXAMPLES = 5

Facts = dict[str, Any]


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
    """A slice or part by the marker and its rows: file, sizes, examples by class, and the first examples."""
    counts = Counter(file.rows(["label"])["label"].to_pylist())
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
        rows, facts = parquet_tables.read_with_facts(place)
    except FileNotFoundError:
        raise DataError(f"{place} is not there any more") from None
    number = pc.index(rows["key"], key).as_py()
    if number < 0:
        raise DataError(f"{place} has no row of {key}")
    row: Facts = rows.slice(number, 1).to_pylist()[0]
    if row["sha256"] != sha256:
        raise DataError(f"{place} has another image called {key}")
    return number, row, facts


def save_image(file: RecordFile, number: int, target: Place, force: bool) -> Facts:
    """Write the example's image: a JPEG or PNG as it is, raw pixels as a PNG. Returns what was written.

    Raises UsageError if ``target`` exists and ``force`` is not set, or its folder does not exist.
    """
    if target.parent.info().type.name != "Directory":
        raise UsageError(f"{target.parent}: no such folder; make it, or give another place with --save")
    if target.exists() and (not force or target.info().type.name == "Directory"):
        raise UsageError(f"{target} is there already; give another name, or --force to replace a file")
    data, kind = picture_of(parse(file.read(number)[1].data))
    write = replace_bytes if force else publish_bytes
    write(target, target.parent, data)
    return {"file": target.uri, "format": kind, "bytes": len(data)}


def _lines(facts: Mapping[Any, Any], indent: str = "") -> Iterator[str]:
    """Nested facts, one line each; what contains no dict is on the line of its name."""
    for name, value in facts.items():
        children = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(children, dict) and any(isinstance(child, dict) and child for child in children.values()):
            yield f"{indent}{name}:"
            yield from _lines(children, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
