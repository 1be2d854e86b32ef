"""Reads a rank's share of a split: serialized examples in the order of an epoch, batch by batch. Imports no TensorFlow.

A block of a slice is read with one call and checked with one CRC32C over all its bytes.
"""

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from etl import tables
from etl.errors import DataError, EnvironmentFailure
from etl.manifest import BLOCKS_FILE, Manifest, Slice
from etl.permute import Integers
from etl.records import FOOTER_BYTES, HEADER_BYTES, parse_index
from etl.storage import Place
from train.order import EpochOrder, Interval, Steps, Stretch, share

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """The blocks of one slice: int64 arrays of shape (blocks,), ``crc32c`` uint32; ``first`` is a record's number."""

    first: Integers
    records: Integers
    offset: Integers
    size: Integers
    crc32c: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class RecordBatch:
    """The records of one step of one rank, where they lie in this process's memory.

    ``addresses`` and ``sizes`` (bytes) are int64 and lead to serialized examples; ``numbers`` (int64) are the examples'
    numbers in their split; ``weights`` (float32) are 1, or 0 for a repeat that fills the batch up: all of shape
    (batch,). ``holding`` are the buffers that the addresses point into: they live as long as this batch does.
    ``skipped`` damaged records were left out.
    """

    addresses: Integers
    sizes: Integers
    numbers: Integers
    weights: Floats
    holding: tuple[Any, ...]
    skipped: int

    def examples(self) -> list[bytes]:
        """The serialized examples, each copied through Python."""
        pairs = zip(self.addresses.tolist(), self.sizes.tolist(), strict=True)
        return [ctypes.string_at(address, size) for address, size in pairs]


@contextmanager
def telling_where(place: Place) -> Iterator[None]:
    """Within the block, what reading ``place`` raises names it: pyarrow and libhdfs say an error number and no more."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{place} is missing; see: ringslice verify") from None
    except OSError as error:
        reason = str(error).partition("\n")[0].partition(". Detail:")[0]
        look = "; look at: hdfs fsck" if place.filesystem.scheme == "hdfs" else ""
        raise EnvironmentFailure(f"{place} cannot be read ({reason}){look}") from error


class SplitReader:
    """The slices of one split below the folder of their manifest.

    Raises DataError where the table of blocks does not fit the manifest.
    """

    def __init__(self, folder: Place, manifest: Manifest, split: str) -> None:
        self._folder = folder
        self._slices = manifest.splits[split]
        self._blocks = _read_blocks(folder, self._slices)
        self._index: dict[int, tuple[Integers, Integers]] = {}

    @property
    def total(self) -> int:
        """Examples of the split."""
        return sum(each.records for each in self._slices)

    def order(self, seed: int, epoch: int) -> EpochOrder:
        return EpochOrder([blocks.records for blocks in self._blocks], seed, epoch)

    def batches(
        self, order: EpochOrder, steps: Steps, rank: int, start: Sequence[Interval] | None = None
    ) -> Iterator[RecordBatch]:
        """The batches of ``rank``: as many as there are steps, each of the full size.

        ``start`` is what is left of the epoch; all of it where not given.

        Raises DataError, naming slice and offset, for a damaged block.
        """
        left = share([(0, order.total)] if start is None else start, rank, steps.world_size)
        records = self._records(order, left)
        repeated: list[tuple[int, bytes]] = []
        for step in range(steps.number):
            real = steps.real(rank, step)
            examples = list(itertools.islice(records, real))
            repeated = examples[-1:] or repeated or list(self._records(order, [(0, 1)]))  # a rank may have none at all
            yield _in_memory(examples + repeated * (steps.batch - real), real)

    def _records(self, order: EpochOrder, intervals: Sequence[Interval]) -> Iterator[tuple[int, bytes]]:
        firsts = np.cumsum([0, *(each.records for each in self._slices)])
        for stretch in order.stretches(intervals):
            yield from zip((firsts[stretch.slice] + stretch.records).tolist(), self._read(stretch), strict=True)

    def _read(self, stretch: Stretch) -> list[bytes]:
        """The serialized examples of a stretch, in its order."""
        blocks = self._blocks[stretch.slice]
        offsets, sizes = self._offsets(stretch.slice)
        holding = np.searchsorted(blocks.first, stretch.records, side="right") - 1
        place = self._folder / f"{self._slices[stretch.slice].name}.tfrecord"
        with telling_where(place), place.open_input() as file:
            content = {int(block): self._read_block(file, place, blocks, int(block)) for block in np.unique(holding)}
        examples = []
        for block, record in zip(holding.tolist(), stretch.records.tolist(), strict=True):
            start = int(offsets[record]) - int(blocks.offset[block])
            data = content[block]
            examples.append(bytes(data[start + HEADER_BYTES : start + int(sizes[record]) - FOOTER_BYTES]))
        return examples

    @staticmethod
    def _read_block(file: pa.NativeFile, place: Place, blocks: Blocks, block: int) -> memoryview:
        offset, size = int(blocks.offset[block]), int(blocks.size[block])
        file.seek(offset)
        data = memoryview(file.read_buffer(size)).cast("B")
        if len(data) != size or crc32c(data) != int(blocks.crc32c[block]):
            raise DataError(f"{place} is damaged between offset {offset} and {offset + size}; see: ringslice verify")
        return data

    def _offsets(self, number: int) -> tuple[Integers, Integers]:
        if number not in self._index:
            place = self._folder / f"{self._slices[number].name}.idx"
            with telling_where(place):
                self._index[number] = parse_index(place.read_bytes(), str(place))
            if len(self._index[number][0]) != self._slices[number].records:
                raise DataError(f"{place} does not list {self._slices[number].records} records; see: ringslice verify")
        return self._index[number]


def _in_memory(examples: Sequence[tuple[int, bytes]], real: int) -> RecordBatch:
    numbers = np.array([number for number, _ in examples], np.int64)
    sizes = np.array([len(data) for _, data in examples], np.int64)
    buffer = np.frombuffer(b"".join(data for _, data in examples), np.uint8)
    addresses = buffer.ctypes.data + np.cumsum(sizes) - sizes
    weights = (np.arange(len(examples)) < real).astype(np.float32)
    return RecordBatch(addresses, sizes, numbers, weights, (buffer,), 0)


def _read_blocks(folder: Place, slices: Sequence[Slice]) -> list[Blocks]:
    table = tables.read_table(folder / BLOCKS_FILE, tables.BLOCKS.names)
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "slice"}
    names = np.array(table["slice"].to_pylist())
    found = []
    for each in slices:
        own = np.flatnonzero(names == each.name)
        blocks = Blocks(**{name: column[own] for name, column in columns.items()})
        if int(blocks.records.sum()) != each.records or int(blocks.size.sum()) != each.size_bytes:
            raise DataError(f"{folder / BLOCKS_FILE} does not fit the slice {each.name}; see: ringslice verify")
        found.append(blocks)
    return found
