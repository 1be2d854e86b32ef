"""Windows of a slice's records, of which every byte is checked, and the batches drawn from them."""

import ctypes
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.formats.example import ImageExample, serialize
from etl.formats.records import parse_index
from etl.slices.manifest import Slice
from etl.slices.writer import blocks_place, write_slice
from etl.storage.place import Place, open_place
from train.reader.batches import Drawing, RecordBatch, Spare
from train.reader.config import SKIP, STOP, Reading
from train.reader.damage import DamagedRecord
from train.reader.intervals import lane_runs
from train.reader.memory import Buffer
from train.reader.order import Stretch
from train.reader.retry import Patience
from train.reader.slice_file import SliceFile
from train.reader.slice_index import Blocks
from train.reader.windows import Window, WindowPlan, load_window

RECORDS = 5
ORDER = [3, 0, 4, 2, 1]  # as an epoch has them


def example(number: int) -> bytes:
    content = hashlib.sha256(b"%d" % number).digest()[: 4 + number]
    return serialize(ImageExample(f"a/{number}", 0, "a", "RAW", 1, len(content), 1, content))


class Written:
    """A slice of a few records, and all that is needed to read it."""

    def __init__(self, folder: Place) -> None:
        dealt = [(example(number), "part", bytes(32)) for number in range(RECORDS)]
        attempts = (folder / "attempts").make_folder()
        result = write_slice(folder, attempts, ("train", "train/a", RECORDS), dealt)
        rows = parquet_tables.read_table(blocks_place(folder, "train/a"))
        self.folder, self.path = folder, Path(folder.path) / "train/a.tfrecord"
        self.slice = Slice("train/a", RECORDS, result["blocks"], result["bytes"], result["sha256"], 10, 0)
        self.blocks = Blocks(**{name: rows[name].to_numpy() for name in rows.column_names if name != "slice"})
        self.offsets = np.append(parse_index((folder / "train/a.idx").read_bytes(), "x")[0], result["bytes"])

    def load(self, file: SliceFile | None = None) -> Window:
        plan = WindowPlan(Stretch(0, np.array(ORDER, np.int64)), self.blocks, self.offsets)
        return load_window(self.folder, file or self.open(), plan, check=True)

    def open(self, kind: type[SliceFile] = SliceFile) -> SliceFile:
        return kind(self.folder, self.slice, None, Patience(0), lambda offset: None)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(open_place(str(tmp_path)))


def examples(window: Window) -> list[bytes]:
    return [ctypes.string_at(*each) for each in zip(window.addresses.tolist(), window.sizes.tolist(), strict=True)]


def test_every_flipped_byte_damages_its_record_alone(written: Written) -> None:
    sound = written.path.read_bytes()
    for place in range(len(sound)):
        written.path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        window = written.load()
        number = int(np.searchsorted(written.offsets, place, side="right")) - 1
        assert [(at, each.number) for at, each in window.damaged.items()] == [(ORDER.index(number), number)]
        intact = [each for each in ORDER if each != number]
        assert [data for at, data in enumerate(examples(window)) if ORDER[at] != number] == list(map(example, intact))


def test_truncations_are_found(written: Written) -> None:
    sound = written.path.read_bytes()
    bounds = {int(offset) + more for offset in written.offsets for more in (-1, 0, 1, 12)}
    for size in sorted(bounds & set(range(len(sound)))):
        written.path.write_bytes(sound[:size])
        lost = {number for number in range(RECORDS) if written.offsets[number + 1] > size}
        assert {each.number for each in written.load().damaged.values()} == lost


class Flickering(SliceFile):
    """A bit flips on the way, the first time."""

    def read(self, offset: int, room: memoryview) -> int:
        size = super().read(offset, room)
        if not hasattr(self, "has_flickered"):
            self.has_flickered = True
            room[30] ^= 1
        return size


def test_a_bit_that_flips_on_the_way_is_read_again(written: Written) -> None:
    window = written.load(written.open(Flickering))
    assert (examples(window), window.damaged) == ([example(number) for number in ORDER], {})


def test_tables_that_do_not_fit_the_slice_are_refused(written: Written) -> None:
    written.offsets[1] += 1
    with pytest.raises(DataError, match=r"the index of .* does not fit it"):
        written.load()
    written.offsets[1] -= 1
    written.blocks = dataclasses.replace(written.blocks, crc32c=written.blocks.crc32c ^ np.uint32(1))
    with pytest.raises(DataError, match=r"the table of blocks does not fit .* though its records are whole"):
        written.load()


