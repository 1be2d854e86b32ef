"""Every way to damage a slice of three small records is found, and by the check that is meant to find it."""

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
from etl.slices.writer import blocks_place, facts_place, write_slice
from etl.storage.place import Place, open_place
from etl.verify.check_slice import Rules, SliceCheck, check_slice
from etl.verify.findings import INDEX, MANIFEST, SLICE, TABLE

KEYS = {"a": ("a/0", "b/1", "a/2"), "b": ("b/3", "b/4", "a/5")}


@dataclass(frozen=True)
class Written:
    """A finished slice, the facts and tables about it, and its records one by one."""

    place: Path
    index: Path
    facts: dict[str, Any]
    rows: pa.Table
    blocks: pa.Table

    @property
    def data(self) -> bytes:
        return self.place.read_bytes()

    @property
    def records(self) -> list[bytes]:
        return [record.framed for record in read_records(io.BytesIO(self.data), "slice")]


def example(key: str) -> bytes:
    content = hashlib.sha256(key.encode()).digest()[:10]
    return serialize(ImageExample(key, "ab".index(key[0]), key[0], "RAW", 2, 5, 1, content))


def write(folder: Place, name: str) -> Written:
    dealt = [(example(key), "pack-00000", hashlib.sha256(key.encode()).digest()) for key in KEYS[name]]
    attempts = (folder / "attempts").make_folder()
    facts = write_slice(folder, attempts, ("train", f"train/{name}", 3), dealt)
    path = Path(folder.path) / "train" / name
    rows = parquet_tables.read_table(facts_place(folder, facts["name"]))
    blocks = parquet_tables.read_table(blocks_place(folder, facts["name"]))
    return Written(path.with_suffix(".tfrecord"), path.with_suffix(".idx"), facts, rows, blocks)


SIZE = {"height": 2, "width": None, "channels": 1, "format": "RAW"}
RULES = Rules(("a", "b"), SIZE, 55)  # the seed of the order of KEYS
SLICE_A, INDEX_A, EXAMPLES = (SLICE, "train/a"), (INDEX, "train/a"), (TABLE, "examples.parquet")


def check(written: Written, *, with_tables: bool = True) -> SliceCheck:
    """A check of the slice; without tables, by the manifest alone."""
    rows, blocks = (written.rows, written.blocks) if with_tables else (None, None)
    return check_slice(open_place(str(written.place.parents[1])), written.facts, rows, blocks, RULES)


@pytest.fixture
def slices(tmp_path: Path) -> tuple[Written, Written]:
    folder = open_place(str(tmp_path))
    return write(folder, "a"), write(folder, "b")


def found(written: Written, *, with_tables: bool = True) -> list[tuple[str, str]]:
    return [(finding.what, finding.name) for finding in check(written, with_tables=with_tables).findings]


def believing(written: Written) -> Written:
    """The negative control: a manifest that has the hash and the size of the file as it is now."""
    number = len(written.records)
    facts = {"sha256": hashlib.sha256(written.data).hexdigest(), "bytes": len(written.data), "records": number}
    return replace(written, facts=written.facts | facts)


def flips(data: bytes) -> Iterator[bytes]:
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        yield bytes(damaged)


def test_a_slice_as_it_was_written_is_right(slices: tuple[Written, Written]) -> None:
    for written in slices:
        result = check(written)
        assert result.findings == []
        assert result.examples is written.rows
        assert found(written, with_tables=False) == []


@pytest.mark.integration
def test_every_flipped_bit_and_every_cut_is_found(slices: tuple[Written, Written]) -> None:
    written, _ = slices
    data, index = written.data, written.index.read_bytes()
    for damaged in (*flips(data), *(data[:length] for length in range(0, len(data), 7))):
        written.place.write_bytes(damaged)
        assert found(written) == [SLICE_A]
    written.place.unlink()
    assert found(written) == [SLICE_A]
    written.place.write_bytes(data)
    for damaged in flips(index):
        written.index.write_bytes(damaged)
        assert found(written) == [INDEX_A]
    written.index.unlink()
    assert found(written) == [INDEX_A]


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
    """With an index that fits, no CRC is wrong: SHA-256, number of examples and tables are."""
    written, other = slices
    for records in rearrangements(written.records, other.records):
        written.place.write_bytes(b"".join(records))
        ends = [sum(map(len, records[:number])) for number in range(len(records))]
        written.index.write_bytes(index_bytes(ends, [len(record) for record in records]))
        assert SLICE_A in found(written)
        assert found(written, with_tables=False) == [SLICE_A]
        blind = believing(written)
        assert set(found(blind, with_tables=False)) <= {(MANIFEST, "manifest.json")}, "but for the order"
        assert EXAMPLES in found(blind), "a forged manifest does not fit the tables"


def test_tables_and_a_manifest_that_do_not_fit_a_right_slice_are_found(slices: tuple[Written, Written]) -> None:
    written, other = slices
    labels = pa.array([0, 1, 1], pa.int32())
    wrong = replace(
        written, rows=written.rows.set_column(written.rows.schema.get_field_index("label"), "label", labels)
    )
    assert found(wrong) == [EXAMPLES]
    examples = check(wrong).examples
    assert examples is not None
    assert examples["label"].to_pylist() == [0, 1, 0], "the slice itself is believed"
    assert found(replace(written, rows=written.rows.slice(0, 2))) == [EXAMPLES]
    assert found(replace(written, blocks=other.blocks)) == [(TABLE, "blocks.parquet")]


def test_a_damaged_slice_is_judged_by_its_table(slices: tuple[Written, Written]) -> None:
    written, _ = slices
    written.place.write_bytes(written.data[:100])
    result = check(written)
    assert result.examples is written.rows
    assert result.facts == {**written.facts, "by_label": {"0": 2, "1": 1}}
    assert check(written, with_tables=False).examples is None
