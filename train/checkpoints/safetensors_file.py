"""Arrays by name in one file of the safetensors format: plain bytes behind a JSON header, no code.

The format is described at https://github.com/huggingface/safetensors. Its library reads here, and checks every offset.
Writing is our own, piece by piece: the library makes the whole file in memory, a second copy of a model, and keeps the
interpreter's lock meanwhile, so a step of the trainer would wait for its checkpoint.
"""

import json
import struct
from collections.abc import Iterator, Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from etl.errors import UsageError
from etl.storage.filesystem import WRITE_BUFFER_BYTES

Arrays = dict[str, np.ndarray]

PIECE_BYTES = WRITE_BUFFER_BYTES // 2

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_ALIGNMENT = 8
_METADATA = "__metadata__"  # the format's own


def pieces(arrays: Mapping[str, np.ndarray | np.generic]) -> Iterator[bytes | memoryview]:
    """The bytes of a file of ``arrays``, at most `PIECE_BYTES` at a time after the header; of the same arrays the same.

    Raises UsageError for an array of another dtype than floats of 2 to 8 bytes, integers and bool.
    """
    plain = {name: _plain(name, np.asarray(array)) for name, array in arrays.items()}
    order = sorted(plain, key=lambda name: (-plain[name].itemsize, name))  # so each begins at a multiple of its size
    header, end = {}, 0
    for name in order:
        begin, end = end, end + plain[name].nbytes
        array = plain[name]
        header[name] = {"dtype": CODES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        data = plain[name].reshape(-1).view(np.uint8).data
        for begin in range(0, len(data), PIECE_BYTES):
            yield data[begin : begin + PIECE_BYTES]


def parse(data: bytes) -> Arrays:
    """The arrays of a file's bytes, in memory of their own. Raises ValueError if it is not such a file."""
    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    except KeyError as error:
        raise ValueError(f"NumPy has no type {error}") from None


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """The same values, little-endian and in C order, as they lie in the file."""
    if array.dtype.name not in CODES or name == _METADATA:
        raise UsageError(
            f"a checkpoint cannot contain the array {name!r} of {array.dtype.name}; it takes {', '.join(CODES)}"
        )
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")
