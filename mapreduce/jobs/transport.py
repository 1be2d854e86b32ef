"""How `shard`'s mappers send examples to its reducers: in which form, under which keys, to which reducer.

A mapper sends each example under the key of its slice and its place in the order of the slice; a reducer receives those
of one slice in this order. `choose_transport` decides the form:

- REFERENCES, if tasks run on this machine and the parts are local files: the places of records in their parts. The
  reducer reads them there, and no byte of an image goes through pipes, files and a sort.
- RECORDS, on Hadoop: the bytes as they are, with a length before each key and value (streaming's ``rawbytes``).
- LINES, if tasks run on this machine but the parts are elsewhere: the bytes, in lines as references are.

In every form, a record's length and CRC32C are checked when it is read from its part.
"""

import binascii
import functools
import os
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.formats.parquet_tables import Table
from etl.formats.records import open_record
from etl.normalized.parts import LocalFile, explain_part_errors, read_part, records_place
from etl.options.stage_options import HADOOP
from etl.slices.writer import SourcedExample
from etl.storage.place import Place
from mapreduce.jobs.stage_job import TaskSize

REFERENCES, RECORDS, LINES = "references", "records", "lines"
COLUMNS = ("key", "offset", "size", "crc32c", "sha256")  # of a part's rows, that `Transport.send` needs

# BinaryPartitioner (Hadoop 3) hashes the first bytes of a key by h = 31 h + byte over 32 bits from h = 1, and sends the
# record to reducer (h and 0x7fffffff) mod reducers
PARTITIONER = "org.apache.hadoop.mapred.lib.BinaryPartitioner"
PREFIX_BYTES = 4
PROPERTIES = {  # of a job whose tasks send RECORDS
    "stream.map.output": "rawbytes",
    "stream.reduce.input": "rawbytes",
    "mapreduce.partition.binarypartitioner.left.offset": "0",
    "mapreduce.partition.binarypartitioner.right.offset": str(PREFIX_BYTES - 1),
}

_BASE = 128  # Java's bytes are signed: those below this are not negative
_DIGITS = 8  # of a slice's number in a line, so that lines sort as numbers do
_INTEGER = struct.Struct(">I")
_PLACE = struct.Struct(">QQI")  # of a record: offset, size, CRC32C
_SHA256_BYTES = 32

# From a cold disk, 40 KB at random are read 2.5 times as fast with this; from a warm cache it costs a microsecond each.
AHEAD = 64
MAX_OPEN = 256

Pair = tuple[bytes, tuple[bytes, bytes]]  # key of a slice, order and value
Item = TypeVar("Item")


def choose_transport(root: Place, runner: str) -> str:
    """The form in which the tasks of ``runner`` send examples of a dataset at ``root``."""
    if runner == HADOOP:
        return RECORDS
    return REFERENCES if root.filesystem.scheme == "file" else LINES


class LineProtocol:
    """An mrjob protocol for a slice's key, an order within the slice (hexadecimal digits), and a value.

    The line is ``key TAB order TAB value``, the value in base64: sorted as text it is sorted by slice, then by order.
    """

    def write(self, key: bytes, value: tuple[bytes, bytes]) -> bytes:
        """One line, without its end."""
        return b"%s\t%s\t%s" % (key, value[0], binascii.b2a_base64(value[1], newline=False))

    def read(self, line: bytes) -> Pair:
        """Inverse of `write`."""
        key, order, value = line.split(b"\t", 2)
        return key, (order, binascii.a2b_base64(value))


def write_pair(stream: BinaryIO, key: bytes, order: bytes, value: bytes) -> None:
    """Write Hadoop streaming's rawbytes: a length (4 bytes, big-endian) and a key, a length and a value.

    ``order`` is the end of the key: sorted as bytes, pairs are sorted by slice, then by order.
    """
    stream.write(b"".join((_INTEGER.pack(len(key) + len(order)), key, order, _INTEGER.pack(len(value)))))
    stream.write(value)


def read_pairs(stream: BinaryIO, order_bytes: int) -> Iterator[Pair]:
    """Inverse of `write_pair` for all of ``stream``. Raises EOFError if it ends within a pair."""
    while head := stream.read(_INTEGER.size):
        key = _read_block(stream, head)
        yield key[:-order_bytes], (key[-order_bytes:], _read_block(stream, stream.read(_INTEGER.size)))


def _read_block(stream: BinaryIO, head: bytes) -> bytes:
    if len(head) == _INTEGER.size:
        data = stream.read(size := _INTEGER.unpack(head)[0])
        if len(data) == size:
            return data
    raise EOFError("the input of the reducer ends within a record")


def reducer_of(prefix: bytes, reducers: int) -> int:
    """The reducer, from 0, to which Hadoop sends keys that begin with ``prefix``, whose bytes are below 128."""
    hashed = 1
    for byte in prefix:
        hashed = (31 * hashed + byte) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % reducers


