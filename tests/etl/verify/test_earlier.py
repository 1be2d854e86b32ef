"""Moves that a known content explains, and groups that stay together, over the tables of several buckets."""

import hashlib
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest

from etl.formats import parquet_tables, schemas
from etl.slices.split_assignment import split_of_group
from etl.storage.place import Place, open_place
from etl.verify.earlier import confirm_moves, group_faults
from etl.verify.exactly_once import GROUPS, SUSPECTS
from etl.verify.findings import MOVED, TORN, KeyFindings


def content(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def write(place: Place, schema: pa.Schema, rows: list[dict[str, object]]) -> Place:
    nothing = dict.fromkeys(schema.names)
    data = parquet_tables.table_bytes(parquet_tables.table_of(schema, [nothing | row for row in rows]))
    Path(place.path).write_bytes(data)
    return place


def test_a_content_that_was_known_in_one_split_explains_a_move(tmp_path: Path) -> None:
    folder = open_place(str(tmp_path))
    known = [(1, "test"), (2, "test"), (2, "train"), (3, "train")]
    write(folder / "examples.parquet", schemas.EXAMPLES, [{"sha256": content(n), "split": split} for n, split in known])
    suspects = [
        write(
            folder / f"{bucket}.parquet",
            SUSPECTS,
            [{"sha256": content(n), "key": f"k{n}", "split": "test", "before": "train"} for n in own],
        )
        for bucket, own in enumerate(((1, 2), (4,), ()))
    ]
    keys = KeyFindings()
    confirm_moves(suspects, folder, keys)
    assert keys.named == {MOVED: [(f"k{n}", f"k{n} is in test, and was in train before") for n in (2, 4)]}


@pytest.mark.parametrize("splits_from", [None, "0" * 64])
def test_a_group_is_in_one_split_over_all_buckets(splits_from: str | None, tmp_path: Path) -> None:
    folder, split = open_place(str(tmp_path)), {"train": "1/2", "test": "1/2"}
    config = {"partition": "uniform", "split": split, "slices": {}, "group_by": "patient", "seed": 3}
    manifest = {"config": config | {"splits_from": splits_from}, "splits": {"train": {"records": 9}}}
    bits = {"train": 1, "test": 4}
    due = {name: bits[split_of_group(name, dict.fromkeys(split, Fraction(1, 2)), 3)] for name in "abcd"}
    rows = [{"a": due["a"], "b": 1, "d": due["d"] ^ 5}, {"a": due["a"], "b": 4, "c": due["c"]}]
    tables = [
        write(folder / f"{n}.parquet", GROUPS, [{"group": name, "splits": each} for name, each in own.items()])
        for n, own in enumerate(rows)
    ]
    keys = KeyFindings()
    group_faults(tables, manifest, keys)
    torn = [name for name, _ in keys.named[TORN]]
    assert torn == (["b", "d"] if splits_from is None else ["b"]), "where splits were kept, d may be where it was"
    assert keys.named[TORN][0][1] == "the images of patient 'b' are in train and test"
