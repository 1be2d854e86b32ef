"""The command shard: groups of workers, splits by number, kept splits, what is left out; and who else can read it."""

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError, UsageError
from etl.formats.example import parse, picture_of
from etl.formats.records import read_records
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage
from etl.storage.place import open_place
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from tests.conftest import TreeMaker
from tests.lib.commands import REPOSITORY, run, succeeded
from tests.lib.inline import ingest_here, normalize_here, refused, shard_here

SMALL = ("--size", "8", "--format", "png")
SCHEMA = json.loads((REPOSITORY / "etl/slices/schemas/manifest.json").read_text())


def manifest_of(root: Path, name: str = "default") -> dict[str, Any]:
    """The manifest, if it is as its schema says."""
    manifest = read_manifest(slices_stage(open_place(str(root)), name))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    return manifest


@pytest.fixture
def normalized(make_tree: TreeMaker, tmp_path: Path) -> Path:
    """A root of 60 normalised images of two classes, in several packs."""
    root = tmp_path / "root"
    source = make_tree({"a": 40, "b": 20})
    ingest_here(source, root, pack_size="8KB")
    normalize_here(root, *SMALL)
    return root


def test_groups_and_workers_have_folders_and_equal_shares(normalized: Path) -> None:
    shard_here(normalized, "--workers", 6, "--groups", 3, "--slices", 12, "--split", "train=0.9,test=0.1")
    manifest = manifest_of(normalized)
    train = manifest["splits"]["train"]
    names = [each["name"] for each in train["slices"]]
    assert names[:6] == [f"train/group-{n % 3}/worker-{n // 3}/train-{n:05d}-of-00012" for n in range(6)]
    assert all((normalized / "slices/default" / f"{name}.tfrecord").exists() for name in names)
    assert [group["records"] for group in train["groups"]] == [18, 18, 18]
    assert [worker["records"] for group in train["groups"] for worker in group["workers"]] == [9] * 6
    own = Manifest.from_json(manifest).of_group(1)
    assert [each.name for each in own.splits["train"]] == names[1::3]
    assert own.splits["test"] == Manifest.from_json(manifest).splits["test"]


def test_splits_by_number_and_slices_by_size(normalized: Path) -> None:
    words = ("--slice-size", "2KB", "--split", "train=rest,validation=7,test=10")
    shard_here(normalized, "--workers", 2, *words)
    splits = manifest_of(normalized)["splits"]
    assert {name: split["records"] for name, split in splits.items()} == {"train": 43, "validation": 7, "test": 10}
    slices = splits["train"]["slices"]
    assert len(slices) == 2 * math.ceil(sum(each["bytes"] for each in slices) / 2000 / 2)
    assert splits["test"]["by_class"] in ([7, 3], [6, 4])  # 6.67 and 3.33, each within one