@functools.cache
def partition_prefix(reducer: int, reducers: int) -> bytes:
    """The first bytes of a key that Hadoop sends to ``reducer`` of ``reducers``."""
    for number in range(_BASE**PREFIX_BYTES):
        prefix = bytes(number // _BASE**place % _BASE for place in reversed(range(PREFIX_BYTES)))
        if reducer_of(prefix, reducers) == reducer:
            return prefix
    raise ValueError(f"no key goes to reducer {reducer} of {reducers}")


class Transport(ABC):
    """The form of an example between `send` and `receive`, and its key."""

    # what a mapper sends, and what a reducer receives, is worth a task
    SENT: ClassVar[TaskSize]
    RECEIVED: ClassVar[TaskSize]

    @abstractmethod
    def send(self, normalized: Place, part: str, rows: Table, is_sent: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        """The values to send for those of a part's ``rows`` (all of them, with `COLUMNS`) that ``is_sent`` selects.

        Raises DataError if a record that is read is not the one of its row.
        """

    @abstractmethod
    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        """The examples of the values that were sent, in the order in which they arrive. Raises DataError as `send`."""

    def key(self, number: int, reducer: int, reducers: int) -> bytes:
        """The key of a slice, by its number, that goes to ``reducer`` of ``reducers``."""
        del reducer, reducers  # runners on this machine have no partitioner
        return b"%0*d" % (_DIGITS, number)

    def slice_number(self, key: bytes) -> int:
        """Inverse of `key`."""
        return int(key)


def open_local_files() -> Callable[[str], LocalFile]:
    """A function that opens local files, to read at any offset; of more than `MAX_OPEN` the least recent is closed."""
    return functools.lru_cache(MAX_OPEN)(LocalFile)


def _join(data: bytes, part: str, sha256: bytes) -> bytes:
    """A value that is sent: an example, or where it is, with its part and the SHA-256 of its source image."""
    name = part.encode()
    return b"".join((sha256, _INTEGER.pack(len(name)), name, data))


def _divide(value: bytes) -> SourcedExample:
    """Inverse of `_join`."""
    start = _SHA256_BYTES + _INTEGER.size
    end = start + _INTEGER.unpack_from(value, _SHA256_BYTES)[0]
    return value[end:], value[start:end].decode(), value[:_SHA256_BYTES]


def read_ahead(items: Iterable[Item], prefetch: Callable[[Item], None], distance: int = AHEAD) -> Iterator[Item]:
    """The same items in their order; ``prefetch`` is called with each when up to ``distance`` before it are to come."""
    waiting: deque[Item] = deque()
    for item in items:
        prefetch(item)
        waiting.append(item)
        if len(waiting) > distance:
            yield waiting.popleft()
    yield from waiting


class References(Transport):
    """The places of the records."""

    SENT = TaskSize(1 << 40, 50_000)  # a mapper reads rows only
    RECEIVED = TaskSize(128 << 20, 50_000)

    def send(self, normalized: Place, part: str, rows: Table, is_sent: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        chosen = rows.filter(is_sent)
        columns = (chosen[name].to_pylist() for name in ("sha256", "offset", "size", "crc32c"))
        for sha256, *expected in zip(*columns, strict=True):
            yield _join(_PLACE.pack(*expected), part, sha256)

    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        """Read the records at the places that are received."""
        files = open_local_files()

        def prefetch(reference: SourcedExample) -> None:
            place = records_place(normalized, reference[1])
            offset, size, _ = _PLACE.unpack(reference[0])
            with explain_part_errors(place):
                os.posix_fadvise(files(place.path).fileno(), offset, size, os.POSIX_FADV_WILLNEED)

        for expected, part, sha256 in read_ahead(map(_divide, values), prefetch):
            place = records_place(normalized, part)
            offset, size, crc = _PLACE.unpack(expected)
            with explain_part_errors(place):
                record = open_record(files(place.path).read_at(size, offset), offset, place.path)
                if record.crc32c != crc:
                    raise DataError(f"{place} does not contain at offset {offset} the example of its row")
            yield record.data, part, sha256


class Lines(Transport):
    """The records themselves."""

    SENT = RECEIVED = TaskSize(64 << 20, 20_000)

    def send(self, normalized: Place, part: str, rows: Table, is_sent: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        records = read_part(normalized, part, rows)
        for sha256, record, chosen in zip(rows["sha256"].to_pylist(), records, is_sent.tolist(), strict=True):
            if chosen:
                yield _join(record.data, part, sha256)

    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        return map(_divide, values)


class Records(Lines):
    """The records, under keys that Hadoop's partitioner sends to the reducer of the slice."""

    # A task's JVM and Python take 3 s of processor time to start, and 1 s for each 100 MB. What is sent fits into the
    # sort buffer of a container of the default size.
    SENT = TaskSize(320 << 20, 200_000)
    RECEIVED = TaskSize(512 << 20, 200_000)

    def key(self, number: int, reducer: int, reducers: int) -> bytes:
        return partition_prefix(reducer, reducers) + _INTEGER.pack(number)

    def slice_number(self, key: bytes) -> int:
        return int(_INTEGER.unpack(key[-_INTEGER.size :])[0])


TRANSPORTS: dict[str, Transport] = {REFERENCES: References(), LINES: Lines(), RECORDS: Records()}
