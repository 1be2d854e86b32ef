"""The command ``inspect``: what a slice is, what one of its examples holds, and where that came from."""

import json
from collections import Counter
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.example import parse, read_features
from etl.formats.preview import picture_of
from etl.formats.records import Record
from etl.inspection.provenance import trace
from etl.inspection.record_file import RecordFile, open_record_file
from etl.storage.atomic import publish_bytes, replace_bytes
from etl.storage.place import Place, open_place

FIRST_EXAMPLES = 5
SHOWN_VALUES = 8
SHOWN_CHARACTERS = 120
SHOWN_BYTES = 12

Told = dict[str, Any]


def inspect_slice(uri: str, index: int | None, key: str | None, save: tuple[str | None, bool], as_json: bool) -> None:
    """Print what is asked of the slice at ``uri``; ``save`` is where its image goes, and whether to replace a file.

    Raises UsageError for what is not there, DataError where the data do not hold what is said of them.
    """
    file = open_record_file(uri)
    if index is None and key is None:
        told = inspect_file(file)
        show(told, as_json)
        if wrong := [name for name, holds in told["as_written"].items() if not holds]:
            raise DataError(f"{file.place} is not as it was written ({', '.join(wrong)}); {file.remedy}")
        return
    number = file.find(key) if key is not None else index or 0
    told = inspect_example(file, number)
    target, force = save
    if target is not None:
        told["saved"] = save_image(file, number, open_place(target), force)
    show(told, as_json)


def inspect_file(file: RecordFile) -> Told:
    """What a slice or part is: its line of the marker, its classes, whether its bytes are those, its first examples."""
    classes = file.marker["classes"]
    counts = Counter(file.rows(["label"])["label"].to_pylist())
    first = file.rows(["key", "label", "offset", "size"], 0, min(FIRST_EXAMPLES, file.records)).to_pylist()
    group = {name: file.told[name] for name in ("group", "worker") if name in file.told}
    return {
        file.kind: file.name,
        "file": file.place.uri,
        **({"split": file.split} if file.split else {}),
        **group,
        "examples": file.records,
        "bytes": file.place.info().size,
        "sha256": file.told["sha256"],
        "as_written": file.holds_what_is_told(),
        "classes": {classes[label]: counts[label] for label in sorted(counts)},
        "first": [row | {"class": classes[row["label"]]} for row in first],
    }


def inspect_example(file: RecordFile, number: int) -> Told:
    """What one example holds, where it stands, and where it came from. Only its record is read, and rows of tables.

    Raises UsageError for a number out of range, DataError where record, index and tables do not agree.
    """
    record = file.read(number)
    row = file.rows(None, number, number + 1).to_pylist()[0]
    example = parse(record.data)
    if (example.key, example.label, record.crc32c) != (row["key"], row["label"], row["crc32c"]):
        raise DataError(
            f"{file.place}: example {number} is {example.key}, not the {row['key']} that"
            f" {file.rows_file.name} tells of; {file.remedy}"
        )
    told: Told = {
        file.kind: file.name,
        "file": file.place.uri,
        "index": number,
        "examples": file.records,
        "key": example.key,
        "features": {name: _feature(kind, values) for name, (kind, values) in read_features(record.data).items()},
        "position": _position(file, number, record),
    }
    if file.root is None:
        return told | {"origin": {"unknown": "these slices lie outside of their dataset"}}
    part = row["source"] if file.kind == "slice" else file.name
    return told | {"origin": trace(file.root, part, example.key, row["sha256"])}


def _feature(kind: str, values: list[Any]) -> Told:
    """A feature in short: its type, how many values, and those if they are few and short."""
    told: Told = {"type": kind, "length": len(values)}
    if kind != "bytes":
        return told | {"values": values[:SHOWN_VALUES]}
    told["bytes"] = sum(map(len, values))
    texts = [_as_text(value) for value in values[:SHOWN_VALUES]]
    if all(text is not None for text in texts):
        return told | {"values": texts}
    return told | {"begins": values[0][:SHOWN_BYTES].hex()}


def _as_text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and len(text) <= SHOWN_CHARACTERS else None


def _position(file: RecordFile, number: int, record: Record) -> Told:
    told: Told = {"offset": record.offset, "size": record.size, "crc32c": f"{record.crc32c:08x}"}
    if file.kind == "part":
        return told
    table = file.stage.folder / file.marker["tables"]["blocks"]["file"]
    blocks = parquet_tables.read_range(table, file.first_block, file.first_block + file.told["blocks"])
    block = pc.sum(pc.less_equal(blocks["first"], number)).as_py() - 1
    row = blocks.slice(block, 1).to_pylist()[0]
    told["block"] = {
        "number": block,
        "of": file.told["blocks"],
        "first": row["first"],
        "records": row["records"],
        "offset": row["offset"],
        "size": row["size"],
    }
    return told


def save_image(file: RecordFile, number: int, target: Place, force: bool) -> Told:
    """Write the example's image: a JPEG or PNG as it is, raw pixels as a PNG. Returns what was written.

    Raises UsageError where ``target`` is there and ``force`` is not set, or its folder is missing.
    """
    if not target.parent.exists():
        raise UsageError(f"{target.parent}: no such folder; make it, or give another place with --save")
    if target.exists() and (not force or target.info().type.name == "Directory"):
        raise UsageError(f"{target} is there already; give another name, or --force to replace a file")
    data, kind = picture_of(parse(file.read(number).data))
    if force:
        replace_bytes(target, target.parent, data)
    else:
        publish_bytes(target, target.parent, data)
    return {"file": target.uri, "format": kind, "bytes": len(data)}


def show(told: Told, as_json: bool) -> None:
    """Print what was found to standard output: as tables, or as JSON."""
    if as_json:
        print(json.dumps(told, ensure_ascii=False, allow_nan=False), flush=True)
        return
    console = Console(width=None if Console().is_terminal else 120)
    aside = ("features", "position", "saved", "origin", "first")
    console.print(_table("inspect", {name: value for name, value in told.items() if name not in aside}))
    if "features" in told:
        console.print(_features(told["features"]))
    for name in ("position", "saved"):
        if name in told:
            console.print(_table(name, told[name]))
    if "origin" in told:
        for name, value in told["origin"].items():
            console.print(_table(f"came from: {name}", value if isinstance(value, dict) else {name: value}))
    if told.get("first"):
        console.print(_rows("first examples", told["first"]))


def _table(title: str, facts: Told) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " ")), Text(_text(value)))
    return table


def _rows(title: str, rows: list[Told]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("index", justify="right")
    for name in ("key", "class", "offset", "size"):
        table.add_column(name, overflow="fold", justify="left" if name in ("key", "class") else "right")
    for number, row in enumerate(rows):
        table.add_row(str(number), *(Text(_text(row[name])) for name in ("key", "class", "offset", "size")))
    return table


def _features(features: dict[str, Told]) -> Table:
    table = Table(title="features", title_justify="left")
    for name in ("name", "type", "length", "value"):
        table.add_column(name, overflow="fold", justify="right" if name == "length" else "left")
    for name, told in features.items():
        value = f"{told['bytes']:,} bytes, beginning {told['begins']}" if "begins" in told else _text(told["values"])
        table.add_row(Text(name.replace("_", " ")), told["type"], str(told["length"]), Text(value))
    return table


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
