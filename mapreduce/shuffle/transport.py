"""How examples travel from `shard`'s mappers to its reducers.

A mapper sends each example under its slice's key and its order there; a reducer receives those of one slice in their
order. What travels, `pick` decides:

- REFERENCES, where tasks run on this machine and the parts are local files: where each record lies. The reducer reads
  it there, and no byte of an image goes through pipes, files and a sort in between.
- RECORDS, on Hadoop: the bytes as they are, a length before each key and value (streaming's ``rawbytes``).
- LINES, where tasks run on this machine but the parts do not lie on it: the bytes in base64, a line each.

Whatever travels, a record's length and CRC32C are checked when it is read from its part.
"""

import binascii
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.formats.parquet_tables import Table
from etl.formats.records import open_record
from etl.normalized.parts import read_part, records_place
from etl.options.stage_options import HADOOP
from etl.slices.writer import SourcedExample
from etl.storage.place import Place
from mapreduce.jobs.work import TaskSize
from mapreduce.shuffle.partitioner import partition_prefix
from mapreduce.shuffle.range_reads import LocalFiles, looking_ahead

REFERENCES, RECORDS, LINES = "references", "records", "lines"
COLUMNS = ("key", "offset", "size", "crc32c", "sha256")  # of a part's rows, that `Transport.send` needs

SHA256_BYTES = 32
_DIGITS = 8  # of a slice's number in a line, so that lines sort as numbers do
_NUMBER = struct.Struct(">I")
_LENGTHS = struct.Struct(">I")


def pick(root: Place, runner: str) -> str:
    """What travels between the tasks of ``runner`` for a dataset at ``root``."""
    if runner == HADOOP:
        return RECORDS
    return REFERENCES if root.filesystem.scheme == "file" else LINES


class Transport(ABC):
    """What travels for an example, between `send` and `receive`, and under which key."""

    # what a mapper sends, and what a reducer receives, is worth a task
    SENT: ClassVar[TaskSize]
    RECEIVED: ClassVar[TaskSize]

    @abstractmethod
    def send(self, normalized: Place, part: str, rows: Table, wanted: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        """What travels for each of the ``wanted`` of a part's ``rows`` (all of them, with `COLUMNS`), in their order.

        Raises DataError where a record that is read is not the one that its row tells of.
        """

    @abstractmethod
    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        """The examples, from what was sent, in the order it arrives. Raises DataError as `send` does."""

    def key(self, number: int, reducer: int, reducers: int) -> bytes:
        """The key of a slice, by its number, that goes to ``reducer`` of ``reducers``."""
        del reducer, reducers  # runners on this machine have no partitioner
        return b"%0*d" % (_DIGITS, number)

    def slice_number(self, key: bytes) -> int:
        """Inverse of `key`."""
        return int(key)


class _Reference(NamedTuple):
    """Where a record lies, and what must be found there; it travels as JSON."""

    part: str
    offset: int
    size: int
    crc32c: int
    sha256: str


class References(Transport):
    """Where the records lie."""

    SENT = TaskSize(1 << 40, 50_000)  # it reads rows alone
    RECEIVED = TaskSize(128 << 20, 50_000)

    def send(self, normalized: Place, part: str, rows: Table, wanted: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        chosen = rows.filter(wanted)
        columns = (chosen[name].to_pylist() for name in ("offset", "size", "crc32c", "sha256"))
        for offset, size, crc32c, sha256 in zip(*columns, strict=True):
            yield json.dumps(_Reference(part, offset, size, crc32c, sha256.hex()), allow_nan=False).encode()

    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        with LocalFiles() as files:

            def path(part: str) -> str:
                return records_place(normalized, part).path

            def look(reference: _Reference) -> None:
                files.expect(path(reference.part), reference.offset, reference.size)

            for each in looking_ahead((_Reference(*json.loads(each)) for each in values), look):
                place = path(each.part)
                record = open_record(files.read(place, each.offset, each.size), each.offset, place)
                if record.crc32c != each.crc32c:
                    raise DataError(
                        f"{place} does not hold at offset {each.offset} the example that its rows tell of;"
                        " normalize again with --overwrite"
                    )
                yield record.data, each.part, bytes.fromhex(each.sha256)


class _Bytes(Transport):
    """The records themselves."""

    def send(self, normalized: Place, part: str, rows: Table, wanted: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        head = _LENGTHS.pack(len(part.encode())) + part.encode()
        records = read_part(normalized, part, rows)
        for sha256, record, chosen in zip(rows["sha256"].to_pylist(), records, wanted.tolist(), strict=True):
            if chosen:
                yield b"".join((sha256, head, record.data))

    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        for value in values:
            start = SHA256_BYTES + _LENGTHS.size
            end = start + _LENGTHS.unpack_from(value, SHA256_BYTES)[0]
            yield value[end:], value[start:end].decode(), value[:SHA256_BYTES]


class Lines(_Bytes):
    """The records in base64."""

    SENT = RECEIVED = TaskSize(64 << 20, 20_000)

    def send(self, normalized: Place, part: str, rows: Table, wanted: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        for value in super().send(normalized, part, rows, wanted):
            yield binascii.b2a_base64(value, newline=False)

    def receive(self, normalized: Place, values: Iterable[bytes]) -> Iterator[SourcedExample]:
        return super().receive(normalized, map(binascii.a2b_base64, values))


class Records(_Bytes):
    """The records as they are, under keys that Hadoop's partitioner sends to the reducer they are for."""

    # A task's JVM and Python take 3 s of processor time to start, and 1 s for each 100 MB. What is sent fits into the
    # sort buffer of a container of the default size.
    SENT = TaskSize(320 << 20, 200_000)
    RECEIVED = TaskSize(512 << 20, 200_000)

    def key(self, number: int, reducer: int, reducers: int) -> bytes:
        return partition_prefix(reducer, reducers) + _NUMBER.pack(number)

    def slice_number(self, key: bytes) -> int:
        return int(_NUMBER.unpack(key[-_NUMBER.size :])[0])


TRANSPORTS: dict[str, Transport] = {REFERENCES: References(), LINES: Lines(), RECORDS: Records()}
