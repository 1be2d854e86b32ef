"""`inspect`: the example shown is the one in the slice, and its origin is right."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError, UsageError
from etl.formats.example import parse
from etl.formats.records import read_records
from etl.normalized.parts import read_record
from etl.storage.place import Place, open_place
from etl.verify.inspection import inspect_example, inspect_file, inspect_slice, open_record_file
from tests.lib.commands import failed, flip_bit, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.pictures.base import save

SLICE = "slices/default/train/train-00001-of-00002"


@pytest.fixture(scope="module")
def raw_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of two classes of 15, kept as raw pixels, in several packs and two training slices."""
    source, root = tmp_path_factory.mktemp("raw") / "source", tmp_path_factory.mktemp("raw") / "root"
    generator = np.random.default_rng(3)
    for number in range(30):
        path = source / ("left", "right")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save(generator.integers(0, 256, (9, 12, 3), dtype=np.uint8), "PNG"))
    columns = source.parent / "columns.csv"
    columns.write_text("key,patient\n" + "".join(f"left/{n:02d}.png,p{n // 4}\n" for n in range(0, 30, 2)))
    ingest_here(source, root, pack_size="2KB", columns=str(columns))
    normalize_here(root, "--size", 8, "--format", "raw")
    shard_here(root, "--workers", 2)
    return root


@pytest.fixture
def root(raw_root: Path, tmp_path: Path) -> Path:
    return shutil.copytree(raw_root, tmp_path / "root")


def records_of(path: Path) -> list[bytes]:
    with open(f"{path}.tfrecord", "rb") as stream:
        return [record.data for record in read_records(stream, str(path))]


def read_at(place: dict[str, Any], path: object) -> bytes:
    with open(str(path), "rb") as stream:
        stream.seek(place["offset"])
        return stream.read(place["size"])


def test_every_example_and_its_origin(raw_root: Path) -> None:
    """Slice, part and pack have this image's bytes at the places shown."""
    file = open_record_file(str(raw_root / SLICE))
    for number, data in enumerate(records_of(raw_root / SLICE)):
        example, shown = parse(data), inspect_example(file, number)
        key, position = example.key, shown["position"]
        assert (shown["key"], file.find(key)) == (key, number)
        assert {name: shown[name] for name in ("label", "text", "height")} == {
            "label": example.label,
            "text": key.partition("/")[0],
            "height": 8,
        }
        assert shown["encoded"]["bytes"] == len(example.encoded) == 8 * 8 * 3
        assert read_at(position, f"{raw_root / SLICE}.tfrecord")[12:-4] == data
        part, pack, image = (shown["origin"][name] for name in ("part", "pack", "image"))
        assert read_at(part, part["file"])[12:-4] == data
        assert records_of(Path(part["file"]).with_suffix(""))[part["record"]] == data
        source = read_at(pack, pack["file"])
        assert hashlib.sha256(source).hexdigest() == image["sha256"]
        assert (image["format"], image["width"], image["height"]) == ("png", 12, 9)
        assert Image.open(io.BytesIO(source)).size == (12, 9)
        side, _, name = key.partition("/")
        assert image["columns"] == ({"patient": f"p{int(name[:2]) // 4}"} if side == "left" else {})


def test_a_slice_is_summarised_by_any_of_its_names(raw_root: Path) -> None:
    data, records = (raw_root / f"{SLICE}.tfrecord").read_bytes(), records_of(raw_root / SLICE)
    for name in ("", ".tfrecord", ".idx", "/"):
        assert open_record_file(f"{raw_root / SLICE}{name}").name == "train/train-00001-of-00002"
    summary = inspect_file(open_record_file(f"file://{raw_root / SLICE}"))
    digest = hashlib.sha256(data).hexdigest()
    assert (summary["examples"], summary["bytes"], summary["sha256"]) == (len(records), len(data), digest)
    assert sum(summary["classes"].values()) == len(records)
    assert [row["key"] for row in summary["first"]] == [parse(record).key for record in records[:5]]


def test_a_part_can_be_inspected(raw_root: Path) -> None:
    path = sorted((raw_root / "normalized/parts").glob("*.tfrecord"))[1]
    file = open_record_file(str(path))
    assert inspect_file(file)["bytes"] == path.stat().st_size
    data = records_of(path.with_suffix(""))[3]
    example = inspect_example(file, 3)
    assert (example["key"], example["origin"]["part"]["record"]) == (parse(data).key, 3)
    with pytest.raises(UsageError, match="part pack-00001 has no example with the key 'nope'"):
        file.find("nope")


def swap(root: Path) -> None:
    """Put the other slice in the place of this one."""
    for ending in ("tfrecord", "idx"):
        shutil.copy(root / f"slices/default/train/train-00000-of-00002.{ending}", root / f"{SLICE}.{ending}")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda root: flip_bit(root / f"{SLICE}.tfrecord", 40), "wrong CRC of the data at offset 0"),
        (lambda root: os.truncate(root / f"{SLICE}.tfrecord", 30), "ends within the record at offset 0"),
        (lambda root: (root / f"{SLICE}.tfrecord").unlink(), r"\.tfrecord is missing"),
        (swap, "at offset|of examples.parquet"),
        (lambda root: flip_bit(root / "slices/default/manifest.json", 1500), "edited or damaged"),
    ],
)
def test_damage_is_reported_with_a_remedy(damage: Callable[[Path], None], line: str, root: Path) -> None:
    """Of the bytes of one record, and of what leads to it; whole slices are those of `verify`."""
    damage(root)
    with pytest.raises(DataError, match=line) as raised:
        inspect_slice(str(root / SLICE), 0, None, (None, False), as_json=True)
    remedies = (f"ringslice verify {root} --name default --repair", "put the original back")
    assert any(remedy in str(raised.value) for remedy in remedies)


