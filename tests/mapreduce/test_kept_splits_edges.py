"""Odd histories of splits: copies, names used twice, killed and repeated nights, files that are not there."""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.errors import RingsliceError, UsageError
from etl.slices.prune import prune
from etl.storage.place import open_place
from mapreduce import shard as shard_module
from mapreduce.shard import Shard
from tests.lib.inline import refused, shard_here
from tests.lib.nights import SHARES, Nights, nights, patients, some_png, splits_of_patients, told
from tests.lib.sources.parquet_images import image_column, write_parquet

__all__ = ["nights"]  # a fixture


def by_split_folders(nights: Nights, files: dict[str, int]) -> None:
    shutil.rmtree(nights.source, ignore_errors=True)
    for name, number in files.items():
        (nights.source / name).parent.mkdir(parents=True, exist_ok=True)
        (nights.source / name).write_bytes(some_png(number))
    nights.ingest(split_folders=True)


def key_splits(nights: Nights, name: str) -> dict[str, str]:
    rows = pq.read_table(nights.root / "slices" / name / "examples.parquet").to_pylist()
    return {row["key"]: row["split"] for row in rows}


SOURCE_WITH_COPIES = {f"train/a/{n}.png": n for n in range(6)} | {f"test/a/{n}.png": n for n in (0, 10, 11)}
PLAIN = ("--workers", 1, "--slices", 1, "--splits-from", "newest")


