"""The TFRecord framing and its index.

A record is the length of its data (uint64, little-endian), the masked CRC32C of those 8 bytes (uint32), the data, and
the masked CRC32C of the data (uint32). The mask is ``((crc >> 15) | (crc << 17)) + 0xa282ead8`` modulo 2**32.
Source: TensorFlow's ``tensorflow/core/lib/io/record_writer.h``; CRC32C: RFC 3720, appendix B.4.

An index is a text of one line ``offset size`` for each record, in bytes, the framing included, as NVIDIA DALI's
``tfrecord2idx`` writes it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from etl.errors import DataError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAMING_BYTES = HEADER_BYTES + FOOTER_BYTES

_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True)
class Record:
    """One record of a file: where it begins, its data, their CRC32C, and ``framed``, its bytes with the framing."""

    offset: int
    data: bytes
    crc32c: int
    framed: bytes

    @property
    def size(self) -> int:
        """Bytes that the record takes in the file."""
        return len(self.framed)


def mask(crc: int) -> int:
    """The masked form of a CRC32C."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(data: bytes) -> tuple[bytes, int]:
    """``data`` as one record, and its (unmasked) CRC32C."""
    length = _UINT64.pack(len(data))
    crc = crc32c(data)
    return b"".join((length, _UINT32.pack(mask(crc32c(length))), data, _UINT32.pack(mask(crc)))), crc


def read_records(stream: pa.NativeFile | BinaryIO, where: str) -> Iterator[Record]:
    """The records of a file, one by one, each CRC checked; ``stream`` stands at its beginning.

    Raises DataError, naming ``where`` and the offset, for a wrong CRC or a file that ends within a record.
    """
    offset = 0
    while header := stream.read(HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise DataError(f"{where} ends within the header of the record at offset {offset}")
        size = _checked_length(header, offset, where) + FOOTER_BYTES
        body = stream.read(size)
        if len(body) < size:
            raise DataError(f"{where} ends within the record at offset {offset}")
        record = _record(header + body, offset, where)
        yield record
        offset += record.size


def open_record(framed: bytes, offset: int, where: str) -> Record:
    """The record whose bytes, with the framing, were read from ``offset`` of a file, each CRC checked.

    Raises DataError, naming ``where`` and the offset, for a wrong CRC or a record of another length.
    """
    if len(framed) < FRAMING_BYTES:
        raise DataError(f"{where} ends within the record at offset {offset}")
    length = _checked_length(framed[:HEADER_BYTES], offset, where)
    if len(framed) != FRAMING_BYTES + length:
        raise DataError(
            f"{where}: the record at offset {offset} takes {FRAMING_BYTES + length} bytes, not {len(framed)}"
        )
    return _record(framed, offset, where)


def _checked_length(header: bytes, offset: int, where: str) -> int:
    length, length_crc = _HEADER.unpack(header)
    if mask(crc32c(header[:8])) != length_crc:
        raise DataError(f"{where}: wrong CRC of the length at offset {offset}")
    return int(length)


def _record(framed: bytes, offset: int, where: str) -> Record:
    data = framed[HEADER_BYTES:-FOOTER_BYTES]
    crc = crc32c(data)
    if mask(crc) != _UINT32.unpack_from(framed, len(framed) - FOOTER_BYTES)[0]:
        raise DataError(f"{where}: wrong CRC of the data at offset {offset}")
    return Record(offset, data, crc, framed)


def index_bytes(offsets: list[int], sizes: list[int]) -> bytes:
    """The index of a file as text."""
    return "".join(f"{offset} {size}\n" for offset, size in zip(offsets, sizes, strict=True)).encode()


def parse_index(text: bytes, where: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Offsets and sizes, int64 of shape (records,), of an index. Raises DataError if it is not an index."""
    from pyarrow import csv  # not needed by tasks that only write records

    if not text:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    parsing = csv.ParseOptions(delimiter=" ", quote_char=False, ignore_empty_lines=False)
    reading = csv.ReadOptions(use_threads=False, column_names=["offset", "size"])
    types = csv.ConvertOptions(column_types={"offset": pa.int64(), "size": pa.int64()}, null_values=[])
    try:
        table = csv.read_csv(pa.py_buffer(text), reading, parsing, types)
    except pa.ArrowInvalid:
        raise DataError(f"{where} is not an index of 'offset size' lines") from None
    return table["offset"].to_numpy(), table["size"].to_numpy()
