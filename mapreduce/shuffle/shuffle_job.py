"""A stage's job whose tasks send examples through the MapReduce shuffle, by whatever transport the job file names."""

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from mapreduce.jobs.stage_job import StageJob
from mapreduce.shuffle.partitioner import PARTITIONER, PROPERTIES
from mapreduce.shuffle.transport import RECORDS, TRANSPORTS, Transport

_LENGTH = struct.Struct(">I")

Pair = tuple[bytes, tuple[bytes, bytes]]


class LineProtocol:
    """An mrjob protocol for a slice's key, an order within the slice (hexadecimal digits), and what travels.

    The line is ``key TAB order TAB value``: sorted as text it is sorted by slice, then by order.
    """

    def write(self, key: bytes, value: tuple[bytes, bytes]) -> bytes:
        return b"%s\t%s\t%s" % (key, *value)

    def read(self, line: bytes) -> Pair:
        key, order, value = line.split(b"\t", 2)
        return key, (order, value)


def write_pair(stream: BinaryIO, key: bytes, order: bytes, value: bytes) -> None:
    """Write what Hadoop streaming calls rawbytes: a length (4 bytes, big-endian) and a key, a length and a value.

    ``order`` is the key's end: sorted as bytes, pairs are sorted by slice, then by order.
    """
    stream.write(b"".join((_LENGTH.pack(len(key) + len(order)), key, order, _LENGTH.pack(len(value)))))
    stream.write(value)


def read_pairs(stream: BinaryIO, order_bytes: int) -> Iterator[Pair]:
    """Inverse of `write_pair` for all that comes from ``stream``. Raises EOFError where it ends within a pair."""
    while head := stream.read(_LENGTH.size):
        key = _read(stream, _LENGTH.unpack(_whole(head, _LENGTH.size))[0])
        value = _read(stream, _LENGTH.unpack(_read(stream, _LENGTH.size))[0])
        yield key[:-order_bytes], (key[-order_bytes:], value)


def _read(stream: BinaryIO, size: int) -> bytes:
    return _whole(stream.read(size), size)


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise EOFError(f"what the shuffle brings ends {size - len(data)} bytes too early")
    return data


class ShuffleJob(StageJob):
    """A stage whose mapper yields (slice's key, (order, value)), of `ORDER_BYTES` and as ``self.transport`` has it."""

    INTERNAL_PROTOCOL = LineProtocol
    ORDER_BYTES = 32

    @property
    def transport(self) -> Transport:
        return TRANSPORTS[self.job["transport"]]

    @property
    def _raw(self) -> bool:
        return bool(self.job["transport"] == RECORDS)

    def sort_values(self) -> bool:
        return not self._raw

    def partitioner(self) -> str | None:
        return PARTITIONER if self._raw else None

    def jobconf(self) -> dict[str, Any]:
        raw = {"stream.map.output": "rawbytes", "stream.reduce.input": "rawbytes", **PROPERTIES}
        return super().jobconf() | (raw if self._raw else {})

    def run_mapper(self, step_num: int = 0) -> None:
        if not self._raw:
            super().run_mapper(step_num)
            return
        read = self.INPUT_PROTOCOL().read
        for key, (order, value) in self.map_pairs((read(line.rstrip()) for line in self.stdin), step_num):
            write_pair(self.stdout, key, order, value)

    def run_reducer(self, step_num: int = 0) -> None:
        if not self._raw:
            super().run_reducer(step_num)
            return
        write = self.OUTPUT_PROTOCOL().write
        for key, value in self.reduce_pairs(read_pairs(self.stdin, self.ORDER_BYTES), step_num):
            self.stdout.write(write(key, value) + b"\n")
