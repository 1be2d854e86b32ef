import io
from dataclasses import replace

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import DataError
from etl.formats.example import ImageExample, parse, serialize
from etl.formats.records import frame, read_records

EXAMPLE = ImageExample("a/ü.png", 3, "ü", "PNG", 2, 1, 3, b"\x89PNG\0\xff")


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_what_is_framed_is_read(datas: list[bytes]) -> None:
    file = b"".join(frame(data)[0] for data in datas)
    records = list(read_records(io.BytesIO(file), "x"))
    assert [record.data for record in records] == datas
    assert [record.offset for record in records] == [sum(r.size for r in records[:i]) for i in range(len(datas))]


def test_every_flipped_bit_and_every_cut_within_a_record_is_found() -> None:
    file = frame(b"abc")[0] + frame(b"defg")[0]
    for bit in range(8 * len(file)):
        damaged = bytearray(file)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match="x"):
            list(read_records(io.BytesIO(bytes(damaged)), "x"))
    boundary = len(frame(b"abc")[0])
    for length in set(range(1, len(file))) - {boundary}:
        with pytest.raises(DataError, match="ends within"):
            list(read_records(io.BytesIO(file[:length]), "x"))


def test_an_example_is_tensorflows_example() -> None:
    theirs = tf.train.Example.FromString(serialize(EXAMPLE))
    assert theirs.features.feature["image/encoded"].bytes_list.value[0] == EXAMPLE.encoded
    assert theirs.features.feature["image/class/label"].int64_list.value[0] == 3
    assert theirs.features.feature["image/key"].bytes_list.value[0].decode() == "a/ü.png"
    assert theirs.SerializeToString(deterministic=True) == serialize(EXAMPLE)
    assert parse(theirs.SerializeToString()) == EXAMPLE


def test_bytes_that_are_not_an_example_are_refused() -> None:
    too_large = [serialize(replace(EXAMPLE, label=1 << 31)), serialize(replace(EXAMPLE, width=1 << 31))]
    for wrong in (b"\xff\xff", b"", serialize(EXAMPLE)[:-3], *too_large):
        with pytest.raises(DataError, match="not an example"):
            parse(wrong)
