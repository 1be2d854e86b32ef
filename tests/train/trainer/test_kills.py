"""Runs of real ranks that are killed: all end in one line that names the rank, and the run goes on exactly."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import HOROVODRUN, contents, flip_bit, horovodrun, succeeded, wait_until
from tests.lib.on_hadoop import dfs, put, set_site
from tests.lib.ranks.outcomes import require_each_key_once
from tests.lib.ranks.rank_failures import CHECKPOINT, EVALUATION, FIRST, MIDDLE, OPTIONS, STEPS, WHOLE_FILE
from tests.lib.ranks.running import marked, spawn
from train.checkpoints import store
from train.checkpoints.store import FOLDER, MARKER, name_of, open_checkpoint

pytestmark = pytest.mark.integration

SCRIPT, SEVERAL = "tests/lib/ranks/rank_failures.py", "tests/lib/ranks/several_runs.py"
RANKS, EPOCHS, LAST_STEP = 3, 2, 14
ENDS_WITHIN_S = 60.0

LINE = (
    r"\[\d\]<stderr>:ringslice: error: rank {rank} on \S+ was killed or died without a word"
    r" in epoch {epoch}, step {step}, .+; --resume goes on from the last checkpoint"
)


@dataclass(frozen=True)
class RankFailure:
    """``rank`` is killed at ``moment``."""

    moment: str
    rank: int = 0

    def __str__(self) -> str:
        return f"killed-{self.moment}-{self.rank}"

    @property
    def place(self) -> dict[str, int]:
        """Where the rank is then; a checkpoint is written, and an epoch evaluated, before the next step."""
        step = STEPS[self.moment]
        return {"epoch": 1 + (step > LAST_STEP // EPOCHS), "step": step + (self.moment in (CHECKPOINT, EVALUATION))}


SAMPLE = [RankFailure(CHECKPOINT)]
OTHERS = [RankFailure(FIRST), RankFailure(MIDDLE, 2), RankFailure(CHECKPOINT, 1), RankFailure(EVALUATION)]


def run_failing(failure: RankFailure, root: str, folder: Path, **variables: str) -> list[str]:
    """Have a run fail. All its processes are gone 60 s after it was hit. Returns its lines of errors."""
    name, mark = str(failure), f"{folder}/{failure}"
    hit, log = folder / f"{name}.hit", folder / f"{name}.log"
    variables |= {"FAILURE_MOMENT": failure.moment, "FAILING_RANK": str(failure.rank), "FAILURE_FILE": str(hit)}
    words = (*HOROVODRUN, "-np", RANKS, SCRIPT, *OPTIONS, "--data", root, "--run", name)
    with spawn(*words, log=log, MARK=mark, **variables) as running:
        wait_until(hit.exists, running)
        wait_until(lambda: not marked(mark), timeout_s=ENDS_WITHIN_S, message=lambda: marked(mark))
        status = running.wait(ENDS_WITHIN_S)
    where = ", ".join(f"{what} {number}" for what, number in ({"rank": failure.rank} | failure.place).items())
    assert hit.read_text() == where
    assert status != 0
    lines = [line for line in log.read_text().splitlines() if "ringslice: error:" in line]
    assert lines, log.read_text()
    return lines


def require_no_half(failure: RankFailure, folder: Place) -> None:
    """What was about to be written is absent or incomplete, and is not a checkpoint."""
    finished = store.steps(folder)
    if failure.moment == CHECKPOINT:
        unfinished = {info.base_name for info in (folder / FOLDER / name_of(STEPS[CHECKPOINT])).children()}
        assert WHOLE_FILE in unfinished
        assert MARKER not in unfinished
        assert finished[-1] == STEPS[CHECKPOINT] - 1
    elif failure.moment == EVALUATION:
        marker = open_checkpoint(folder, finished[-1]).marker
        assert (marker["step"], marker["score"]) == (STEPS[EVALUATION], None)
        assert marker["position"]["trained"].keys() == {"train_loss", "train_accuracy", "images_per_s"}
    else:
        assert all(step < STEPS[failure.moment] for step in finished)
    assert not (folder / "result.json").exists()


def resume_all(root: Path, *failures: RankFailure) -> None:
    """Resume these runs from their last checkpoints; they end as the run ``whole``, which nothing disturbed."""
    found = [root / "runs" / str(failure) for failure in failures]
    lasts = [max(store.steps(open_place(str(each))), default=0) for each in found]
    log = go_on(RANKS, [root / "runs/whole", *found])
    for each, last in zip(found, lasts, strict=True):
        own = log.partition(f"{each}: ")[2].partition(f"{root}/runs/")[0]
        assert (f", from step {last} on" in own) == (last > 0), own
        require_as_whole(each, root / "runs/whole")


def last_arrays(run: Path) -> dict[str, bytes]:
    return contents(max((run / FOLDER).iterdir()), MARKER)


def go_on(ranks: int, runs: Sequence[Path]) -> str:
    """Have these runs go on from their last checkpoints, one after the other; returns their log."""
    root = runs[0].parent.parent
    words = [["ring", *OPTIONS, "--data", root, "--run", each.name, "--resume", "auto", "--json"] for each in runs]
    return succeeded(horovodrun(ranks, SEVERAL, json.dumps(words, default=str), timeout_s=500)).stderr


def require_as_whole(run: Path, whole: Path) -> None:
    """It consumed each example once in each epoch, and has the weights and metrics of ``whole`` (not its speed)."""
    require_each_key_once(run, whole.parent.parent / "slices" / "default", EPOCHS)
    assert last_arrays(run) == last_arrays(whole), run
    results = []
    for each in (run, whole):
        found = json.loads((each / "result.json").read_text())
        epochs = [{**epoch, "images_per_s": 0} for epoch in found["epochs"]]
        results.append((found["steps"], found["result"], epochs))
    assert results[0] == results[1]


@pytest.mark.parametrize("failures", [SAMPLE, pytest.param(OTHERS, marks=pytest.mark.chaos)], ids=["sample", "others"])
def test_all_end_in_one_line_that_names_the_rank_and_go_on_exactly(failures: list[RankFailure], root: Path) -> None:
    for failure in failures:
        lines = run_failing(failure, str(root), root)
        assert len(lines) == 1, lines
        assert re.fullmatch(LINE.format(rank=failure.rank, **failure.place), lines[0]), lines
        require_no_half(failure, open_place(str(root / "runs" / str(failure))))
    resume_all(root, *failures)


@pytest.mark.chaos
def test_all_end_where_hdfs_is_gone(
    root: Path, hadoop_alone: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 kills the NameNode, and any rank may be the first to miss it; once it is there again the run goes on."""
    set_site(hadoop_alone, monkeypatch)
    uri = put(hadoop_alone, root / "slices")
    failure = RankFailure(CHECKPOINT)
    namenode = str(hadoop_alone.pid("namenode"))
    lines = run_failing(failure, uri, tmp_path, FAILURE_NAMENODE=namenode, TMPDIR=str(tmp_path))
    run_folder = open_place(uri) / "runs" / str(failure)
    unreachable = r"error: rank \d on \S+, .*cannot reach the NameNode of "
    assert all(re.search(unreachable, line) for line in lines), lines
    hadoop_alone.restart("namenode")
    require_no_half(failure, run_folder)
    succeeded(horovodrun(RANKS, "train/main.py", *OPTIONS, "--data", uri, "--run", failure, "--resume"))
    dfs(hadoop_alone, "-get", run_folder.uri, tmp_path / "run")
    resume_all(root)
    require_as_whole(tmp_path / "run", root / "runs/whole")


