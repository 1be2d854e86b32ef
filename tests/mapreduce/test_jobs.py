"""The jobs from bytes, in process, and their results by every runner."""

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError, EnvironmentFailure
from etl.formats.example import parse
from etl.formats.records import read_records
from etl.slices.writer import order_key
from etl.stages.layout import verification_stage
from etl.stages.run import Run
from etl.storage.atomic import publish_bytes
from etl.storage.place import json_bytes, open_place
from mapreduce.jobs.stage_job import JOB_FILE, TaskRunner, Work
from mapreduce.jobs.transport import RECORDS, REFERENCES, TRANSPORTS, read_pairs, write_pair
from mapreduce.shard import ORDER_BYTES, Shard
from mapreduce.verify import Verify
from tests.conftest import TreeMaker
from tests.lib.commands import contents, failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import ingest_here, normalize_here, run_here, shard_here

SMALL = ("-r", "inline", "--size", "8", "--format", "png")


def ingest(source: Path, root: Path, **values: object) -> Path:
    ingest_here(source, root, **values)  # type: ignore[arg-type]
    return root


def job_file(root: Path, **job: Any) -> str:
    path = root / "job.json"
    path.write_text(json.dumps({"root": str(root), **job}))
    return str(path)


def shuffled(output: bytes, transport: str) -> list[bytes]:
    """What a mapper wrote, pair by pair, as the shuffle sorts it."""
    if transport != RECORDS:
        return sorted(output.splitlines(keepends=True))
    keys, pairs = [], []
    for key, (order, value) in read_pairs(io.BytesIO(output), ORDER_BYTES):
        write_pair(stream := io.BytesIO(), key, order, value)
        keys.append(key + order)
        pairs.append(stream.getvalue())
    return [pair for _, pair in sorted(zip(keys, pairs, strict=True))]


def task_line(root: Path) -> bytes:
    """What a mapper of shard is given: its only part."""
    rows_sha256 = hashlib.sha256((root / "normalized/parts/pack-00000.parquet").read_bytes()).hexdigest()
    task = {"part": "pack-00000", "first": {"0": 0}, "row": 0, "rows_sha256": rows_sha256}
    return json.dumps(task).encode() + b"\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shard_maps_parts_and_reduces_to_files_of_slices(transport: str, make_tree: TreeMaker, tmp_path: Path) -> None:
    root = ingest(make_tree({"train/a": 4}), tmp_path / "root", split_folders=True)
    normalize_here(root, *SMALL[2:])
    names = [["train", f"train/train-0000{number}-of-00002", 2] for number in range(2)]
    plan = {"sizes": [[4], [0], [0]], "slices": [2, 0, 0], "seed": 0}
    job: dict[str, object] = {"folder": str(root / "slices/x"), "slices": names, "transport": transport}
    job |= {"plan": plan, "has_assignments": False, "reducers": 1}
    arguments = ["--job-file", job_file(root, **job, todo=[0, 1])]
    mapper = Shard(["--mapper", *arguments])
    mapper.sandbox(stdin=io.BytesIO(task_line(root)))
    mapper.run_mapper()
    sent = shuffled(mapper.stdout.getvalue(), transport)
    assert len(sent) == 4
    reducer = Shard(["--reducer", *arguments])
    reducer.sandbox(stdin=io.BytesIO(b"".join(sent)))
    reducer.run_reducer()
    for number, (_, name, _) in enumerate(names):
        with (root / f"slices/x/{name}.tfrecord").open("rb") as stream:
            keys = [parse(record.data).key for record in read_records(stream, "x")]
        assert keys == sorted(keys, key=lambda key: order_key(key, 0))
        assert len(keys) == 2, number
    only = Shard(["--mapper", "--job-file", job_file(root, **job, todo=[1])])
    only.sandbox(stdin=io.BytesIO(task_line(root)))
    only.run_mapper()
    assert shuffled(only.stdout.getvalue(), transport) == sent[2:]


@pytest.mark.parametrize(("wanted", "tasks"), [(None, 8), (3, 3), (100, 8)])
def test_the_local_runner_makes_the_job_s_number_of_tasks(wanted: int | None, tasks: int, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"%08d\tx\n" * 100 % tuple(range(100)))
    words = ("-r", "local", "--no-conf", "--num-cores", "4", "--job-file", job_file(tmp_path, transport=REFERENCES))
    with Shard([*words, str(lines)]).make_runner() as runner:
        runner.mappers = runner.reducers = wanted
        assert len(runner._split_mapper_input([str(lines)], 0)) == tasks
        sorted_input = Path(runner._sorted_reducer_input_path(0))
        sorted_input.parent.mkdir(parents=True)
        shutil.copy(lines, sorted_input)
        assert runner._split_reducer_input(0) == tasks


def test_values_are_sorted_without_the_program_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, ordered = tmp_path / "lines", tmp_path / "ordered"
    lines.write_bytes(b"1\tb\n0\tc\n1\ta\n")
    monkeypatch.setattr("mapreduce.jobs.local.subprocess.run", Mock(side_effect=FileNotFoundError))
    words = ("-r", "local", "--no-conf", "--job-file", job_file(tmp_path, transport=REFERENCES))
    with Shard([*words, str(lines)]).make_runner() as runner:
        runner._sort_input_func()([str(lines)], str(ordered))
    assert ordered.read_bytes() == b"0\tc\n1\ta\n1\tb\n"


