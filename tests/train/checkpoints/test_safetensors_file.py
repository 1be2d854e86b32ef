"""Arrays in a file: what comes back, and what is no such file."""

import io
import pickle
import struct
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import save

from etl.errors import UsageError
from train.checkpoints.safetensors_file import PIECE_BYTES, Arrays, parse, pieces

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["float64", "float32", "float16", *INTEGERS, "bool"]
ODD_NAMES = ("", " ", "a/b", "../up", 'quoted "twice"', "line\nfeed", "nul\0", "größe", "重み", "🙂", "k" * 999)


def whole(arrays: Mapping[str, np.ndarray | np.generic]) -> bytes:
    return b"".join(pieces(arrays))


def same(one: Arrays, two: Arrays) -> bool:
    """Whether they hold the same names, dtypes, shapes and bytes."""
    return one.keys() == two.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (two[name].dtype, two[name].shape, two[name].tobytes())
        for name in one
    )


arrays_of_any_kind = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5).filter(lambda name: name != "__metadata__"),
    npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, min_side=0, max_side=4)),
    max_size=5,
)


@settings(max_examples=200)
@given(arrays_of_any_kind)
def test_arrays_come_back_bit_for_bit(arrays: Arrays) -> None:
    assert same(parse(whole(arrays)), arrays)


def test_how_an_array_lies_in_memory_does_not_matter() -> None:
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    ways = {
        "turned": plain.T,
        "every other": plain[:, ::2],
        "big-endian": plain.astype(">f4"),
        "backwards": plain[::-1],
    }
    for name, array in ways.items():
        assert not (array.flags.c_contiguous and array.dtype.isnative), name
        assert same(parse(whole({"a": array})), {"a": np.array(array.tolist(), np.float32)}), name
    assert same(parse(whole({"a": np.float32(3)})), {"a": np.array(3, np.float32)})


def test_arrays_lie_where_their_type_may_be_read() -> None:
    """Each begins at a multiple of its items' size, whatever was given before it."""
    dtypes = {"a": np.uint8, "b": np.float16, "c": np.float64, "d": np.float32}
    data = whole({name: np.zeros(3, dtype) for name, dtype in dtypes.items()})
    assert struct.unpack("<Q", data[:8])[0] % 8 == 0
    places = [data.index(f'"{name}"'.encode()) for name in "cdba"]
    assert places == sorted(places)


def test_pieces_are_small_and_the_large_are_not_copied() -> None:
    array = np.arange((3 * PIECE_BYTES + 8) // 8)
    header, *rest = pieces({"a": array})
    assert len(header) < 100
    assert [len(piece) for piece in rest] == [PIECE_BYTES] * 3 + [8]
    array[0] = 7
    assert bytes(rest[0][:8]) == struct.pack("<q", 7)


@pytest.mark.parametrize("array", [np.array([None]), np.zeros(2, complex)])
def test_other_types_and_the_name_of_the_format_are_refused(array: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"cannot contain the array '0001-x' of .*; it takes float64, float32"):
        whole({"0001-x": array})
    with pytest.raises(UsageError, match="cannot contain the array '__metadata__'"):
        whole({"__metadata__": np.zeros(1)})


class Code:
    """Fails the test if it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a pickle was loaded",)


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


FOREIGN = {
    "nothing": b"",
    "pickle": pickle.dumps(Code()),
    "npz": npz(),
    "unknown type": save({"a": np.zeros(2, np.uint16)}).replace(b'"U16"', b'"BF16"').replace(b"}} ", b"}}"),
    "header only": whole({"a": np.zeros(3)})[:-1],
    "more than its header has": whole({"a": np.zeros(3)}) + b"\0",
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN.keys())
def test_another_file_is_no_arrays(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Error while deserializing|NumPy has no type"):
        parse(data)
