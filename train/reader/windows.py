"""Windows of records in memory: a stretch of the epoch's order, read in large pieces and checked block by block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from etl.errors import DataError
from etl.formats.records import FRAMING_BYTES, HEADER_BYTES
from etl.partition.shares import Integers
from etl.slices.manifest import Slice
from etl.storage.place import Place
from train.reader.damage import DamagedRecord, find_damaged, lengths_fit
from train.reader.memory import PIECE_BYTES, Buffer, room_bytes
from train.reader.order import Stretch
from train.reader.slice_file import SliceFile
from train.reader.slice_index import Blocks


@dataclass(frozen=True)
class Window:
    """Records in memory, in the epoch's order: int64 arrays of shape (records,).

    ``addresses`` and ``sizes`` are those of the serialized examples, which live as long as ``buffers`` does;
    ``numbers`` are their rows in the table of examples; ``damaged`` lists, by place, those that are not as written.
    """

    addresses: Integers
    sizes: Integers
    numbers: Integers
    damaged: dict[int, DamagedRecord]
    buffers: tuple[Buffer, ...]


class WindowPlan:
    """What has to be read for a stretch: the blocks that contain its records, by their numbers in the slice.

    A piece is a range of neighbouring blocks, which are read at once.
    """

    def __init__(self, stretch: Stretch, blocks: Blocks, offsets: Integers) -> None:
        self.records = stretch.records
        self.blocks = blocks
        self.offsets = offsets
        self.blocks_of = np.searchsorted(blocks.first, stretch.records, side="right") - 1
        self.pieces = list(_pieces(np.unique(self.blocks_of), blocks.size))

    def bytes_of(self, piece: range) -> int:
        """The size of a piece in its file, in bytes."""
        return int(self.blocks.size[piece.start : piece.stop].sum())

    @property
    def memory_bytes(self) -> int:
        """What the buffers of all pieces take."""
        return sum(room_bytes(self.bytes_of(piece)) for piece in self.pieces)


def _pieces(wanted: Integers, sizes: Integers) -> Iterator[range]:
    """These blocks, ascending, as pieces of neighbours of at most `PIECE_BYTES`, at least one block each."""
    start = stop = size = 0
    for block in wanted.tolist():
        if block != stop or size + int(sizes[block]) > PIECE_BYTES:
            if stop > start:
                yield range(start, stop)
            start, size = block, 0
        stop = block + 1
        size += int(sizes[block])
    yield range(start, stop)


def load_window(folder: Place, file: SliceFile, plan: WindowPlan, check: bool) -> Window:
    """Read what ``plan`` asks for; with ``check`` the CRC32C of each block, and each record's length.

    Raises DataError if the slice's index or the table of blocks is wrong, and what `SliceFile.read` raises.
    """
    base = np.zeros(len(plan.blocks.first), np.int64)  # the address that offset 0 of the file would have, by block
    buffers: list[Buffer] = []
    damaged: dict[int, DamagedRecord] = {}
    for piece in plan.pieces:
        data, found = _read_piece(folder, file, plan, piece, check)
        base[piece.start : piece.stop] = data.address - int(plan.blocks.offset[piece.start])
        buffers.append(data)
        damaged |= {each.number: each for each in found}
    places = np.flatnonzero(np.isin(plan.records, list(damaged))).tolist()
    starts = plan.offsets[plan.records]
    sizes = plan.offsets[plan.records + 1] - starts - FRAMING_BYTES
    return Window(
        base[plan.blocks_of] + starts + HEADER_BYTES,
        sizes,
        file.slice.first_example + plan.records,
        {place: damaged[int(plan.records[place])] for place in places},
        tuple(buffers),
    )


def _read_piece(
    folder: Place, file: SliceFile, plan: WindowPlan, piece: range, check: bool
) -> tuple[Buffer, list[DamagedRecord]]:
    offset = int(plan.blocks.offset[piece.start])
    buffer = Buffer(plan.bytes_of(piece))

    def read(fill: Callable[[int, memoryview], int]) -> tuple[list[memoryview], list[int]]:
        content = buffer.view[: fill(offset, buffer.view)]
        own = [content[_at(plan.blocks, block, offset)] for block in piece]
        wrong = [block for block in piece if not _is_whole(own[block - piece.start], plan.blocks, block, check)]
        return own, wrong

    own, wrong = read(file.read)
    if wrong:  # read again, because a bit may flip on the way too
        own, wrong = read(file.read_afresh)
    damaged: list[DamagedRecord] = []
    for block, content in zip(piece, own, strict=True):
        if block in wrong:
            damaged += _examine(folder, file.slice, plan, block, content)
        elif check and not lengths_fit(content, *_lengths(plan, block)):
            raise DataError(f"the index of {file.place} does not fit it; see: ringslice verify")
    return buffer, damaged


def _at(blocks: Blocks, block: int, base: int) -> slice:
    start = int(blocks.offset[block]) - base
    return slice(start, start + int(blocks.size[block]))


def _is_whole(content: memoryview, blocks: Blocks, block: int, check: bool) -> bool:
    """True if a block is not cut short and, with ``check``, has its CRC32C."""
    return len(content) == blocks.size[block] and not (check and crc32c(content) != blocks.crc32c[block])


def _lengths(plan: WindowPlan, block: int) -> tuple[Integers, Integers]:
    """Where the records of a block begin, from the block's own begin on, and the lengths of their data."""
    first = int(plan.blocks.first[block])
    offsets = plan.offsets[first : first + int(plan.blocks.records[block]) + 1]
    return offsets[:-1] - int(plan.blocks.offset[block]), np.diff(offsets) - FRAMING_BYTES


def _examine(folder: Place, each: Slice, plan: WindowPlan, block: int, content: memoryview) -> list[DamagedRecord]:
    first = int(plan.blocks.first[block])
    records = range(first, first + int(plan.blocks.records[block]))
    found = find_damaged(folder, each, content, records, plan.offsets)
    if not found:
        raise DataError(
            f"the table of blocks does not fit {folder / each.name}.tfrecord at offset {plan.blocks.offset[block]},"
            " though its records are whole; see: ringslice verify"
        )
    return found
