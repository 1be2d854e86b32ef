from hypothesis import given
from hypothesis import strategies as st

from mapreduce.partition import partition_key, reducer_of, slice_number
from mapreduce.protocol import RecordProtocol, escape, unescape

tricky = st.lists(st.sampled_from([b"\x1b", b"0", b"1", b"2", b"3", b"\n", b"\r", b"\t", b"x"])).map(b"".join)


@given(tricky | st.binary())
def test_what_is_escaped_has_no_line_breaks_and_comes_back(data: bytes) -> None:
    escaped = escape(data)
    assert not set(escaped) & set(b"\n\r\t")
    assert unescape(escaped) == data


@given(number=st.integers(0, 10**7), data=tricky | st.binary())
def test_a_line_comes_back(number: int, data: bytes) -> None:
    protocol = RecordProtocol()
    key = partition_key(number, 0, 3)
    value = (b"00ff", (data, "pack-00000", bytes(range(32))))
    line = protocol.write(key, value)
    assert b"\n" not in line
    assert protocol.read(line) == (key, value)


def test_lines_sort_by_slice_then_by_order() -> None:
    write = RecordProtocol().write
    lines = [
        write(b"%08d" % slice_, (order, (b"", "", b""))) for slice_, order in ((10, b"00"), (2, b"ff"), (2, b"0a"))
    ]
    assert sorted(lines) == [lines[2], lines[1], lines[0]]


@given(number=st.integers(0, 10**8 - 1), reducers=st.integers(1, 300), data=st.data())
def test_a_key_goes_to_the_reducer_it_is_made_for(number: int, reducers: int, data: st.DataObject) -> None:
    reducer = data.draw(st.integers(0, reducers - 1))
    key = partition_key(number, reducer, reducers)
    assert reducer_of(key, reducers) == reducer
    assert slice_number(key) == number


def test_the_hash_is_java_s() -> None:
    """In Java "Hadoop".hashCode() is -2140997563: the same recurrence, over bytes."""
    assert reducer_of(b"Hadoop", 1 << 31) == -2140997563 & 0x7FFFFFFF
