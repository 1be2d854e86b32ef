"""Edits of a dataset's JSON and Parquet files that no hash reveals.

One value is changed, then every SHA-256 and checksum that covers it, up to the manifests.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from etl.formats import parquet_tables
from etl.storage.place import json_bytes, with_checksum

NAMED_BY_NOTHING = ("verified/", "run.json")  # nothing has the SHA-256 of these

Steps = tuple[str | int, ...]  # from a file's root to a value: names and positions; of a table column and row
REMOVED = object()


@dataclass(frozen=True)
class Edit:
    """One value of one file, before and after; in ``field``, a path or a column, N stands for any position."""

    file: str
    field: str
    before: Any
    after: Any


def fields(root: Path) -> dict[tuple[str, str], list[tuple[str, Steps]]]:
    """The places (file, steps) of the values of every field, by kind of file and path of the field."""
    found: dict[tuple[str, str], list[tuple[str, Steps]]] = {}
    for path in _files(root):
        file = str(path.relative_to(root))
        kind = re.sub(r"pack-\d+|night-\d|[0-9a-f]{16,}", "*", file)
        for steps in _leaves(_read(path)):
            if path.suffix == ".json" or len(steps) > 1:  # not a column without rows
                found.setdefault((kind, _field(file, steps)), []).append((file, steps))
    return found


def edit_value(root: Path, file: str, steps: Steps, random: Random) -> Edit | None:
    """Change this value at random; None if the column of a table cannot have the changed value."""
    path = root / file
    before, is_json = _read(path), path.suffix == ".json"
    for step in steps:
        before = before[step]
    after = REMOVED if is_json and isinstance(steps[-1], str) and random.random() < 0.05 else changed(before, random)
    try:
        data = _with_value(path, steps, after)
    except (pa.ArrowException, OverflowError, TypeError):
        if is_json:
            raise
        return None
    if data is None:
        return None
    publish(root, path, data)
    return Edit(file, _field(file, steps), before, after)


def set_value(root: Path, file: str, field: str, value: Any) -> None:
    """Set a field of a JSON file (``config.seed``, ``classes.0``) or a cell of a table (``split.0``)."""
    steps = tuple(int(step) if step.isdigit() else step for step in field.split("."))
    data = _with_value(root / file, steps, value)
    assert data is not None, value
    publish(root, root / file, data)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".json", ".parquet"))


def _field(file: str, steps: Steps) -> str:
    named = (steps[0], *steps[2:]) if file.endswith(".parquet") else steps  # without the row
    return ".".join("N" if isinstance(step, int) else step for step in named)


def _read(path: Path) -> Any:
    """The content of a file; of a table the list of values of each column."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return pq.read_table(path).to_pydict(maps_as_pydicts="strict")


def _leaves(value: Any, above: Steps = ()) -> Iterator[Steps]:
    """All values without values in them; except for the checksum, which is always made to fit."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if above and not value and isinstance(value, dict | list):
        yield above
    for step, each in items:
        if isinstance(each, dict | list):
            yield from _leaves(each, (*above, step))
        elif step != "checksum":
            yield (*above, step)


def _with_value(path: Path, steps: Steps, value: Any) -> bytes | None:
    """The file with another value there; None if it has that already."""
    content = holder = _read(path)
    for step in steps[:-1]:
        holder = holder[step]
    if value is REMOVED:
        del holder[steps[-1]]
    else:
        holder[steps[-1]] = value
    return _bytes_of(path, content)


def _bytes_of(path: Path, content: Any) -> bytes | None:
    """The file with this content, as `_read` gives it; None if it has that already."""
    if path.suffix == ".json":
        return _signed(content)
    table = pq.read_table(path)
    renewed = pa.Table.from_pydict(content, schema=table.schema)
    return None if renewed == table else parquet_tables.table_bytes(renewed, parquet_tables.facts_of(table) or None)


def _signed(value: dict[str, Any]) -> bytes:
    if "checksum" in value:
        value = with_checksum({name: each for name, each in value.items() if name != "checksum"})
    return json_bytes(value)


def changed(value: Any, random: Random) -> Any:
    """Another value, mostly of the same type, as an edit by hand or a defect of a program gives it."""
    if random.random() < 0.05:
        return None if value is not None else 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + random.choice([1, -1, 1 << 20])
    if isinstance(value, str):
        place = random.randrange(len(value)) if value else 0
        return value[:place] + ("1" if value[place : place + 1] == "0" else "0") + value[place + 1 :]
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1, *value[1:]])
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1], random)] if value else [1]
    return "x"


def publish(root: Path, path: Path, data: bytes) -> None:
    """Replace a file, rename it if its name is its SHA-256, and do the same with every file that has that."""
    old, new = hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    if old == new or str(path.relative_to(root)).startswith(NAMED_BY_NOTHING) or path.name in NAMED_BY_NOTHING:
        return
    for length in (64, 16):
        if path.stem == old[:length]:
            path.rename(path.with_stem(new[:length]))
    for other in _files(root):
        if other.name not in NAMED_BY_NOTHING and other.exists() and (renewed := _with_hash(other, old, new)):
            publish(root, other, renewed)


def _with_hash(path: Path, old: str, new: str) -> bytes | None:
    """The file with the SHA-256 ``new`` in place of ``old``; None if it does not have that."""
    if path.suffix == ".json":
        text = path.read_text()
        return _signed(json.loads(_renamed(text, old, new))) if old in text else None
    if path.parent.name == "tables":
        return _bytes_of(path, _replaced(_read(path), bytes.fromhex(old), bytes.fromhex(new)))
    if old.encode() not in path.read_bytes():  # facts are text in the footer
        return None
    table = pq.read_table(path)
    facts = json.dumps(parquet_tables.facts_of(table))
    return parquet_tables.table_bytes(table, json.loads(_renamed(facts, old, new))) if old in facts else None


def _replaced(value: Any, old: bytes, new: bytes) -> Any:
    """The values of a table, with ``new`` for every ``old`` among them."""
    if isinstance(value, dict):
        return {name: _replaced(each, old, new) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return new if value == old else value


def _renamed(text: str, old: str, new: str) -> str:
    return text.replace(old, new).replace(f"removed/{old[:16]}{os.extsep}parquet", f"removed/{new[:16]}.parquet")
