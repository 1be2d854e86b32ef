"""Stages, renewals and all that follows, with a call of storage that fails, or a process that is gone from it on.

Run again, they leave the same bytes.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from etl.errors import RingsliceError
from etl.slices.prune import KeptRuns, prune
from etl.stages.champion import publish_champions, read_champions
from etl.stages.layout import normalized_stage, raw_stage
from etl.storage import place
from etl.storage.filesystem import LocalFilesystem
from etl.storage.place import open_place
from mapreduce.verify import Verify
from tests.etl.stages.test_stage import pose_as_ended_process
from tests.lib.commands import contents, copy_some, flip_bit
from tests.lib.faults import Fault, FaultError, FaultyFilesystem
from tests.lib.inline import erase_here, ingest_here, normalize_here, run_here, shard_here

IMAGES = ("--size", 8, "--color", "gray", "--format", "png", "--max-aspect", 100, "--max-rejects", 1)
SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5", "--splits-from", "newest")


Run = Callable[[Path, Path], None]  # of the folder of sources, and the root


def ingest(folder: Path, root: Path, source: str = "source") -> None:
    ingest_here(folder / source, root, pack_size="3000", packs_at_once="1", max_removed="1")


def renew(folder: Path, root: Path) -> None:
    ingest(folder, root, "source-2")


def normalize_with(*words: object) -> Run:
    return lambda _, root: normalize_here(root, *IMAGES, *words)


def shard_as(name: str) -> Run:
    return lambda _, root: shard_here(root, *SHARES, "--name", name)


def erase(folder: Path, root: Path) -> None:
    erase_here(root, folder / "keys.txt")


def add_runs(_: Path, root: Path) -> None:
    """Two of each set of slices."""
    for number, manifest in enumerate(sorted((root / "slices").glob("*/manifest.json")) * 2):
        checkpoint = root / f"runs/night-{number}/checkpoints/step-00000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "checkpoint.json").write_text(
            json.dumps({"slices": open_place(str(manifest)).sha256()}, allow_nan=False)
        )
        (checkpoint / "model.safetensors").write_text("weights")
        (root / f"runs/night-{number}/run.json").write_text(f'{{"finished": "{number}"}}')


def prune_all_but_one(_: Path, root: Path) -> None:
    prune(open_place(str(root)), keep=1, runs=KeptRuns(1, "night-"))


def promote(name: str) -> Run:
    def run(_: Path, root: Path) -> None:
        place = open_place(str(root))
        publish_champions(place, read_champions(place), [{"run": name}])

    return run


def damage(_: Path, root: Path) -> None:
    """Of each kind of file that can be rebuilt."""
    slices, parts = root / "slices/first", sorted((root / "normalized/parts").glob("*.tfrecord"))
    first, second = sorted(slices.rglob("*.tfrecord"))[:2]
    flip_bit(first, 150)
    second.with_suffix(".idx").unlink()
    flip_bit(slices / "examples.parquet", 200)
    flip_bit(parts[1], 300)
    parts[0].with_suffix(".parquet").unlink()


def repair(_: Path, root: Path) -> None:
    run_here(Verify, root, "--name", "first", "--every-stage", "--repair")
    shutil.rmtree(root / "verified")


@dataclass(frozen=True)
class StoppedWork:
    """A work with its root as it is before, and the contents of one that was not stopped."""

    work: "Work"
    folder: Path
    before: Path
    undisturbed: dict[str, bytes]

    def run(self, fault: Fault, root: Path) -> None:
        """Run it with a ``fault`` in a copy, as a process that is dead afterwards, then again without; compare."""
        shutil.copytree(self.before, root)
        with pose_as_ended_process(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "_LOCAL", FaultyFilesystem(LocalFilesystem(), fault))
            with suppress(FaultError, RingsliceError):
                self.work.run(self.folder, root)
        assert fault.hit or not fault.number
        self.work.require_sound(self, root)
        self.work.run(self.folder, root)
        assert contents(root, "run.json") == self.undisturbed, fault
        assert not list(root.rglob("_work")), fault
        shutil.rmtree(root)

    def count_calls(self, root: Path) -> int:
        fault = Fault()
        self.run(fault, root)
        assert {"create", "write", "close", "rename", "delete", "list"} <= set(fault.calls)
        return len(fault.calls)


def require_earlier_generations(stopped: StoppedWork, root: Path) -> None:
    """All files that were there are there, unchanged, but the markers; an earlier marker has its place."""
    now = contents(root)
    for name, data in contents(stopped.before, "dataset.json", "run.json", "versions.parquet").items():
        assert now.get(name) == data, name
    for stage in (raw_stage(open_place(str(root))), normalized_stage(open_place(str(root)))):
        parent = stage.read_marker()["parent"] if stage.marker.exists() else None
        assert parent is None or stage.find_generation(parent) is not None, "an earlier generation is gone"


def require_slices_and_runs(stopped: StoppedWork, root: Path) -> None:
    """Finished slices that stay are in their place, and a run is there with all its files, or is not there."""
    for file in stopped.undisturbed:
        assert not file.endswith("manifest.json") or (root / file).exists(), file
    for run in (root / "runs").glob("[!_]*"):
        files = {name: data for name, data in contents(run).items() if not name.startswith("_work/")}
        assert files == contents(stopped.before / "runs" / run.name), run.name


def require_a_champion(stopped: StoppedWork, root: Path) -> None:
    """The record has the champion before or the one after."""
    del stopped
    assert read_champions(open_place(str(root)))[0]["run"] in ("first", "second")


def require_damaged_or_right(stopped: StoppedWork, root: Path) -> None:
    """No file has other bytes than it had, damaged, or will have."""
    damaged = contents(stopped.before)
    for name, data in contents(root, "run.json").items():
        if "_work/" not in name and not name.startswith("verified/"):
            assert data in (damaged.get(name), stopped.undisturbed[name]), name


@dataclass(frozen=True)
class Work:
    """What is stopped, what ran before it, and a check after it."""

    run: Run
    before: tuple[Run, ...] = ()
    require_sound: Callable[[StoppedWork, Path], None] = require_earlier_generations


normalize, shard = normalize_with(), shard_as("first")
FIRST_NIGHT = (ingest, normalize, shard)
TWO_NIGHTS = (*FIRST_NIGHT, renew, normalize, shard_as("second"))
STRICT, LOOSE = ("--max-pixels", 100), ("--max-pixels", 1000)  # the first rejects the one larger image
WORKS = {
    "ingest": Work(ingest),
    "normalize": Work(normalize, (ingest,)),
    "shard": Work(shard, (ingest, normalize)),
    "renew raw": Work(renew, (ingest, normalize)),
    "renew normalized": Work(normalize, (ingest, normalize, renew)),
    "retry rejects": Work(normalize_with(*LOOSE, "--retry-rejects"), (ingest, normalize_with(*STRICT))),
    "repair": Work(repair, (*FIRST_NIGHT, damage), require_damaged_or_right),
    "prune": Work(prune_all_but_one, (*TWO_NIGHTS, add_runs), require_slices_and_runs),
    # which deletes the erased images from earlier generations too
    "erase": Work(erase, TWO_NIGHTS, require_slices_and_runs),
    "promote": Work(promote("second"), (promote("first"),), require_a_champion),
}


@pytest.fixture(scope="module")
def folder(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights of a source: of the second, images are gone, changed and new. Two keys to erase, one with a copy."""
    folder = tmp_path_factory.mktemp("nights")
    source = copy_some(digits, folder / "source", "01", slice(24))
    zeros, ones = sorted((source / "0").iterdir()), sorted((source / "1").iterdir())
    shutil.copy(zeros[0], source / "1" / "copy.png")
    Image.effect_noise((20, 20), 99).save(source / "1" / "large.png")
    Image.new("L", (400, 1)).save(source / "1" / "line.png")
    renewed = copy_some(digits, shutil.copytree(source, folder / "source-2"), "029", slice(30, 40))
    (renewed / "1" / ones[0].name).unlink()
    (renewed / "0" / zeros[3].name).unlink()
    shutil.copy(next((digits / "5").iterdir()), renewed / "1" / ones[1].name)
    (folder / "keys.txt").write_text(f"0/{zeros[0].name}\n0/{zeros[3].name}\n")
    return folder


@pytest.fixture(params=WORKS)
def stopped(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> StoppedWork:
    work, before = WORKS[request.param], tmp_path / "before"
    before.mkdir()
    for run in work.before:
        run(folder, before)
    undisturbed = shutil.copytree(before, tmp_path / "undisturbed")
    work.run(folder, undisturbed)
    return StoppedWork(work, folder, before, contents(undisturbed, "run.json"))


@pytest.mark.parametrize("is_sample", [True, pytest.param(False, marks=pytest.mark.chaos)], ids=["sample", "every"])
def test_calls_of_storage_fail(is_sample: bool, stopped: StoppedWork, tmp_path: Path) -> None:
    """Before or after it took effect, and with or without all later ones: each way at one call, or at every call."""
    calls = range(1, stopped.count_calls(tmp_path / "counted") + 1)
    random = Random(len(calls))
    for after, dies in product((False, True), repeat=2):
        for number in random.sample(calls, 1) if is_sample else calls:
            stopped.run(Fault(number, after, dies), tmp_path / f"{number}-{after}-{dies}")
