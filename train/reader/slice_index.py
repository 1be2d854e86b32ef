"""Where the records and blocks of slices lie in their files, from the table of blocks and from the slices' indices."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.records import parse_index
from etl.partition.shares import Integers
from etl.slices.manifest import Slice, table_file
from etl.storage.place import Place
from train.reader.retry import Patience

KEPT = 1024  # slices whose blocks are remembered, some kilobytes each


@dataclass(frozen=True)
class Blocks:
    """The blocks of one slice: int64 arrays of shape (blocks,), ``crc32c`` uint32; ``first`` is a record's number."""

    first: Integers
    records: Integers
    offset: Integers
    size: Integers
    crc32c: npt.NDArray[np.uint32]


class SliceIndexes:
    """The indexes of ``slices`` below ``folder``; each is read when it is first asked for, by any thread."""

    def __init__(self, folder: Place, slices: Sequence[Slice], patience: Patience) -> None:
        self._folder = folder
        self._slices = slices
        self._patience = patience
        self._blocks: dict[int, Blocks] = {}
        self._lock = threading.Lock()

    def require(self) -> None:
        """Raise DataError if the table of blocks is missing, damaged or of other slices, as a quick check finds it."""
        for number in {0, len(self._slices) - 1}:
            self.blocks(number)

    def blocks(self, number: int) -> Blocks:
        """The blocks of a slice. Raises DataError if the table of blocks does not fit the manifest."""
        if (known := self._blocks.get(number)) is not None:
            return known
        each, place = self._slices[number], self._folder / table_file("blocks")
        rows = (each.first_block, each.first_block + each.blocks)
        table = self._patience.call(place, lambda: parquet_tables.read_range(place, *rows))
        if not table.schema.equals(schemas.BLOCKS) or any(column.null_count for column in table.columns):
            raise DataError(f"{place} is not a table of blocks; see: ringslice verify")
        blocks = Blocks(**{name: table[name].to_numpy() for name in table.column_names if name != "slice"})
        columns = ((blocks.first, blocks.records), (blocks.offset, blocks.size))
        ends = [int(column[-1] + size[-1]) for column, size in columns] if each.blocks else [0, 0]
        is_own = pc.all(pc.equal(table["slice"], each.name), min_count=0).as_py()
        if not is_own or ends != [each.records, each.size_bytes]:
            raise DataError(f"{place} does not fit the slice {each.name}; see: ringslice verify")
        with self._lock:
            if len(self._blocks) >= KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[number] = blocks
        return blocks

    def block_records(self, number: int) -> Integers:
        """How many records each block of a slice has."""
        return self.blocks(number).records

    def offsets(self, number: int) -> Integers:
        """Where each record of a slice begins, and where the last one ends: int64 (records + 1,).

        Raises DataError if the slice's index is missing or does not fit its blocks.
        """
        each, blocks = self._slices[number], self.blocks(number)
        place = self._folder / f"{each.name}.idx"
        starts, sizes = parse_index(self._patience.call(place, place.read_bytes), str(place))
        if len(starts) != each.records:
            raise DataError(f"{place} does not list {each.records} records; see: ringslice verify")
        offsets = np.append(starts, each.size_bytes)
        if (np.diff(offsets) != sizes).any() or (offsets[blocks.first] != blocks.offset).any():
            raise DataError(f"{place} does not fit {table_file('blocks')}; see: ringslice verify")
        return offsets