def test_full_splits_are_the_default(make_tree: TreeMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, splits = tmp_path / "root", ["test", "train", "train"] * 3
    rows = [f"a/{number:03d}.png,a,{split},{number}" for number, split in enumerate(splits)]
    listed = make_tree({"a": 10}) / "list.csv"
    for name, more in ("some", ["a/009.png,a,,9"]), ("all", []):
        listed.write_text("\n".join(["path,label,split,patient", *rows, *more]))
        ingest_here(listed, root, max_removed="1")
        normalize_here(root, *SMALL)
        shard_here(root, "--name", name, "--workers", 1)
    assert [manifest_of(root, name)["config"]["split"] == "source" for name in ("some", "all")] == [False, True]
    assert capsys.readouterr().err.count("not every image has a split of the source's own: --split train=0.8,") == 1
    shard_here(root, "--name", "grouped", "--workers", 1, "--group-by", "patient")
    assert "the source's own splits are not used with --group-by: --split train=0.8," in capsys.readouterr().err


def test_wrong_use_is_one_line(normalized: Path, tmp_path: Path) -> None:
    refused(Shard, 2, "--workers 4 cannot be cut into --groups 3", normalized, "--workers", 4, "--groups", 3)
    refused(Shard, 1, "--split asks for more examples than there are (60)", normalized, "--split", "train=rest,test=61")
    refused(Shard, 2, f"--remove {tmp_path}: is not a file; give a text", normalized, "--remove", tmp_path)
    refused(Shard, 2, "contradict each other", normalized, "--group-by", "patient", "--split", "source")


@pytest.mark.parametrize("file", ["parts/pack-00001.parquet", "parts/pack-00001.tfrecord"])
def test_a_part_that_is_missing_or_damaged_is_named_with_what_to_do(normalized: Path, file: str) -> None:
    path, remedy = normalized / "normalized" / file, f"; put it back, or run: ringslice verify {normalized} --repair"
    path.write_bytes(path.read_bytes()[:-20])
    refused(Shard, 1, remedy, normalized, "--workers", 2)
    path.unlink()
    refused(Shard, 1, f"{path} is missing{remedy}", normalized, "--workers", 2)


def test_a_list_of_a_pack_that_is_missing_is_named(normalized: Path, make_tree: TreeMaker) -> None:
    path = normalized / "raw/packs/pack-00000.parquet"
    path.unlink()
    refused(Normalize, 1, f"{path} is missing; put it back, or ingest again", normalized, *SMALL, "--overwrite")
    with pytest.raises(DataError, match=r"pack-00000\.parquet is missing; put it back, or ingest again"):
        ingest_here(make_tree({"a": 41, "b": 20}), normalized, pack_size="8KB")


@pytest.mark.integration
def test_the_tfrecord_package_reads_slices_by_their_index(digits_root: Path) -> None:
    """All records, in order; the independent checker reads them with TensorFlow."""
    folder = digits_root / "slices/default"
    lines = succeeded(run("python", "tests/lib/read_by_index.py", folder)).stdout.splitlines()
    ours = []
    for split in manifest_of(digits_root)["splits"].values():
        for each in split["slices"]:
            with (folder / f"{each['name']}.tfrecord").open("rb") as stream:
                examples = [parse(record.data) for record in read_records(stream, each["name"])]
            ours += [[each.key, each.label, hashlib.sha256(each.encoded).hexdigest()] for each in examples]
    assert [json.loads(line) for line in lines] == ours
    assert len(ours) == 1797


def sliced(root: Path, *words: object) -> dict[str, Any]:
    """The manifest of images that are normalised with these options."""
    normalize_here(root, *words)
    shard_here(root, "--workers", 1, "--split", "train=1")
    return manifest_of(root)


def test_images_may_differ_in_size(tmp_path: Path) -> None:
    (tmp_path / "source/a").mkdir(parents=True)
    for number, size in enumerate([(30, 20), (20, 50), (7, 5)]):
        Image.new("RGB", size).save(tmp_path / f"source/a/{number}.png")
    root = tmp_path / "root"
    ingest_here(tmp_path / "source", root)
    manifest = sliced(root, "--size", 10, "--fit", "shorter", "--only-shrink", "--format", "raw")
    assert (manifest["image"]["height"], manifest["image"]["width"]) == (None, None)
    assert manifest["statistics"]["pixels"] == 10 * 15 + 25 * 10 + 5 * 7
    rows = pq.read_table(root / "slices/default/examples.parquet").sort_by("key")
    assert list(zip(rows["width"].to_pylist(), rows["height"].to_pylist(), strict=True)) == [(15, 10), (10, 25), (7, 5)]
    with pytest.raises(UsageError, match=r"differ in size.*--fit"):
        _ = Manifest.from_json(manifest).size


def test_floats_travel_with_the_numbers_that_made_them(make_tree: TreeMaker, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest_here(make_tree({"a": 3}), root)
    words = ("--size", 8, "--format", "float16", "--subtract", "127.5", "--divide-by", "58.4,57.1,57.4")
    manifest = Manifest.from_json(sliced(root, *words))
    assert (manifest.format, manifest.size) == ("FLOAT16", (8, 8))
    assert (manifest.subtract, manifest.divide_by) == ((127.5,) * 3, (58.4, 57.1, 57.4))
    with (root / "slices/default/train/train-00000-of-00001.tfrecord").open("rb") as stream:
        examples = [parse(record.data) for record in read_records(stream, "x")]
    for example in examples:
        floats = np.frombuffer(example.encoded, "<f2").reshape(8, 8, 3).astype(float)
        levels = floats * manifest.divide_by + manifest.subtract
        assert np.abs(levels - np.rint(levels)).max() < 0.1
        assert picture_of(example)[1] == "PNG"


CHECKER = "tests/lib/independent_checker.py"


@pytest.mark.witness
@pytest.mark.integration
def test_the_independent_checker_agrees(digits_root: Path, digits: Path) -> None:
    finished = succeeded(run("python", CHECKER, digits_root / "slices/default", digits))
    assert "{'train': 1437, 'validation': 180, 'test': 180}" in finished.stdout


@pytest.mark.integration
def test_the_independent_checker_would_not_agree_otherwise(digits_root: Path, digits: Path, tmp_path: Path) -> None:
    more = shutil.copytree(digits, tmp_path / "more")
    shutil.copy(more / "0/0000.png", more / "0/another.png")
    finished = run("python", CHECKER, digits_root / "slices/default", more)
    assert "not in any slice: ['0/another.png']" in finished.stderr
