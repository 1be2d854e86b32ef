"""Edits of a dataset's JSON and Parquet files by a careful hand: one value, then every SHA-256 and checksum above it.

What an edit of one file changes in the files that name it is put right there, up to the manifests, so that no hash
tells that anything was edited.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from etl.formats import parquet_tables
from etl.storage.json_files import json_bytes, with_checksum

NAMED_BY_NOTHING = ("verified/", "run.json")  # nothing has the SHA-256 of these

Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class Edit:
    """One value of one file, and what it was and is: ``field`` is a path of names, numbers stand for any."""

    file: str
    field: str
    before: Any
    after: Any


def edit_at_random(root: Path, random: Random) -> Edit:
    """Edit one value of one file below ``root``, each file with the same chance, and all that names it."""
    paths = sorted(path for path in root.rglob("*") if path.suffix in (".json", ".parquet"))
    while True:
        path = random.choice(paths)
        made = _edit_json(path, random) if path.suffix == ".json" else _edit_table(path, random)
        if made is not None:
            field, before, after, data = made
            publish(root, path, data)
            return Edit(str(path.relative_to(root)), field, before, after)


def edit_json(root: Path, file: str, field: str, value: Any) -> None:
    """Give a field, such as ``config.seed`` or ``classes.0``, of a JSON file this value."""
    content = json.loads((root / file).read_text())
    *above, last = field.split(".")
    holder = content
    for step in above:
        holder = holder[int(step) if isinstance(holder, list) else step]
    before = holder[int(last) if isinstance(holder, list) else last]
    assert before != value, before
    holder[int(last) if isinstance(holder, list) else last] = value
    publish(root, root / file, _signed(content))


def edit_cell(root: Path, file: str, column: str, row: int, value: Any) -> None:
    """Give a cell of a table this value."""
    table = pq.read_table(root / file)
    values = table[column].to_pylist()
    assert values[row] != value, value
    values[row] = value
    number = table.schema.get_field_index(column)
    field = table.schema.field(number)
    publish(root, root / file, _table_bytes(table.set_column(number, field, pa.array(values, field.type))))


def _edit_json(path: Path, random: Random) -> tuple[str, Any, Any, bytes] | None:
    value = json.loads(path.read_text())
    steps = random.choice(list(_leaves(value)))
    holder = value
    for step in steps[:-1]:
        holder = holder[step]
    before = holder[steps[-1]]
    after = changed(before, random)
    if isinstance(holder, dict) and random.random() < 0.05:
        del holder[steps[-1]]
        after = "(removed)"
    else:
        holder[steps[-1]] = after
    return ".".join("N" if isinstance(step, int) else step for step in steps), before, after, _signed(value)


def _signed(value: dict[str, Any]) -> bytes:
    if "checksum" in value:
        value = with_checksum({name: each for name, each in value.items() if name != "checksum"})
    return json_bytes(value)


def _leaves(value: Any, above: Steps = ()) -> Iterator[Steps]:
    """The ways to all values that hold no others; the checksum, which is made anew, is left out."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if above and not value and isinstance(value, dict | list):
        yield above
    for step, each in items:
        if isinstance(each, dict | list):
            yield from _leaves(each, (*above, step))
        elif step != "checksum":
            yield (*above, step)


def changed(value: Any, random: Random) -> Any:
    """Another value, of the same type mostly, as an edit by hand or a fault of a program gives it."""
    if random.random() < 0.05:
        return None if value is not None else 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([value + 1, value - 1, value * 2 + 1, 0 if value else 7, value + (1 << 20)])
    if isinstance(value, float):
        return random.choice([value + 1.0, value * 1.0000001 + 1e-9, -value - 1.0])
    if isinstance(value, str):
        place = random.randrange(len(value)) if value else 0
        other = random.choice([each for each in "0123456789abcdef" if value[place : place + 1] != each])
        return value[:place] + other + value[place + 1 :]
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1 << random.randrange(8), *value[1:]])
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1], random)] if value else [1]
    return "x"


def _edit_table(path: Path, random: Random) -> tuple[str, Any, Any, bytes] | None:
    table = pq.read_table(path)
    if not table.num_rows:
        return None
    field, row = random.choice(list(table.schema)), random.randrange(table.num_rows)
    values = table[field.name].to_pylist()
    before = values[row]
    try:
        after = values[row] = changed(before, random)
        column = pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError):
        return None  # nothing that such a column holds
    if column[row].as_py() == before:
        return None
    return (
        field.name,
        before,
        after,
        _table_bytes(table.set_column(table.schema.get_field_index(field.name), field, column)),
    )


def _table_bytes(table: pa.Table) -> bytes:
    return parquet_tables.table_bytes(table, parquet_tables.facts_of(table) or None)


def publish(root: Path, path: Path, data: bytes) -> None:
    """Replace a file, rename it if its name is its SHA-256, and do the same with every file that has that."""
    old, new = hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    if old == new or str(path.relative_to(root)).startswith(NAMED_BY_NOTHING) or path.name in NAMED_BY_NOTHING:
        return
    for length in (64, 16):
        if path.stem == old[:length]:
            path.rename(path.with_stem(new[:length]))
    for other in sorted(root.rglob("*")):
        if other.suffix not in (".json", ".parquet") or other.name in NAMED_BY_NOTHING:
            continue
        if other.suffix == ".json":
            text = other.read_text()
            if old in text:
                publish(root, other, _signed(json.loads(_renamed(text, old, new))))
        elif old in (facts := json.dumps(parquet_tables.facts_of(table := pq.read_table(other)))):
            publish(root, other, parquet_tables.table_bytes(table, json.loads(_renamed(facts, old, new))))


def _renamed(text: str, old: str, new: str) -> str:
    return text.replace(old, new).replace(f"removed/{old[:16]}{os.extsep}parquet", f"removed/{new[:16]}.parquet")
