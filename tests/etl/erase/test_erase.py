"""Images that are erased: no file below a root has their bytes, all others stay as they are, by the real stages."""

import json
import re
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etl.erase import command
from etl.errors import UsageError
from etl.formats.example import parse
from etl.formats.records import read_records
from etl.normalized.erased import record_images
from etl.slices.history import lineage_ends, read_finished
from etl.stages.layout import normalized_stage, raw_stage, slices_stage
from etl.stages.lease import BusyError
from etl.storage.place import Place, open_place
from mapreduce.verify import Verify
from tests.lib.commands import Finished, contents, failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import erase_here, ingest_here, normalize_here, refused, run_here, shard_here
from tests.lib.nights import some_png

NORMALIZED = ("--size", 8, "--format", "raw", "--min-side", 2, "--max-rejects", 0.5)
SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5")
NO_IMAGE = some_png(300, width=1)  # too narrow


class Dataset:
    """A source of three classes and its root, after some nights, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.root, self.listed = folder / "source", folder / "root", folder / "keys.txt"

    def night(self, name: str, *words: object) -> None:
        self.run_stages()
        shard_here(self.root, *SHARES, "--splits-from", "newest", "--name", name, *words)

    def run_stages(self, max_removed: str = "1") -> None:
        ingest_here(self.source, self.root, max_removed=max_removed, pack_size="4KB", packs_at_once="1")
        normalize_here(self.root, *NORMALIZED)

    def erase(self, *keys: str, **how: bool) -> dict[str, Any]:
        self.listed.write_text("".join(f"{key}\n" for key in keys))
        return erase_here(self.root, self.listed, **how).facts

    def splits(self, name: str) -> dict[str, str]:
        rows = pq.read_table(self.root / "slices" / name / "examples.parquet").to_pylist()
        return {row["key"]: row["split"] for row in rows}

    def ends(self) -> list[str]:
        return [stage.folder.name for stage in lineage_ends(read_finished(open_place(str(self.root))))]


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two nights and an experiment; between the nights an image was deleted, and one was changed."""
    data = Dataset(tmp_path_factory.mktemp("nights"))
    for name, first in (("ant", 0), ("bee", 100), ("cat", 200)):
        (data.source / name).mkdir(parents=True)
        for number in range(8):
            (data.source / name / f"{number:02}.png").write_bytes(some_png(first + number))
    (data.source / "bee" / "wrong.png").write_bytes(NO_IMAGE)
    shutil.copy(data.source / "ant/03.png", data.source / "cat/copy.png")
    data.night("night-1")
    (data.source / "ant/05.png").unlink()
    (data.source / "ant/06.png").write_bytes(some_png(900))
    (data.source / "bee/new.png").write_bytes(some_png(901))
    data.night("night-2")
    shard_here(data.root, *SHARES, "--name", "experiment", "--seed", 7)
    run_here(Verify, data.root, "--name", "night-2")
    return data


@pytest.fixture
def data(nights: Dataset, tmp_path: Path) -> Dataset:
    return Dataset(shutil.copytree(nights.folder, tmp_path / "nights"))


# 03 has a copy, 05 is gone from the source, 06 has changed, wrong.png is a reject
KEYS = ("ant/03.png", "ant/05.png", "ant/06.png", "bee/wrong.png")
BYTES = (some_png(3), some_png(5), some_png(6), some_png(900), NO_IMAGE)
GONE = {*KEYS, "cat/copy.png"}


def encoded(root: Path, keys: set[str]) -> set[bytes]:
    """What the examples with these keys hold, in all parts and slices."""
    found = set()
    for file in [*root.glob("normalized/parts/*.tfrecord"), *root.glob("slices/*/*/*.tfrecord")]:
        with file.open("rb") as stream:
            for record in read_records(stream, str(file)):
                example = parse(record.data)
                if example.key in keys:
                    found.add(example.encoded)
    return found


def files_with(root: Path, needles: set[bytes]) -> list[str]:
    return [name for name, data in contents(root).items() if any(needle in data for needle in needles)]


def run_named_command(finished: Finished) -> None:
    (command,) = re.findall(r"without these images: ringslice (shard .*)", finished.stderr)
    succeeded(ringslice_here(*shlex.split(command), "-r", "inline"))


