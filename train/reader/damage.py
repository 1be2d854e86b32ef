"""Which records of a damaged block are damaged: looked for only if a block's checksum is not as recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.formats.records import open_record
from etl.partition.shares import Integers
from etl.slices.manifest import Slice, table_file
from etl.storage.place import Place

COLUMNS = ["key", "crc32c"]


@dataclass(frozen=True)
class DamagedRecord:
    """A record of the slice at ``place`` that is not as it was written; ``number`` counts within the slice.

    ``key`` is None if it is not known.
    """

    place: Place
    number: int
    offset: int
    key: str | None
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.place} is damaged at offset {self.offset}: key {self.key!r}, record {self.number} ({self.reason})"
        )


def find_damaged(
    folder: Place, each: Slice, data: memoryview, records: range, offsets: Integers
) -> list[DamagedRecord]:
    """The damaged ones of these ``records``, neighbours whose bytes are ``data``, of a slice below ``folder``.

    ``offsets`` (records + 1,) are where the records of the slice begin, and where the last one ends.

    If the table of examples can be read, a record is damaged too when it is whole but another one.
    """
    recorded = _recorded(folder, each, records)
    place = folder / f"{each.name}.tfrecord"
    base = int(offsets[records.start])
    found = []
    for number in records:
        start, stop = int(offsets[number]), int(offsets[number + 1])
        key, crc = recorded[number - records.start]
        try:
            record = open_record(bytes(data[start - base : stop - base]), start, "it")
        except DataError as error:
            found.append(DamagedRecord(place, number, start, key, str(error)))
            continue
        if crc is not None and record.crc32c != crc:
            found.append(DamagedRecord(place, number, start, key, "it is another record than was written there"))
    return found


def _recorded(folder: Place, each: Slice, records: range) -> Sequence[tuple[str | None, int | None]]:
    """Key and CRC32C of these records, as the table of examples has them; Nones if it cannot be read."""
    first = each.first_example + records.start
    try:
        table = parquet_tables.read_range(folder / table_file("examples"), first, first + len(records), COLUMNS)
    except (DataError, EnvironmentFailure, OSError):
        return [(None, None)] * len(records)
    return list(zip(table["key"].to_pylist(), table["crc32c"].to_pylist(), strict=True))


def lengths_fit(data: memoryview, starts: Integers, sizes: Integers) -> bool:
    """True if at each of ``starts`` in ``data`` a record of that size begins, by its length field alone."""
    content = np.frombuffer(data, np.uint8)
    fields = content[starts[:, np.newaxis] + np.arange(8)].view("<i8")[:, 0]
    return bool((fields == sizes).all())
