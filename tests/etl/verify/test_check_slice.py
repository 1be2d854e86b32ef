"""A slice of three small records, and every way to damage it: each is found, and by what is meant to find it."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.formats import parquet_tables
from etl.formats.example import ImageExample, serialize
from etl.formats.records import index_bytes, read_records
from etl.slices.writer import blocks_place, facts_place, write_slice
from etl.storage.place import Place, open_place
from etl.verify import check_slice as checks
from etl.verify.check_slice import COMPARED, Rules, SliceCheck
from etl.verify.findings import INDEX, MANIFEST, SLICE, TABLE

KEYS = {"a": ("a/0", "b/1", "a/2"), "b": ("b/3", "b/4", "a/5")}


@dataclass(frozen=True)
class Written:
    """A finished slice, what is told of it, and its records one by one."""

    place: Path
    index: Path
    told: dict[str, Any]
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
    told = write_slice(folder, attempts, ("train", f"train/{name}", 3), dealt)
    path = Path(folder.path) / "train" / name
    rows = parquet_tables.read_table(facts_place(folder, told["name"]))
    blocks = parquet_tables.read_table(blocks_place(folder, told["name"]))
    return Written(path.with_suffix(".tfrecord"), path.with_suffix(".idx"), told, rows, blocks)


RULES = Rules(
    ("a", "b"), {"height": 2, "width": None, "channels": 1, "format": "RAW"}, 55
)  # the seed of the order of KEYS


def check_slice(
    folder: Place, told: dict[str, Any], rows: pa.Table | None, blocks: pa.Table | None, rules: Rules = RULES
) -> SliceCheck:
    return checks.check_slice(folder, told, rows, blocks, rules)


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return open_place(str(tmp_path))


@pytest.fixture
def slices(folder: Place) -> tuple[Written, Written]:
    return write(folder, "a"), write(folder, "b")


def found(folder: Place, written: Written, *, tables_too: bool = True) -> list[tuple[str, str]]:
    """What a check of the slice finds: what it is about, and its name; without tables, by the manifest alone."""
    rows, blocks = (written.rows, written.blocks) if tables_too else (None, None)
    check = check_slice(folder, written.told, rows, blocks)
    return [(finding.what, finding.name) for finding in check.findings]


def believing(written: Written) -> Written:
    """The twin that must fail to see: a manifest that tells of the file as it is now."""
    number = len(written.records)
    told = {"sha256": hashlib.sha256(written.data).hexdigest(), "bytes": len(written.data), "records": number}
    return Written(written.place, written.index, written.told | told, written.rows, written.blocks)


def test_a_slice_as_it_was_written_is_right(folder: Place, slices: tuple[Written, Written]) -> None:
    for written in slices:
        check = check_slice(folder, written.told, written.rows, written.blocks)
        assert (check.findings, check.sound, check.agrees) == ([], True, True)
        assert check.dealt is written.rows
        assert found(folder, written, tables_too=False) == []


@pytest.mark.integration
def test_every_flipped_bit_is_found(folder: Place, slices: tuple[Written, Written]) -> None:
    written, _ = slices
    data = written.data
    assert len(data) < 1000
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        written.place.write_bytes(damaged)
        assert found(folder, written) == [(SLICE, "train/a")], position


def test_every_shorter_file_is_found(folder: Place, slices: tuple[Written, Written]) -> None:
    written, _ = slices
    data = written.data
    for length in range(len(data)):
        written.place.write_bytes(data[:length])
        assert found(folder, written) == [(SLICE, "train/a")], length
    written.place.unlink()
    assert found(folder, written) == [(SLICE, "train/a")]


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


def test_every_lost_doubled_or_swapped_record_is_found(folder: Place, slices: tuple[Written, Written]) -> None:
    """With an index that fits, no CRC tells: SHA-256 and number of examples do, and the tables."""
    written, other = slices
    ways = list(rearrangements(written.records, other.records))
    for records in ways:
        assert records != written.records
        written.place.write_bytes(b"".join(records))
        assert [record.framed for record in read_records(io.BytesIO(written.data), "slice")] == records
        ends = [sum(map(len, records[:number])) for number in range(len(records))]
        written.index.write_bytes(index_bytes(ends, [len(record) for record in records]))
        assert (SLICE, "train/a") in found(folder, written)
        assert found(folder, written, tables_too=False) == [(SLICE, "train/a")]
        blind = believing(written)
        assert set(found(folder, blind, tables_too=False)) <= {(MANIFEST, "manifest.json")}, "but for the order"
        assert (TABLE, "examples.parquet") in found(folder, blind), "a forged manifest does not fit the tables"
    assert len(ways) == 3 + 9 + 9 + 3


def test_what_is_wrong_beside_a_right_slice_is_named(folder: Place, slices: tuple[Written, Written]) -> None:
    written, other = slices
    index = written.index.read_bytes()
    for position in range(8 * len(index)):
        damaged = bytearray(index)
        damaged[position // 8] ^= 1 << position % 8
        written.index.write_bytes(damaged)
        assert found(folder, written) == [(INDEX, "train/a")]
    written.index.unlink()
    assert found(folder, written) == [(INDEX, "train/a")]
    written.index.write_bytes(index)
    for name in COMPARED:
        values = written.rows[name].to_pylist()
        values[2] = f"{values[2]}x" if isinstance(values[2], str) else values[2] + 1
        field = written.rows.schema.field(name)
        rows = written.rows.set_column(written.rows.schema.get_field_index(name), field, pa.array(values, field.type))
        wrong = Written(written.place, written.index, written.told, rows, written.blocks)
        assert found(folder, wrong) == [(TABLE, "examples.parquet")], name
        check = check_slice(folder, wrong.told, wrong.rows, wrong.blocks)
        assert check.dealt is not None
        assert check.dealt["key"].to_pylist() == list(KEYS["a"]), "the slice itself is believed"
    short = Written(written.place, written.index, written.told, written.rows.slice(0, 2), written.blocks)
    assert found(folder, short) == [(TABLE, "examples.parquet")]
    wrong = Written(written.place, written.index, written.told, written.rows, other.blocks)
    assert found(folder, wrong) == [(TABLE, "blocks.parquet")]
    told = Written(written.place, written.index, written.told | {"records": 4}, written.rows, written.blocks)
    assert found(folder, told) == [(MANIFEST, "manifest.json")]


def test_a_damaged_slice_is_judged_by_what_it_should_hold(folder: Place, slices: tuple[Written, Written]) -> None:
    written, _ = slices
    written.place.write_bytes(written.data[:100])
    check = check_slice(folder, written.told, written.rows, written.blocks)
    assert check.dealt is written.rows
    assert check.labels == {0: 2, 1: 1}
    assert check_slice(folder, written.told, None, None).dealt is None