def test_no_file_has_what_was_erased_once_its_slices_are_made_again(data: Dataset) -> None:
    needles = {*BYTES, *encoded(data.root, GONE)}
    assert len(needles) == len(BYTES) + 4
    assert len(files_with(data.root, needles)) > 8
    before, kept = data.splits("night-2"), contents(data.root / "slices")
    data.listed.write_text("".join(f"{key}\n" for key in KEYS))
    words = ("erase", data.root, "--keys", data.listed, "-r", "inline", "--json")
    finished = ringslice_here(*words)
    failed(finished, 1, "3 sets of slices still contain these images (experiment, night-1, night-2); raw and")
    facts = json.loads(finished.stdout)
    assert (facts["contents"], facts["copies"], facts["copied_keys"]) == (5, 1, ["cat/copy.png"])
    assert (facts["images"], facts["unknown_keys"]) == (4, 0)
    assert contents(data.root / "slices") == kept
    assert files_with(data.root / "raw", needles) == files_with(data.root / "normalized", needles) == []
    refused(Verify, 1, "was erased, and is still here", data.root, "--name", "night-2", one_line=False)
    run_named_command(finished)
    for name in facts["remaining_slices"]:
        shutil.rmtree(data.root / "slices" / name)
    again = json.loads(succeeded(ringslice_here(*words)).stdout)
    assert (again["images"], again["unknown_keys"], again["remaining_slices"]) == (0, 0, {})
    assert files_with(data.root, needles) == []
    assert data.ends() == ["night-2-erased"]
    assert data.splits("night-2-erased") == {key: split for key, split in before.items() if key not in GONE}
    run_here(Verify, data.root, "--name", "night-2-erased", "--every-stage")
    assert not list(data.root.rglob("_work"))
    assert {path.name for path in (data.root / "erased").iterdir()} == {
        "images.parquet",
        "generations.json",
        "keys.txt",
    }


@pytest.mark.integration
def test_an_image_is_erased_from_slices_that_know_only_its_copies(data: Dataset) -> None:
    shutil.copy(data.source / "ant/03.png", data.source / "ant/later.png")
    data.run_stages()
    data.listed.write_text("ant/later.png\nnobody\n")
    finished = ringslice_here("erase", data.root, "--keys", data.listed, "-r", "inline")
    assert "erase: 1 of 2 keys are unknown: 'nobody'" in finished.stderr
    run_named_command(finished)
    assert not {"ant/03.png", "cat/copy.png", "ant/later.png"} & data.splits("night-2-erased").keys()


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_next_night_keeps_the_splits(is_gone: bool, data: Dataset) -> None:
    """An image that the source still has comes back, to its split; what was erased does not count as removed."""
    before = data.splits("night-2")
    data.erase(*KEYS)
    for key in GONE - {"ant/05.png"} if is_gone else ():
        (data.source / key).unlink()
    kept = contents(data.root, "versions.parquet")
    data.run_stages(max_removed="0")
    assert json.loads((data.root / "raw/run.json").read_text()).get("removed", 0) == 0
    assert (contents(data.root, "versions.parquet") == kept) is is_gone
    data.night("night-3")
    assert data.splits("night-3") == {key: split for key, split in before.items() if not (is_gone and key in GONE)}
    assert data.ends() == ["night-3"]
    run_here(Verify, data.root, "--name", "night-3", "--every-stage")


def test_parts_are_those_that_normalize_makes(data: Dataset, tmp_path: Path) -> None:
    assert data.erase(*KEYS)["rebuilt_packs"] > 0
    fresh = tmp_path / "fresh"
    shutil.copytree(data.root / "raw", fresh / "raw")
    normalize_here(fresh, *NORMALIZED)
    ours, theirs = (contents(root / "normalized", "run.json") for root in (data.root, fresh))
    our_marker, their_marker = (json.loads(files.pop("dataset.json")) for files in (ours, theirs))
    assert ours == theirs
    assert their_marker | {"parent": our_marker["parent"]} == our_marker


def test_a_dry_run_and_what_is_refused_change_nothing(data: Dataset) -> None:
    kept = contents(data.root)
    facts = data.erase("ant/03.png", "nobody", dry_run=True)
    assert (facts["images"], facts["unknown"], len(facts["remaining_slices"])) == (2, ["nobody"], 3)
    with pytest.raises(UsageError, match=r"none of its 2 keys is known in .*: 'nobody', 'nothing'; give keys as"):
        data.erase("nobody", "nothing")
    with pytest.raises(UsageError, match=r"these are all images of .*; remove the whole folder"):
        data.erase(*(keys := [str(path.relative_to(data.source)) for path in data.source.rglob("*.png")]))
    with pytest.raises(UsageError, match=r"these are all images of .* that are usable; remove the whole folder"):
        data.erase(*(key for key in keys if key != "bee/wrong.png"))
    assert contents(data.root) == kept
    manifest = shutil.copytree(data.root / "slices/night-1", data.root / "slices/old") / "manifest.json"
    manifest.write_text(manifest.read_text().replace("ringslice.slices/", "ringslice.old/"))
    kept = contents(data.root)
    with pytest.raises(UsageError, match=r"old/manifest\.json has format 'ringslice\.old/"):
        data.erase("ant/03.png")
    assert contents(data.root) == kept


