from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mapreduce.shuffle.partitioner import PREFIX_BYTES, reducer_of
from mapreduce.shuffle.text_protocol import TextsProtocol, bucket_keys, bucket_number, escape, unescape

tricky = st.lists(st.sampled_from([b"\x1b", b"0", b"1", b"2", b"3", b"\n", b"\r", b"\t", b"x"])).map(b"".join)
texts = st.lists(st.sampled_from(["\x1b", "\x1b\x1b", *"012\n\r\t\0ab"]), max_size=4).map("".join)
tuples = st.lists(texts, min_size=2, max_size=4).map(tuple)


@given(tricky | st.binary())
def test_what_is_escaped_has_no_line_breaks_and_comes_back(data: bytes) -> None:
    escaped = escape(data)
    assert not set(escaped) & set(b"\n\r\t")
    assert unescape(escaped) == data


def test_each_bucket_has_a_reducer_of_its_own() -> None:
    for buckets in [*range(1, 130), 31 * 31, 1000]:
        for bucket, key in enumerate(bucket_keys(buckets)):
            assert reducer_of(key[:PREFIX_BYTES], buckets) == bucket
            assert bucket_number(key) == bucket
            assert len(key.split()) == 1


@given(st.lists(tuples))
def test_tuples_come_back_and_those_that_begin_alike_come_together(values: list[tuple[str, ...]]) -> None:
    protocol = TextsProtocol()
    lines = [protocol.write(b"0000-0", value) for value in values]
    assert not any(b"\n" in line or line.count(b"\t") != 1 for line in lines)
    assert [protocol.read(line) for line in lines] == [(b"0000-0", value) for value in values]
    assert [protocol.read(line + b"\t")[1] for line in lines] == values, "as Hadoop hands it on"
    names = [protocol.read(line)[1][:2] for line in sorted(lines)]
    assert len(set(names)) == sum(1 for one, other in pairwise([("",), *names]) if one != other)
