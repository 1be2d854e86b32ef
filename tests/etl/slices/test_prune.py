"""Which files pruning removes; tests/test_faults.py stops it at any call of storage."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etl.slices import prune as prune_module
from etl.slices.prune import KeptRuns, prune
from etl.stages.layout import normalized_stage, raw_stage, slices_stage
from etl.stages.lease import Lease
from etl.stages.stage import Stage
from etl.storage.place import Place, json_bytes, open_place
from tests.lib.commands import contents, failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.nights import some_png

pytestmark = pytest.mark.integration  # images that are none are decoded by a process of their own

NIGHTS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Night after night some images are new and most of the first pack's go, so that packs are dropped."""
    folder = tmp_path_factory.mktemp("nights")
    source, root = folder / "source", folder / "root"
    for night in range(NIGHTS):
        for label in "ab":
            (source / label).mkdir(parents=True, exist_ok=True)
            for path in sorted((source / label).iterdir())[: 6 * bool(night)]:
                path.unlink()
            for number in range(12):
                image = some_png(ord(label) * 1000 + night * 100 + number, 9, 3)
                (source / label / f"{night}-{number:03d}.png").write_bytes(image)
            (source / label / f"{night}-bad.png").write_bytes(b"bad")
        ingest_here(source, root, pack_size="3000", max_removed="1.0")
        normalize_here(root, "--size", 8, "--format", "png", "--max-rejects", 1)
        shard_here(root, "--name", f"night-{night}", "--workers", 1, "--slices", 1)
        (root / f"verified/night-{night}").mkdir(parents=True)
        (root / f"verified/night-{night}/verification.json").write_text("{}")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "root")
    return tmp_path / "root"


def run(root: Path, keep: int, dry_run: bool = False, runs: KeptRuns | None = None) -> dict[str, Any]:
    return prune(open_place(str(root)), keep, dry_run, runs).to_json()


def slices_of(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "slices").iterdir())


def record_run(root: Path, night: int, file: str, name: str = "run-0001") -> Path:
    fingerprint = slices_stage(open_place(str(root)), f"night-{night}").fingerprint()
    folder = root / "runs" / name
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_bytes(json_bytes({"slices": fingerprint}))
    return folder


def require_whole(root: Path) -> None:
    """Every generation that is left has all its files, no other file is left, and each of the slices has its input."""
    place = open_place(str(root))
    for stage, folder, field in ((raw_stage(place), "packs", "name"), (normalized_stage(place), "parts", "part")):
        generations = [stage.read_generation(), *stage.earlier_generations()]
        named = {each[field] for generation in generations for each in generation.entries}
        endings = (".tar" if folder == "packs" else ".tfrecord", ".parquet")
        files = {f"{name}{ending}" for name in named for ending in endings}
        assert {path.name for path in (root / stage.folder.name / folder).iterdir()} == files
        named = {Path(generation.marker[folder]["file"]).name for generation in generations}
        assert {path.name for path in (root / stage.folder.name / "tables").iterdir()} == named
    tables = {path.name for path in (root / "raw/removed").glob("*")}
    for name in slices_of(root):
        manifest = slices_stage(place, name).read_marker()
        normalized = normalized_stage(place).find_generation(manifest["input"])
        assert normalized is not None
        assert raw_stage(place).find_generation(normalized.marker["input"]) is not None
        removed = normalized.marker["removed"]
        assert removed is None or removed["file"].rpartition("/")[2] in tables
    assert sorted(path.name for path in (root / "verified").iterdir()) == slices_of(root)
    assert not list(root.rglob("_work"))


def test_the_newest_stay_with_all_that_they_were_made_from(root: Path) -> None:
    for name in ("night-0", "night-3", "mine"):
        (root / f"{name}-report.html").write_text(name)
    (notes := root / "verified/notes").mkdir()  # of a person
    (notes / "a.txt").touch()
    before, size = contents(root), sum(map(len, contents(root).values()))
    summary = run(root, keep=2, dry_run=True)
    assert contents(root) == before
    done = run(root, keep=2)
    assert {**summary, "dry_run": False} == done
    assert done["kept_slices"] == {"night-3": "among the newest", "night-2": "among the newest"}
    assert list(done["removed_slices"]) == ["night-0", "night-1"]
    assert slices_of(root) == ["night-2", "night-3"]
    assert done["removed_generations"] == 4  # two of raw, two of normalized
    assert done["removed_bytes"] == size - sum(map(len, contents(root).values()))
    assert done["removed_files"] == len(before) - len(contents(root))
    assert sorted(each.name for each in root.glob("*.html")) == ["mine-report.html", "night-3-report.html"]
    after = contents(root)
    assert "raw/packs/pack-00000.tar" in before
    assert "raw/packs/pack-00000.tar" not in after
    assert {name: before[name] for name in after} == after
    shutil.rmtree(notes)
    require_whole(root)
    assert run(root, keep=2)["removed_files"] == 0