@pytest.mark.parametrize("which", ["raw", "normalized", "slices"])
def test_a_run_at_work_is_not_disturbed(which: str, data: Dataset) -> None:
    place = open_place(str(data.root))
    stages = {"raw": raw_stage, "normalized": normalized_stage, "slices": lambda root: slices_stage(root, "night-1")}
    with stages[which](place).lease():
        kept = contents(data.root)
        with pytest.raises(BusyError):
            data.erase(*KEYS)
        assert {name: data for name, data in contents(data.root).items() if not name.startswith("erased/")} == kept


def test_slices_that_are_made_meanwhile_are_listed(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    is_idle = command._require_idle

    def shard_meanwhile(root: Place) -> None:
        is_idle(root)
        shard_here(root, *SHARES, "--name", "meanwhile")

    monkeypatch.setattr(command, "_require_idle", shard_meanwhile)
    assert "meanwhile" in data.erase("ant/00.png")["remaining_slices"]


@pytest.mark.integration
def test_files_of_unfinished_runs_are_removed(data: Dataset) -> None:
    (data.source / "bee/again.png").write_bytes(some_png(3))
    for stage, file in (("raw", "packs/pack-00099.tar"), ("normalized", "parts/pack-00099.tfrecord")):
        folder = data.root / stage
        (folder / file).write_bytes(some_png(3))
        (folder / "_work/driver-000001-aa").mkdir(parents=True)
        (folder / "_work/driver-000001-aa/attempt-1").write_bytes(some_png(3))
        (folder / "_work/plan.json").write_text('{"identity": {"config": {}, "input": "x"}}')
    begun = data.root / "slices/begun"
    (begun / "_work").mkdir(parents=True)
    (begun / "part").write_bytes(some_png(3))
    fingerprint = normalized_stage(open_place(str(data.root))).fingerprint()
    (begun / "_work/plan.json").write_text(json.dumps({"identity": {"config": {}, "input": fingerprint}}))
    assert data.erase("ant/03.png")["removed_unfinished_slices"] == 1
    assert files_with(data.root, {some_png(3)}) == []
    assert not begun.exists()


def test_what_a_killed_run_was_about_to_replace_is_removed(data: Dataset) -> None:
    for stage, marker in (("normalized", "dataset.json"), ("slices/night-1", "manifest.json")):
        (data.root / stage / marker).unlink()
        (data.root / stage / "_work").mkdir()
        (data.root / stage / "_work/discard").touch()
    assert data.erase("ant/03.png")["removed_unfinished_slices"] == 1
    assert not (data.root / "normalized").exists()
    assert not (data.root / "slices/night-1").exists()
    data.run_stages()


def test_a_file_that_lies_in_place_is_named_and_stays(data: Dataset, tmp_path: Path) -> None:
    root, tar, listed = tmp_path / "in-place", tmp_path / "shards/train.tar", tmp_path / "keys.txt"
    write_tar(data.source, tar)
    for _ in range(2):
        ingest_here(tar.parent, root, in_place=True, max_removed="1")
        normalize_here(root, *NORMALIZED)
    listed.write_text("train/ant/03.png\n")
    kept = contents(root)
    with pytest.raises(UsageError, match=rf"^{tar} has these images and was not written by ringslice \(--in-place\)"):
        erase_here(root, listed)
    assert contents(root) == kept
    for name in ("ant/03.png", "cat/copy.png"):
        (data.source / name).unlink()
    write_tar(data.source, tar)
    ingest_here(tar.parent, root, in_place=True, max_removed="1")
    normalize_here(root, *NORMALIZED)
    needles = encoded(root, {"train/ant/03.png"})
    assert files_with(root, needles)
    assert erase_here(root, listed).facts["removed_generations"] == 2
    assert files_with(root, needles) == []


def write_tar(source: Path, tar: Path) -> None:
    tar.parent.mkdir(exist_ok=True)
    with tarfile.open(tar, "w") as archive:
        for path in sorted(source.rglob("*.png")):
            archive.add(path, str(path.relative_to(source)))


def test_a_part_that_was_made_meanwhile_is_deleted_too(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def retry_first(root: Place, *others: Any) -> None:
        normalize_here(root, *NORMALIZED, "--min-side", 1, "--retry-rejects")
        assert encoded(data.root, {"bee/wrong.png"})
        record_images(root, *others)

    monkeypatch.setattr(command, "record_images", retry_first)
    assert data.erase("bee/wrong.png")["remaining_slices"] == {}, "none was made from it"
    assert encoded(data.root, {"bee/wrong.png"}) == set()