def test_a_part_stays_that_a_task_of_an_earlier_run_ends_before_its_folder_is_gone(
    make_tree: TreeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ingest(make_tree({"a": 4}), tmp_path / "root")
    done = shutil.copytree(root, tmp_path / "done")
    normalize_here(done, *SMALL[2:])
    open_tasks = Run.open_tasks

    def end_part(run: Run) -> Any:
        shutil.copytree(done / "normalized/parts", root / "normalized/parts", dirs_exist_ok=True)
        return open_tasks(run)

    monkeypatch.setattr(Run, "open_tasks", end_part)
    normalize_here(root, *SMALL[2:])
    assert contents(root, "run.json") == contents(done, "run.json")


@pytest.mark.witness
@pytest.mark.integration
def test_unusable_images_become_rejects_and_too_many_stop_the_stage(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 30, "b": 30}), tmp_path / "root"
    good = (source / "a/000.png").read_bytes()
    bad = {"a/cut.png": good[:60], "b/empty.png": b"", "b/text.jpg": b"hello"}
    for key, data in bad.items():
        (source / key).write_bytes(data)
    ingest(source, root, pack_size="2KB")
    unusable = "3 of 63 images are unusable (1 empty, 1 not-an-image, 1 truncated)"
    failed(ringslice_here("normalize", root, *SMALL), 1, unusable)
    assert not (root / "normalized/dataset.json").exists()
    parts = contents(root / "normalized/parts")
    killed = root / "normalized/parts/pack-00000.parquet"  # its task was, before it published the rows
    killed.unlink()
    killed.with_suffix(".tfrecord").write_text("without an image that was too slow then")
    summary = json.loads(succeeded(ringslice_here("normalize", root, *SMALL, "--max-rejects", 0.05, "--json")).stdout)
    assert (summary["images"], summary["good"], summary["rejects"]) == (63, 60, 3)
    assert contents(root / "normalized/parts") == parts  # kept, not made again
    rows = [row for path in (root / "normalized/rejects").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    reasons = {"a/cut.png": "truncated", "b/empty.png": "empty", "b/text.jpg": "not-an-image"}
    assert {row["key"]: row["reason"] for row in rows} == reasons
    for tar in (root / "normalized/rejects").glob("*.tar"):
        with tarfile.open(tar) as archive:
            for member in archive:
                assert archive.extractfile(member).read() == bad.pop(member.name)  # type: ignore[union-attr]
    assert not bad
    succeeded(ringslice_here("shard", root, "-r", "inline", "--workers", 2))
    assert json.loads(succeeded(ringslice_here("verify", root, "--every-stage", "--json")).stdout)["examples"] == 60


def test_a_job_of_another_list_of_work_is_not_joined(tmp_path: Path) -> None:
    stage = verification_stage(open_place(str(tmp_path)), "x")
    tasks = TaskRunner(Mock(options=Mock(runner="inline")), stage, {})
    with stage.reopen({"config": {}, "input": "x"}) as run:
        publish_bytes(run.open_tasks() / JOB_FILE, run.staging, json_bytes({"list": "a"}))
        works = [Work({"list": each}, [], 1, 1, Mock()) for each in "ab"]
        assert [tasks._has_same_list(each) for each in works] == [True, False]


@pytest.mark.parametrize("is_late", [False, True], ids=["before the tasks", "after them"])
@pytest.mark.parametrize("stage", ["normalize", "retry", "shard", "verify"])
def test_input_that_is_replaced_meanwhile_is_not_named(
    stage: str, is_late: bool, make_tree: TreeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree({"a": 5})
    Image.new("RGB", (20, 20)).save(source / "a/large.png")
    root = ingest(source, tmp_path / "root")
    normalize_here(root, *SMALL[2:], *(("--min-side", 10, "--max-rejects", 0.9) if stage == "retry" else ()))
    shard_here(root, "--workers", 1)
    run_tasks = TaskRunner.run

    def ingest_again() -> None:
        (source / "a/000.png").write_bytes((source / "a/001.png").read_bytes())
        ingest(source, root, overwrite=True)

    own, replace_input = {
        "normalize": (lambda: normalize_here(root, "--overwrite", *SMALL[2:]), ingest_again),
        "retry": (lambda: normalize_here(root, "--retry-rejects", *SMALL[2:], "--min-side", 1), ingest_again),
        "shard": (
            lambda: shard_here(root, "--workers", 1, "--overwrite"),
            lambda: normalize_here(root, "--overwrite", "--size", 9, *SMALL[4:]),
        ),
        "verify": (lambda: run_here(Verify, root), lambda: shard_here(root, "--workers", 2, "--overwrite")),
    }[stage]

    def run_beside_another(*arguments: Any) -> None:
        monkeypatch.setattr(TaskRunner, "run", run_tasks)
        steps = [replace_input, lambda: run_tasks(*arguments)]
        for step in reversed(steps) if is_late else steps:
            step()

    monkeypatch.setattr(TaskRunner, "run", run_beside_another)
    with pytest.raises((DataError, EnvironmentFailure), match="another run has replaced"):
        own()
    if stage != "retry":  # whose earlier marker stays
        folder = {"normalize": "normalized", "shard": "slices/default", "verify": "verified/default"}[stage]
        assert {path.name for path in (root / folder).glob("*.json")} <= {"run.json"}