def test_a_content_of_two_splits_keeps_both_while_one_copy_is_away(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    by_split_folders(nights, SOURCE_WITH_COPIES)
    shard_here(nights.root, *PLAIN, "--name", "n1")
    first = key_splits(nights, "n1")
    assert (first["train/a/0.png"], first["test/a/0.png"]) == ("train", "test")
    by_split_folders(nights, {key: n for key, n in SOURCE_WITH_COPIES.items() if key != "test/a/0.png"})
    shard_here(nights.root, *PLAIN, "--name", "n2")
    by_split_folders(nights, SOURCE_WITH_COPIES)
    shard_here(nights.root, *PLAIN, "--name", "n3")
    assert key_splits(nights, "n3") == first


def test_dropping_duplicates_for_a_night_moves_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    files = {f"train/a/{n}.png": n for n in range(6)} | {f"test/a/{n}.png": n for n in (0, 1, 10)}
    by_split_folders(nights, files)
    shard_here(nights.root, *PLAIN, "--name", "n1")
    shard_here(nights.root, *PLAIN, "--name", "n2", "--drop-duplicates")
    shard_here(nights.root, *PLAIN, "--name", "n3")
    assert key_splits(nights, "n3") == key_splits(nights, "n1")


@pytest.mark.parametrize("shares", ["train=0.9,test=0.1", "train=rest,test=20", "train=0.8,validation=0.1,test=0.1"])
def test_images_that_come_in_pairs_leave_every_split_its_share(shares: str, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    for kind in range(20):
        folder = nights.source / f"c{kind:02d}"
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number}.png").write_bytes(some_png(100 * kind + number // 2))
    nights.ingest()
    shard_here(nights.root, *PLAIN, "--name", "n1", "--split", shares)
    counts = Counter(key_splits(nights, "n1").values())
    assert counts["test"] in (18, 19, 20, 21, 22), counts  # of 200; off by the copies of an image


def test_an_experiments_name_asked_again_with_newest_is_not_done_before(nights: Nights) -> None:
    first = nights.night()
    shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x")
    try:
        shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x", "--splits-from", "newest")
    except UsageError:
        return  # it holds another shard
    assert nights.splits("x") == first


def kill(monkeypatch: pytest.MonkeyPatch, nights: Nights, *words: object) -> None:
    """A run that ends before its manifest is written."""
    with monkeypatch.context() as patched:
        patched.setattr(shard_module, "build_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shard_here(nights.root, *SHARES, *words)


def test_a_killed_experiment_resumed_with_newest_begins_no_second_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nights.night()
    kill(monkeypatch, nights, "--seed", 7, "--name", "x")
    shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x", "--splits-from", "newest")
    assert nights.splits("x") == first
    assert nights.night() == first


def test_a_killed_night_that_is_tried_again_after_the_next_does_not_block_the_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nights.night()
    kill(monkeypatch, nights, "--name", "late", "--splits-from", "newest")
    assert nights.night() == first
    try:
        shard_here(nights.root, *SHARES, "--name", "late", "--splits-from", "newest")
    except UsageError:
        pass  # a line that says so would do
    assert nights.night() == first


def test_a_night_is_done_before_though_its_parent_is_pruned(nights: Nights) -> None:
    nights.night()
    nights.night()
    prune(open_place(str(nights.root)), keep=1)
    shard_here(nights.root, *SHARES, "--splits-from", "newest", "--name", "night-2")


def test_slices_replaced_from_themselves_survive_a_kill(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nights.night("--seed", 5)
    own = ("--name", "night-1", "--splits-from", "night-1", "--overwrite")
    try:
        kill(monkeypatch, nights, *own)
        shard_here(nights.root, *SHARES, *own)
    except UsageError:  # refused: then nothing may be lost
        pass
    assert nights.splits("night-1") == first


def test_a_second_conflict_does_not_forget_the_first(nights: Nights, tmp_path: Path) -> None:
    table = patients(nights, tmp_path)
    nights.night("--group-by", "patient", columns=table)
    by_patient = splits_of_patients(nights, table)
    trained = next(patient for patient, split in by_patient.items() if split == "train")
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    one, two = [key for key, patient in patient_of.items() if by_patient[patient] == "test"][:2]
    words = (*SHARES, "--name", "x", "--splits-from", "newest", "--group-by", "patient")
    listed = nights.root / "slices/x.conflicts.txt"
    nights.ingest(columns=patients(nights, tmp_path, {one: trained}))
    refused(Shard, 1, "1 images were in another split", nights.root, *words)
    nights.ingest(columns=patients(nights, tmp_path, {one: trained, two: trained}))
    refused(Shard, 1, "1 images were in another split", nights.root, *words, "--remove", listed)
    shard_here(nights.root, *words, "--remove", listed)  # all that is left out so far, and what is new


def test_images_that_exchange_their_names_are_kept(nights: Nights) -> None:
    nights.night()
    splits = key_splits(nights, "night-1")
    one, two = [nights.source / key for key, split in sorted(splits.items()) if split == "train"][:2]
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    nights.night()
    assert nights.known() == told(kept=40)


def test_splits_from_a_file_that_is_not_there(nights: Nights) -> None:
    nights.night()
    for name in ("nothing", "manifest.jsno", "examples.parquet"):
        asked = nights.root / "slices/night-1" / name
        refused(Shard, 2, "no slices there", nights.root, *SHARES, "--name", "x", "--splits-from", asked)


@pytest.mark.parametrize("key", [" ", "\u3000"])
def test_a_key_of_odd_blanks_can_be_removed(key: str, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    images = image_column([some_png(number) for number in range(9)])
    keys = [key, *(f"k{number}" for number in range(8))]
    table = pa.table({"image": images, "label": ["x"] * 9, "id": keys})
    write_parquet(open_place(str(nights.source / "all.parquet")), table)
    nights.ingest(key_column="id")
    listed = tmp_path / "gone.txt"
    listed.write_text(f"{key}\nk0\n", encoding="utf-8")  # as ROOT/slices/NAME.conflicts.txt is written
    shard_here(nights.root, *SHARES, "--name", "x", "--remove", listed)
    assert not {key, "k0"} & set(key_splits(nights, "x"))


@pytest.mark.parametrize("text", ["[]", '"x"'])
def test_a_manifest_of_an_experiment_that_is_no_object_is_named_in_a_line(text: str, nights: Nights) -> None:
    nights.night()
    (nights.root / "slices/experiment").mkdir()
    (nights.root / "slices/experiment/manifest.json").write_text(text)
    with pytest.raises(RingsliceError, match=r"manifest\.json"):
        shard_here(nights.root, *SHARES, "--name", "x", "--splits-from", "newest")
