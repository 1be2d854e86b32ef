from hypothesis import given
from hypothesis import strategies as st

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
    line = protocol.write(number, (b"00ff", data))
    assert b"\n" not in line
    assert protocol.read(line) == (number, (b"00ff", data))


def test_lines_sort_by_slice_then_by_order() -> None:
    write = RecordProtocol().write
    lines = [write(slice_, (order, b"")) for slice_, order in ((10, b"00"), (2, b"ff"), (2, b"0a"))]
    assert sorted(lines) == [lines[2], lines[1], lines[0]]
