"""The lineage, the tables of what is remembered, and groups that stay together over the tables of several buckets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.formats import parquet_tables, schemas
from etl.slices.lineage import Earlier
from etl.slices.plan import Plan
from etl.storage.place import Place, open_place
from etl.verify.exactly_once import GROUPS
from etl.verify.findings import TORN, KeyFindings
from etl.verify.remembered import group_faults, lineage_faults, memory_faults

NOTHING = {"kept": 0, "moved": 0, "changed": 0, "new": 1, "disagreeing": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return open_place(str(tmp_path))


def write(place: Place, schema: Any, rows: list[dict[str, object]]) -> Place:
    Path(place.path).write_bytes(parquet_tables.table_bytes(parquet_tables.table_of(schema, rows)))
    return place


def test_a_group_is_in_one_split_over_all_buckets(folder: Place) -> None:
    buckets: list[dict[str, int]] = [{"a": 1, "b": 1, "d": 5}, {"a": 1, "b": 4, "c": 2}]
    tables = [
        write(folder / f"{n}.parquet", GROUPS, [{"group": name, "splits": bits} for name, bits in own.items()])
        for n, own in enumerate(buckets)
    ]
    keys = KeyFindings()
    group_faults(tables, "patient", keys)
    assert [name for name, _ in keys.named[TORN]] == ["b", "d"]
    assert keys.named[TORN][0][1] == "the images of patient 'b' are in train and test"


def test_a_lineage_continues_that_of_its_parent(folder: Place) -> None:
    first = {"number": 1, "ancestors": list[str]()}
    parent = Earlier(folder, {"lineage": {"number": 2, "ancestors": ["a"]}}, "b")

    def faults(lineage: Any, splits_from: str | None, earlier: Earlier | None = None) -> int:
        return len(list(lineage_faults({"lineage": lineage, "config": {"splits_from": splits_from}}, earlier)))

    third = {"number": 3, "ancestors": ["b", "a"]}
    assert (
        faults(None, None)
        == faults(None, "b")
        == faults(first, None)
        == faults(third, "b", parent)
        == faults(third, "b")
        == 0
    )
    assert faults(first, "b") == faults(third, None) == faults({**third, "number": 4}, "b") == 1
    assert faults({"number": 3, "ancestors": ["b", "x"]}, "b", parent) == 1


def test_what_is_remembered_is_what_the_plan_gives(folder: Place) -> None:
    rows: dict[str, list[dict[str, object]]] = {
        "departed": [{"key": "a", "split": "test", "removed": False}],
        "contents": [{"sha256": bytes(32), "split": "test"}],
        "groups": [{"group": "x", "split": "train"}],
    }
    kinds = {"departed": schemas.DEPARTED, "contents": schemas.CONTENTS, "groups": schemas.GROUPS}
    tables = {name: parquet_tables.table_of(kinds[name], own) for name, own in rows.items()}
    plan = cast(Plan, SimpleNamespace(known=NOTHING, left_out={"duplicates": 0}, **tables))
    for name, own in rows.items():
        write(folder / f"{name}.parquet", kinds[name], own)
    told: dict[str, Any] = {name: {"file": f"{name}.parquet", "rows": 1} for name in rows}
    manifest = {"known": NOTHING, "left_out": {"duplicates": 0}, "tables": told}
    assert list(memory_faults(folder, manifest, plan)) == []
    assert len(list(memory_faults(folder, {**manifest, "known": {**NOTHING, "new": 2}}, plan))) == 1
    assert len(list(memory_faults(folder, {**manifest, "left_out": {"duplicates": 1}}, plan))) == 1
    for name, own in rows.items():
        write(folder / f"{name}.parquet", kinds[name], [{**own[0], "split": "validation"}])
        assert len(list(memory_faults(folder, manifest, plan))) == 1
        write(folder / f"{name}.parquet", kinds[name], own)