class FileOfHdfs(io.BytesIO):
    """A file that cannot seek behind its end: hdfs-native panics there."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence != io.SEEK_SET or offset <= len(self.getbuffer())
        return super().seek(offset, whence)


def test_a_record_behind_the_end_of_a_file_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "open_input", lambda place: pa.PythonFile(FileOfHdfs(b"cut"), mode="r"))
    with pytest.raises(DataError, match="ends within the record at offset 9"):
        read_record(open_place(str(tmp_path)), 9, 20)


def test_a_label_without_a_class_is_named(root: Path) -> None:
    path = root / "slices/default/examples.parquet"
    rows = pq.read_table(path)
    field = rows.schema.get_field_index("label")
    pq.write_table(rows.set_column(field, rows.schema.field(field), pa.array([2] * len(rows), pa.int32())), path)
    with pytest.raises(DataError, match=r"examples\.parquet has the label 2, and there are 2 classes; "):
        inspect_file(open_record_file(str(root / SLICE)))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("ROOT/slices/default/train/train-00009-of-00002", "has no slice train/train-00009-of-00002"),
        ("ROOT/raw/packs/pack-00000.tar", "is not a slice"),
        ("TMP/nothing", "is not a slice: there is no manifest.json above it"),
        ("SLICE --index 99", "out of range: slice train/train-00001-of-00002 has 12 examples, 0 to 11"),
        ("SLICE --key nope", "has no example with the key 'nope'"),
        ("SLICE --key a --index 1", "give either --index or --key"),
        ("SLICE --save TMP/x.png", "with --save"),
        ("SLICE --index 0 --save TMP/missing/x.png", "no such folder"),
    ],
)
def test_what_is_not_there(words: str, line: str, raw_root: Path, tmp_path: Path) -> None:
    places = words.replace("SLICE", f"ROOT/{SLICE}").split()
    placed = [word.replace("ROOT", str(raw_root)).replace("TMP", str(tmp_path)) for word in places]
    failed(ringslice_here("inspect", *placed), 2, line)
    assert not list(tmp_path.iterdir())


def test_the_image_is_saved(raw_root: Path, digits_root: Path, tmp_path: Path) -> None:
    """Raw pixels become a PNG of the same pixels, encoded images keep their bytes; --force replaces a file."""
    example = parse(records_of(raw_root / SLICE)[2])
    target = tmp_path / "image.png"
    words = ("--key", example.key, "--save", target)
    saved = json.loads(succeeded(ringslice_here("inspect", raw_root / SLICE, *words, "--json")).stdout)["saved"]
    assert saved == {"file": str(target), "format": "PNG", "bytes": target.stat().st_size}
    assert np.asarray(Image.open(target)).tobytes() == example.encoded
    target.write_text("mine")
    failed(ringslice_here("inspect", raw_root / SLICE, *words), 2, "already exists")
    assert target.read_text() == "mine"
    link = raw_root / "slices/default/manifest.json"
    (tmp_path / "link").symlink_to(link)
    for name in (link, tmp_path / "link"):
        failed(ringslice_here("inspect", raw_root / SLICE, *words[:3], name, "--force"), 2, "lies among the files of")
    (tmp_path / "link").unlink()
    digit = digits_root / "slices/default/train/train-00000-of-00008"
    shown = succeeded(ringslice_here("inspect", digit, "--index", 1, "--save", target, "--force"))
    assert target.read_bytes() == parse(records_of(digit)[1]).encoded
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]
    for word in ("label", "encoded", "position", "origin", "pack"):
        assert word in shown.stdout


def test_a_missing_origin_is_reported(root: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(root / "slices/default", tmp_path / "copied")
    outside = inspect_example(open_record_file(str(copied / "train/train-00001-of-00002")), 1)
    assert outside["origin"] == {"unknown": "these slices lie outside of their dataset"}
    file = open_record_file(str(root / SLICE))
    shutil.rmtree(root / "raw")
    origin = inspect_example(file, 0)["origin"]
    assert origin.keys() == {"part", "image", "unknown"}
    assert "is not there any more" in origin["unknown"]
    for path in (root / "normalized/parts").glob("*.parquet"):
        table = pq.read_table(path)
        column = table.schema.get_field_index("sha256")
        others = pa.array([bytes(32)] * table.num_rows, pa.binary(32))
        pq.write_table(table.set_column(column, table.schema.field(column), others), path)
    for line in ("another image called", "is not there any more"):
        origin = inspect_example(file, 0)["origin"]
        assert origin.keys() == {"unknown"}
        assert line in origin["unknown"]
        shutil.rmtree(root / "normalized", ignore_errors=True)
