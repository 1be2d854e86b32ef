"""A window of a slice's records: every byte is checked, and of what is damaged only the record is lost."""

import ctypes
import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.formats.example import ImageExample, serialize
from etl.formats.records import parse_index
from etl.slices.manifest import Slice
from etl.slices.writer import blocks_place, write_slice
from etl.storage.place import Place, open_place
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

    def load(self, check: bool = True, file: SliceFile | None = None) -> Window:
        plan = WindowPlan(Stretch(0, np.array(ORDER, np.int64)), self.blocks, self.offsets)
        return load_window(self.folder, file or self.open(), plan, check)

    def open(self, kind: type[SliceFile] = SliceFile) -> SliceFile:
        return kind(self.folder, self.slice, None, Patience(0), lambda offset: None)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(open_place(str(tmp_path)))


def examples(window: Window) -> list[bytes]:
    return [ctypes.string_at(*each) for each in zip(window.addresses.tolist(), window.sizes.tolist(), strict=True)]


def test_records_come_in_the_order_of_the_epoch(written: Written) -> None:
    for check in (True, False):
        window = written.load(check)
        assert examples(window) == [example(number) for number in ORDER]
        assert window.numbers.tolist() == [10 + number for number in ORDER]
        assert window.damaged == {}


def test_every_flipped_byte_is_told_of_its_record_alone(written: Written) -> None:
    sound = written.path.read_bytes()
    for place in range(len(sound)):
        written.path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        window = written.load()
        number = int(np.searchsorted(written.offsets, place, side="right")) - 1
        assert [(at, each.number) for at, each in window.damaged.items()] == [(ORDER.index(number), number)]
        intact = [each for each in ORDER if each != number]
        assert [data for at, data in enumerate(examples(window)) if ORDER[at] != number] == list(map(example, intact))


def test_truncations_are_told(written: Written) -> None:
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
    window = written.load(file=written.open(Flickering))
    assert (examples(window), window.damaged) == ([example(number) for number in ORDER], {})


def test_tables_that_do_not_fit_the_slice_are_told(written: Written) -> None:
    written.offsets[1] += 1
    with pytest.raises(DataError, match=r"the index of .* does not fit it"):
        written.load()
    written.offsets[1] -= 1
    written.blocks = dataclasses.replace(written.blocks, crc32c=written.blocks.crc32c ^ np.uint32(1))
    with pytest.raises(DataError, match=r"the table of blocks does not fit .* though its records are whole"):
        written.load()
