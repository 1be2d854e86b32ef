import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import DataError
from etl.storage import open_place
from etl.verify import verify
from tests.conftest import TreeMaker, ringslice, succeeded

Damage = Callable[[Path], None]
SLICE = "train/train-00000-of-00002"


@pytest.fixture(scope="module")
def small_root(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """A root of 60 digits in two training slices of about 24."""
    source, root = tmp_path_factory.mktemp("small") / "source", tmp_path_factory.mktemp("small") / "root"
    for label in "012":
        (source / label).mkdir(parents=True)
        for path in sorted((digits / label).iterdir())[:20]:
            shutil.copy(path, source / label)
    options = ("-r", "inline", "--size", 8, "--color", "gray", "--format", "png", "--workers", 2)
    succeeded(ringslice("pipeline", source, root, *options))
    return root


def flip(name: str, position: int) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[position] ^= 1
        (folder / name).write_bytes(bytes(data))

    return damage


def drop_last_record(folder: Path) -> None:
    offset = int((folder / f"{SLICE}.idx").read_text().splitlines()[-1].split()[0])
    path = folder / f"{SLICE}.tfrecord"
    path.write_bytes(path.read_bytes()[:offset])


def double_last_record(folder: Path) -> None:
    offset = int((folder / f"{SLICE}.idx").read_text().splitlines()[-1].split()[0])
    path = folder / f"{SLICE}.tfrecord"
    path.write_bytes(path.read_bytes() + path.read_bytes()[offset:])


def swap_slices(folder: Path) -> None:
    first, second = (folder / f"train/train-0000{number}-of-00002.tfrecord" for number in (0, 1))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


def change_manifest(change: Callable[[dict], None]) -> Damage:  # type: ignore[type-arg]
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return damage


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (flip(f"{SLICE}.tfrecord", 3), "wrong CRC of the length at offset 0"),
        (flip(f"{SLICE}.tfrecord", 200), "wrong CRC of the data"),
        (flip(f"{SLICE}.idx", 2), "does not fit"),
        (flip("examples.parquet", 300), "examples.parquet has another SHA-256"),
        (flip("blocks.parquet", 30), "blocks.parquet has another SHA-256"),
        (drop_last_record, "the manifest tells of"),
        (double_last_record, "holds"),
        (swap_slices, "the table of examples tells of"),
        (lambda folder: (folder / f"{SLICE}.tfrecord").unlink(), f"{SLICE}.tfrecord"),
        (lambda folder: (folder / f"{SLICE}.idx").unlink(), f"{SLICE}.idx"),
        (lambda folder: (folder / "class_counts.parquet").unlink(), "class_counts.parquet is missing"),
        (change_manifest(lambda manifest: manifest["splits"]["train"].update(by_class=[1, 2, 3])), "by class"),
        (change_manifest(lambda manifest: manifest.update(input="0" * 64)), "made from other data"),
        (flip("../../normalized/parts/pack-00000.parquet", 200), "pack-00000.parquet has another SHA-256"),
    ],
)
def test_damage_is_found_and_named(small_root: Path, tmp_path: Path, damage: Damage, line: str) -> None:
    root = shutil.copytree(small_root, tmp_path / "root")
    assert verify(open_place(str(root)), "default").facts["examples"] == 60
    damage(root / "slices" / "default")
    with pytest.raises(DataError, match="does not hold what is said of it") as raised:
        verify(open_place(str(root)), "default")
    assert line in str(raised.value), raised.value


@pytest.mark.parametrize("name", ["normalized/parts/pack-00000.tfrecord", "raw/packs/pack-00000.tar"])
def test_every_stage_checks_packs_and_parts(small_root: Path, tmp_path: Path, name: str) -> None:
    root = shutil.copytree(small_root, tmp_path / "root")
    assert verify(open_place(str(root)), "default", every_stage=True)
    flip(name, 700)(root)
    assert verify(open_place(str(root)), "default")
    with pytest.raises(DataError, match=f"{Path(name).name} has another SHA-256"):
        verify(open_place(str(root)), "default", every_stage=True)


def test_an_example_that_was_never_dealt_is_named(small_root: Path, tmp_path: Path, make_tree: TreeMaker) -> None:
    """Slices that are right in themselves, but lack a good image that ``normalized`` tells of."""
    root, other = shutil.copytree(small_root, tmp_path / "root"), tmp_path / "other"
    options = ("-r", "inline", "--size", 8, "--color", "gray", "--format", "png", "--workers", 2)
    source = make_tree({"0": 20, "1": 20, "2": 19})
    succeeded(ringslice("pipeline", source, other, *options))
    shutil.rmtree(root / "normalized")
    shutil.copytree(other / "normalized", root / "normalized")
    with pytest.raises(DataError, match="59 images are good, and they are not the same") as raised:
        verify(open_place(str(root)), "default")
    assert "in the slices 1 times, 0 times good" in str(raised.value) or "not (or not so) in the slices" in str(
        raised.value
    )
