"""The command ``inspect``: what a slice or part is, what one of its examples contains, and where that came from."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.example import parse, read_features
from etl.formats.preview import picture_of
from etl.inspection.provenance import trace
from etl.inspection.record_file import RecordFile, open_record_file
from etl.storage.atomic import publish_bytes, replace_bytes
from etl.storage.place import Place, open_place

FIRST_EXAMPLES = 5
MAX_VALUES = 8
MAX_CHARACTERS = 120
MAX_HEX_BYTES = 12

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
    classes = file.marker["classes"]
    counts = Counter(file.rows(["label"])["label"].to_pylist())
    first = file.rows(["key", "label", "offset", "size"], 0, min(FIRST_EXAMPLES, file.records)).to_pylist()
    return {
        file.kind: file.name,
        "file": file.place.uri,
        **({"split": file.split} if file.split else {}),
        **{name: file.entry[name] for name in ("group", "worker") if name in file.entry},
        "examples": file.records,
        "bytes": file.entry["bytes"],
        "sha256": file.entry["sha256"],
        "classes": {classes[label]: counts[label] for label in sorted(counts)},
        "first": [row | {"class": classes[row["label"]]} for row in first],
    }


def inspect_example(file: RecordFile, number: int) -> Facts:
    """The content, position and origin of one example; only its record and rows of tables are read.

    Raises UsageError if ``number`` is out of range, DataError if record and tables do not agree.
    """
    record = file.read(number)
    row = file.rows(None, number, number + 1).to_pylist()[0]
    example = parse(record.data)
    if (example.key, example.label, record.crc32c) != (row["key"], row["label"], row["crc32c"]):
        raise DataError(
            f"{file.place}: example {number} is {example.key}, not the {row['key']} of {file.rows_file.name};"
            f" {file.remedy}"
        )
    position = {"offset": record.offset, "size": record.size, "crc32c": f"{record.crc32c:08x}"}
    facts: Facts = {
        file.kind: file.name,
        "file": file.place.uri,
        "index": number,
        "examples": file.records,
        "key": example.key,
        "features": {name: _feature(kind, values) for name, (kind, values) in read_features(record.data).items()},
        "position": position if file.kind == "part" else position | {"block": _block(file, number)},
    }
    if file.root is None:
        return facts | {"origin": {"unknown": "these slices lie outside of their dataset"}}
    part = row["source"] if file.kind == "slice" else file.name
    return facts | {"origin": trace(file.root, part, example.key, row["sha256"])}


def _feature(kind: str, values: list[Any]) -> Facts:
    """A feature in short: its type, the number of values, and those if they are few and short."""
    facts: Facts = {"type": kind, "length": len(values)}
    if kind != "bytes":
        return facts | {"values": values[:MAX_VALUES]}
    facts["bytes"] = sum(map(len, values))
    texts = [value.decode(errors="replace") for value in values[:MAX_VALUES]]
    if all(text.isprintable() and "\ufffd" not in text and len(text) <= MAX_CHARACTERS for text in texts):
        return facts | {"values": texts}
    return facts | {"begins": values[0][:MAX_HEX_BYTES].hex()}


def _block(file: RecordFile, number: int) -> Facts:
    table = file.stage.folder / file.marker["tables"]["blocks"]["file"]
    blocks = parquet_tables.read_range(table, file.first_block, file.first_block + file.entry["blocks"])
    block = pc.sum(pc.less_equal(blocks["first"], number)).as_py() - 1
    row = blocks.slice(block, 1).to_pylist()[0]
    return {"number": block, "of": len(blocks), **{name: row[name] for name in ("first", "records", "offset", "size")}}


def save_image(file: RecordFile, number: int, target: Place, force: bool) -> Facts:
    """Write the example's image: a JPEG or PNG as it is, raw pixels as a PNG. Returns what was written.

    Raises UsageError if ``target`` exists and ``force`` is not set, or its folder does not exist.
    """
    if target.parent.info().type.name != "Directory":
        raise UsageError(f"{target.parent}: no such folder; make it, or give another place with --save")
    if target.exists() and (not force or target.info().type.name == "Directory"):
        raise UsageError(f"{target} is there already; give another name, or --force to replace a file")
    data, kind = picture_of(parse(file.read(number).data))
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
