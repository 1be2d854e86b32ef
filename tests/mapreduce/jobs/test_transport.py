"""What goes in comes out, by every transport; and a record is checked when it is read from its part."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import DataError
from etl.formats.records import read_records
from etl.normalized.parts import read_rows, records_place
from etl.slices.writer import SourcedExample
from etl.storage.place import Place, open_place
from mapreduce.jobs import transport as module
from mapreduce.jobs.transport import LINES, RECORDS, REFERENCES, TRANSPORTS, Transport, read_pairs, write_pair

by_transport = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)


@pytest.fixture(scope="module")
def normalized(digits_root: Path) -> Place:
    return open_place(str(digits_root)) / "normalized"


def part_of(normalized: Place, number: int) -> tuple[str, pa.Table, list[bytes]]:
    part = f"pack-{number:05d}"
    with records_place(normalized, part).open_stream() as stream:
        return part, read_rows(normalized, part, list(module.COLUMNS)), [r.data for r in read_records(stream, part)]


@pytest.mark.integration
@by_transport
def test_what_is_sent_is_received(transport: Transport, normalized: Place) -> None:
    sent: list[tuple[int, bytes]] = []
    expected: dict[int, SourcedExample] = {}
    for number in range(3):
        part, rows, examples = part_of(normalized, number)
        is_sent = np.arange(len(examples)) % 3 != number
        values = transport.send(normalized, part, rows, is_sent)
        positions = np.flatnonzero(is_sent).tolist()
        sent += zip((1000 * number + position for position in positions), values, strict=True)
        sha256 = rows["sha256"].to_pylist()
        expected |= {1000 * number + at: (examples[at], part, sha256[at]) for at in positions}
    sent.sort(key=lambda each: each[0] * 7919 % 1009)  # an order that jumps between the parts
    received = transport.receive(normalized, (value for _, value in sent))
    assert list(received) == [expected[each] for each, _ in sent]


@by_transport
def test_keys_sort_by_slice_and_contain_its_number(transport: Transport) -> None:
    keys = [transport.key(number, 1, 3) for number in (0, 9, 10, 255, 256, 70_000)]
    assert keys == sorted(keys)
    assert [transport.slice_number(key) for key in keys] == [0, 9, 10, 255, 256, 70_000]


@pytest.mark.integration
@pytest.mark.parametrize("damage", ["flipped", "cut", "other"])
@pytest.mark.parametrize("name", [REFERENCES, RECORDS])
def test_a_damaged_part_is_found(name: str, damage: str, normalized: Place, tmp_path: Path) -> None:
    copy, transport = open_place(str(tmp_path)), TRANSPORTS[name]
    (tmp_path / "parts").mkdir()
    part, rows, examples = part_of(normalized, 0)
    data = bytearray(records_place(normalized, part).read_bytes())
    last, size = rows["offset"].to_pylist()[-1], rows["size"].to_pylist()[-1]
    if damage == "flipped":
        data[last + size // 2] ^= 1
    elif damage == "cut":
        del data[-5:]
    else:  # a whole record, but not that of its row
        others = pa.array([crc ^ 1 for crc in rows["crc32c"].to_pylist()], rows.schema.field("crc32c").type)
        rows = rows.set_column(rows.column_names.index("crc32c"), "crc32c", others)
    Path(records_place(copy, part).path).write_bytes(data)
    with pytest.raises(DataError, match=part):
        list(transport.receive(copy, transport.send(copy, part, rows, np.ones(len(examples), dtype=bool))))


def test_bytes_are_sent_if_parts_cannot_be_read_in_any_order() -> None:
    roots = open_place("/data"), open_place("hdfs://namenode/data")
    chosen = [module.choose_transport(root, runner) for root in roots for runner in ("inline", "local", "hadoop")]
    assert chosen == [REFERENCES, REFERENCES, RECORDS, LINES, LINES, RECORDS]


pairs = st.tuples(st.binary(max_size=9), st.binary(min_size=4, max_size=4), st.binary(max_size=99))


@given(st.lists(pairs), st.integers(1, 11))
def test_raw_pairs_come_back_and_cut_ones_are_refused(pairs: list[tuple[bytes, bytes, bytes]], missing: int) -> None:
    stream = io.BytesIO()
    for pair in pairs:
        write_pair(stream, *pair)
    data = stream.getvalue()
    assert list(read_pairs(io.BytesIO(data), 4)) == [(key, (order, value)) for key, order, value in pairs]
    if pairs:
        with pytest.raises(EOFError):
            list(read_pairs(io.BytesIO(data[:-missing]), 4))


def test_lines_sort_by_slice_then_by_order() -> None:
    protocol, key = module.LineProtocol(), TRANSPORTS[LINES].key
    given = [(key(slice_, 0, 1), (order, b"a\x1bb")) for slice_, order in ((10, b"00"), (2, b"ff"), (2, b"0a"))]
    lines = [protocol.write(*each) for each in given]
    assert sorted(lines) == [lines[2], lines[1], lines[0]]
    assert [protocol.read(line) for line in lines] == given


def test_more_files_than_may_be_open_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_open() -> int:
        return sum(tmp_path in Path(f"/proc/self/fd/{each}").resolve().parents for each in os.listdir("/proc/self/fd"))

    monkeypatch.setattr(module, "MAX_OPEN", 3)
    paths = [tmp_path / f"{number}" for number in range(10)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 50)
    order = [(number * 7) % 10 for number in range(40)]

    def read_all() -> tuple[list[bytes], int]:
        files = module.open_local_files()
        ahead = module.read_ahead(order, lambda number: files(str(paths[number])), distance=4)
        return [files(str(paths[number])).read_at(10, 45) for number in ahead], count_open()

    assert read_all() == ([bytes([number]) * 5 for number in order], 3)
    assert count_open() == 0


@given(reducers=st.integers(1, 3000), data=st.data())
def test_a_key_goes_to_the_reducer_it_is_made_for(reducers: int, data: st.DataObject) -> None:
    reducer = data.draw(st.integers(0, reducers - 1))
    prefix = module.partition_prefix(reducer, reducers)
    assert len(prefix) == module.PREFIX_BYTES
    assert max(prefix) < 128
    assert module.reducer_of(prefix, reducers) == reducer


def test_hash_and_properties_are_those_of_hadoop() -> None:
    """31**4, and what `WritableComparator.hashBytes` of Hadoop 3.4 gives for "abcd"; LEFT_ and
    RIGHT_OFFSET_PROPERTY_NAME of org.apache.hadoop.mapreduce.lib.partition.
    """
    assert [module.reducer_of(data, 1 << 31) for data in (b"\0\0\0\0", b"abcd")] == [923521, 3910595]
    prefix = "mapreduce.partition.binarypartitioner"
    assert (module.PROPERTIES[f"{prefix}.left.offset"], module.PROPERTIES[f"{prefix}.right.offset"]) == ("0", "3")
