"""Every way to lose, double or exchange a record of a slice is found, and by the check that is meant to find it."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.formats import parquet_tables
from etl.formats.example import ImageExample, serialize
from etl.formats.records import index_bytes, read_records
from etl.slices.manifest import work_table
from etl.slices.writer import write_slice
from etl.storage.place import Place, open_place
from etl.verify.findings import What
from etl.verify.join import LineResult
from etl.verify.task import check_slice

KEYS = {"a": ("a/0", "b/1", "a/2"), "b": ("b/3", "b/4", "a/5")}
SIZE = {"height": 2, "width": None, "channels": 1, "format": "RAW"}
SEED = 55  # of the order of KEYS
SLICE_A, EXAMPLES = (What.SLICE, "train/a"), (What.TABLE, "examples.parquet")


@dataclass(frozen=True)
class Written:
    """A finished slice below ``folder``, with the facts and the tables about it."""

    folder: Place
    facts: dict[str, Any]
    rows: pa.Table | None
    blocks: pa.Table | None

    def path(self, ending: str) -> Path:
        return Path(self.folder.path) / f"{self.facts['name']}.{ending}"

    def check(self) -> tuple[LineResult, pa.Table | None]:
        """What was found, and the rows of the examples."""
        result = LineResult()
        job = {"folder": self.folder.uri, "classes": ["a", "b"], "image": SIZE, "seed": SEED}
        return result, check_slice(result, job, self.facts, self.rows, self.blocks)

    def found(self) -> list[tuple[str, str]]:
        return [(finding.what, finding.name) for finding in self.check()[0].findings]

    def records(self) -> list[bytes]:
        return [record.framed for record in read_records(io.BytesIO(self.path("tfrecord").read_bytes()), "slice")]


def write(folder: Place, name: str) -> Written:
    def example(key: str) -> bytes:
        content = hashlib.sha256(key.encode()).digest()[:10]
        return serialize(ImageExample(key, "ab".index(key[0]), key[0], "RAW", 2, 5, 1, content))

    dealt = [(example(key), "pack-00000", hashlib.sha256(key.encode()).digest()) for key in KEYS[name]]
    facts = write_slice(folder, (folder / "staging").make_folder(), ("train", f"train/{name}", 3), dealt)
    rows, blocks = (parquet_tables.read_table(work_table(folder, kind, facts["name"])) for kind in ("slices", "blocks"))
    return Written(folder, facts, rows, blocks)


@pytest.fixture
def slices(tmp_path: Path) -> tuple[Written, Written]:
    folder = open_place(str(tmp_path))
    return write(folder, "a"), write(folder, "b")


def rearrangements(own: list[bytes], others: list[bytes]) -> Iterator[list[bytes]]:
    """Every way to lose, double or exchange a record; each record's CRCs stay right."""
    for one in range(3):
        yield [*own[:one], *own[one + 1 :]]
        for other in range(3):
            yield [*own[:other], own[one], *own[other:]]
            yield [*own[:one], others[other], *own[one + 1 :]]
            if one < other:
                swapped = list(own)
                swapped[one], swapped[other] = own[other], own[one]
                yield swapped


def test_every_lost_doubled_or_swapped_record_is_found(slices: tuple[Written, Written]) -> None:
    """With an index that fits, no CRC is wrong: SHA-256 and tables are."""
    written, other = slices
    assert written.found() == [], "the negative control"
    bare = replace(written, rows=None, blocks=None)
    for records in rearrangements(written.records(), other.records()):
        data = b"".join(records)
        written.path("tfrecord").write_bytes(data)
        ends = [sum(map(len, records[:number])) for number in range(len(records))]
        written.path("idx").write_bytes(index_bytes(ends, [len(record) for record in records]))
        assert SLICE_A in written.found()
        assert bare.found() == [SLICE_A]
        forged = written.facts | {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        assert set(replace(bare, facts=forged).found()) <= {(What.MANIFEST, "manifest.json")}, "but for the order"
        assert EXAMPLES in replace(written, facts=forged).found(), "a forged manifest does not fit the tables"


def test_tables_that_do_not_fit_a_right_slice_are_found(slices: tuple[Written, Written]) -> None:
    written, other = slices
    assert written.rows is not None
    labels, column = pa.array([0, 1, 1], pa.int32()), written.rows.schema.get_field_index("label")
    wrong = replace(written, rows=written.rows.set_column(column, "label", labels))
    result, examples = wrong.check()
    assert result.findings[0].line.endswith("rows of train/a: row 2: a/2: label is 1, not 0")
    assert examples is not None
    assert examples["label"].to_pylist() == [0, 1, 0], "the slice itself is believed"
    assert replace(written, rows=written.rows.slice(0, 2)).found() == [EXAMPLES]
    assert replace(written, blocks=other.blocks).found() == [(What.TABLE, "blocks.parquet")]