PLACE = open_place("/slices/train-0.tfrecord")


def data_of(number: int) -> bytes:
    """The serialized example of this number: of other sizes and other bytes than its neighbours'."""
    return b"%d " % number * (1 + number % 3)


def window(numbers: Sequence[int], damaged: Sequence[int] = ()) -> Window:
    """These examples, and which of them are damaged."""
    datas = [data_of(number) for number in numbers]
    buffer = Buffer(sum(map(len, datas)) or 1)
    buffer.view[: sum(map(len, datas))] = b"".join(datas)
    sizes = np.array([len(data) for data in datas], np.int64)
    places = [place for place, number in enumerate(numbers) if number in damaged]
    return Window(
        buffer.address + np.cumsum(sizes) - sizes,
        sizes,
        np.array(numbers, np.int64),
        {place: DamagedRecord(PLACE, numbers[place], 0, None, "torn") for place in places},
        (buffer,),
    )


def lanes_of(total: int, lanes: int, cut: int, damaged: Sequence[int] = ()) -> list[Iterator[Window]]:
    """Examples 0 to before ``total``, run by run for each lane, in windows of ``cut``."""
    return [
        iter([window(range(first, min(first + cut, stop)), damaged) for first in range(start, stop, cut)])
        for start, stop in lane_runs(total, lanes)
    ]


def drawing(lanes: list[Iterator[Window]], size: int, spare: Spare | None = None, **how: object) -> Drawing:
    return Drawing(lanes, size, Reading(**how), lambda: spare)  # type: ignore[arg-type]


def in_turn(total: int, lanes: int) -> list[int]:
    """The order in which examples are taken from lanes, one of each at a time."""
    runs = [list(range(*run)) for run in lane_runs(total, lanes)]
    return [runs[number % lanes][number // lanes] for number in range(total)]


def require_own_bytes(batch: RecordBatch) -> None:
    assert batch.examples() == [data_of(number) for number in batch.numbers.tolist()]


@given(total=st.integers(1, 60), lanes=st.integers(1, 5), cut=st.integers(1, 9), size=st.integers(1, 16))
def test_lanes_are_drawn_from_in_turn_and_repeats_have_no_weight(total: int, lanes: int, cut: int, size: int) -> None:
    drawn = drawing(lanes_of(total, lanes, cut), size)
    found: list[int] = []
    for first in range(0, total, size):
        real = min(size, total - first)
        batch = drawn.batch(real)
        require_own_bytes(batch)
        assert batch.weights.tolist() == [1] * real + [0] * (size - real)
        assert batch.numbers[real:].tolist() == [batch.numbers[0]] * (size - real)
        found += batch.numbers[:real].tolist()
    assert found == in_turn(total, lanes)


@given(lanes=st.integers(1, 5), cut=st.integers(1, 9), damaged=st.lists(st.integers(0, 29), unique=True, max_size=29))
def test_damaged_records_alone_are_left_out_where_they_may_be(lanes: int, cut: int, damaged: list[int]) -> None:
    drawn = drawing(
        lanes_of(30, lanes, cut, damaged), 10, Spare(np.frombuffer(data_of(0), np.uint8), 0), on_damage=SKIP
    )
    batches = [drawn.batch(10) for _ in range(3)]
    order = in_turn(30, lanes)
    for first, batch in zip(range(0, 30, 10), batches, strict=True):
        wanted = order[first : first + 10]
        assert batch.weights.tolist() == [float(number not in damaged) for number in wanted]
        kept = batch.weights > 0
        assert batch.numbers[kept].tolist() == [number for number in wanted if number not in damaged]
        assert not set(batch.numbers[~kept].tolist()) & (set(damaged) - {0})
        require_own_bytes(batch)
    assert sum(batch.skipped for batch in batches) == len(damaged)


def test_damage_stops_the_reading_unless_it_may_be_skipped_so_often() -> None:
    def read(**how: object) -> None:
        drawn = drawing(lanes_of(30, 2, 4, [5, 6, 20]), 10, **how)  # type: ignore[arg-type]
        for _ in range(3):
            drawn.batch(10)

    with pytest.raises(DataError, match=r"is damaged at offset 0: key None, record 5 .*; repair it with"):
        read(on_damage=STOP)
    with pytest.raises(DataError, match="one more than --skip-limit 2 allows"):
        read(on_damage=SKIP, skip_limit=2)
    read(on_damage=SKIP, skip_limit=3)