WHOLE_STEPS = 20


@pytest.fixture(scope="module")
def whole(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps on 2 ranks, with a checkpoint after each."""
    root = tmp_path_factory.mktemp("resume") / "digits"
    shutil.copytree(digits_root / "slices", root / "slices")
    found = root / "runs" / "whole"
    go_on(2, [found])
    assert store.steps(open_place(str(found))) == list(range(1, WHOLE_STEPS + 1))
    return found


def stop_after(whole: Path, step: int, name: str) -> Path:
    """What a trainer leaves that is killed after ``step``: and the audit of a few steps more."""
    stopped = whole.parent / name
    shutil.copytree(whole, stopped)
    (stopped / "result.json").unlink()
    for later in range(step + 1, WHOLE_STEPS + 1):
        shutil.rmtree(stopped / FOLDER / name_of(later))
    return stopped


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_goes_on_exactly_after_any_step(ranks: int, whole: Path) -> None:
    stopped = [stop_after(whole, step, f"stopped-{step:02d}-on-{ranks}") for step in range(1, WHOLE_STEPS + 1)]
    go_on(ranks, stopped)
    for each in stopped:
        require_each_key_once(each, whole.parent.parent / "slices" / "default", EPOCHS)
        if ranks == 2:
            require_as_whole(each, whole)


@pytest.mark.witness
def test_the_same_ranks_go_on_bit_for_bit_but_not_without_the_optimizers_state(whole: Path) -> None:
    """Two that were stopped, one whose newest checkpoint is damaged, and one that continues with another momentum."""
    stopped = [stop_after(whole, step, f"stopped-{step}") for step in (3, 10)]
    damaged, forgetful = stop_after(whole, 14, "damaged"), stop_after(whole, 10, "forgetful")
    flip_bit(damaged / FOLDER / name_of(14) / "model.safetensors", -9)
    run = open_place(str(forgetful))
    kept = store.open_checkpoint(run, 10)
    groups = {group: kept.read(group) for group in kept.groups}
    groups["optimizer"] = {name: each * 0 for name, each in groups["optimizer"].items()}
    facts = {name: value for name, value in kept.marker.items() if name not in store.OWN_FACTS}
    staging = (run / "staging").make_folder()
    store.write(run, staging, 10, groups, facts)
    staging.delete()
    outcome = go_on(2, [*stopped, damaged, forgetful])
    for each in (*stopped, damaged):
        require_as_whole(each, whole)
    assert outcome.count(f"{name_of(14)} is removed, {name_of(13)} is taken instead") == 1
    assert last_arrays(forgetful)["model.safetensors"] != last_arrays(whole)["model.safetensors"]