def test_slices_that_a_run_names_stay(root: Path) -> None:
    files = ("result.json", "checkpoints/step-00000002/checkpoint.json", "_work/slices.json")
    for night, file in enumerate(files):
        record_run(root, night, file, f"run-{night}")
    (root / "runs/run-0/x.json").mkdir()
    (root / "runs/run-0/notes.json").write_text("[1]")  # of a person
    kept = run(root, keep=1)["kept_slices"]
    assert [kept[f"night-{night}"] for night in range(3)] == [f"named by {root}/runs/run-{night}" for night in range(3)]
    shutil.rmtree(root / "runs")
    (root / "runs/run-3/_work/claims").mkdir(parents=True)  # one that has not recorded its slices keeps all
    assert run(root, keep=1)["removed_slices"] == {}


def test_old_runs_of_a_job_go_with_the_slices_that_only_they_name(root: Path) -> None:
    for age, (name, night) in enumerate({"airflow-2": 1, "airflow-1": 2, "airflow-0": 0, "mine": 1}.items()):
        folder = record_run(root, night, "checkpoints/step-00000002/checkpoint.json", name)
        (folder / "run.json").write_bytes(json_bytes({"finished": f"2026-11-{20 - age}T00:00:00.000+00:00"}))
    before, rule = contents(root), KeptRuns(1, "airflow-")
    planned = run(root, keep=1, dry_run=True, runs=rule)
    assert contents(root) == before
    done = run(root, keep=1, runs=rule)
    assert {**planned, "dry_run": False} == done
    assert list(done["kept_runs"]) == ["airflow-2", "mine"]
    removed = done["removed_runs"] | done["removed_slices"]
    assert list(removed) == ["airflow-0", "airflow-1", "night-0", "night-2"]
    for name, size in removed.items():
        assert size == sum(len(data) for file, data in before.items() if f"/{name}/" in file) > 0
    shutil.rmtree(root / "runs")
    require_whole(root)


def test_a_damaged_file_of_a_run_that_stays_is_found_before_anything_is_removed(root: Path) -> None:
    record_run(root, 0, "run.json", "airflow-0")
    damaged = record_run(root, 1, "checkpoints/step-00000002/checkpoint.json", "airflow-1").joinpath("result.json")
    damaged.write_text('{"slices": ')
    before = contents(root)
    line = f"{damaged} is not JSON (Expecting value: line 1 column 12 (char 11)); it was damaged"
    failed(ringslice_here("prune", root, "--keep-runs", 1), 1, line)
    assert contents(root) == before


def test_slices_at_work_stay(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = open_place(str(root))
    normalized = slices_stage(place, "night-0").read_marker()["input"]
    source = slices_stage(place, "night-1").fingerprint()
    plan = {"identity": {"config": {"splits_from": source}, "input": normalized}}
    (root / "slices/being-made/_work").mkdir(parents=True)
    (root / "slices/being-made/_work/plan.json").write_bytes(json_bytes(plan))
    lease = Lease.take(slices_stage(place, "night-2").work, "a test")
    summary = run(root, keep=1)
    lease.release()
    assert summary["kept_slices"] == {"night-3": "among the newest", "night-1": "worked on"}
    assert list(summary["removed_slices"]) == ["night-0"]  # but not what it was made from
    assert "night-2 stays as it is" in capsys.readouterr().err
    assert normalized_stage(place).find_generation(normalized) is not None
    assert slices_of(root) == ["being-made", "night-1", "night-2", "night-3"]


def test_what_is_made_or_named_meanwhile_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other commands are at work while the first slices are being removed."""
    own = prune_module._all_files

    def after_others(stage: Stage) -> list[Place]:
        monkeypatch.undo()
        shutil.copytree(root / "slices/night-3", root / "slices/night-4")
        record_run(root, 1, "_work/slices.json")
        return own(stage)

    monkeypatch.setattr(prune_module, "_all_files", after_others)
    assert list(run(root, keep=1)["removed_slices"]) == ["night-0", "night-2"]
    assert f"night-1 stays as it is: named by {root}/runs/run-0001" in capsys.readouterr().err
    assert slices_of(root) == ["night-1", "night-3", "night-4"]
    assert not list(root.glob("slices/*/_work"))


def test_an_unfinished_renewal_is_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = contents(root / "normalized")
    (root / "normalized/_work").mkdir()
    (root / "normalized/_work/plan.json").write_bytes(json_bytes({"identity": {"config": {}, "input": "x"}}))
    summary = run(root, keep=1)
    assert "normalize was begun and not finished" in capsys.readouterr().err
    assert contents(root / "normalized", "plan.json") == parts
    assert summary["removed_generations"] == 0  # raw's are named by those of normalized
    shutil.rmtree(root / "normalized/_work")
    assert run(root, keep=1)["removed_generations"] == 6
    require_whole(root)


def test_the_command(root: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        line = f"{folder} is not the root of a dataset (no raw, no slices)"
        failed(ringslice_here("prune", folder, "--keep", 1), 2, line)
    failed(ringslice_here("prune", root), 2, "give --keep N")
    assert "night-0" in succeeded(ringslice_here("prune", root, "--keep", 3, "--dry-run")).stdout
    assert len(slices_of(root)) == NIGHTS
    record_run(root, 1, "result.json", "nightly-1")
    done = succeeded(ringslice_here("prune", root, "--keep-runs", 1, "--run-prefix", "", "--json")).stdout
    assert json.loads(done)["kept_runs"] == {"nightly-1": "among the newest"}
    assert slices_of(root) == ["night-1", "night-3"]
