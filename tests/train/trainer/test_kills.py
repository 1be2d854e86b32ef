"""Runs of four ranks, one of which fails: all end in one line that names it, and the run goes on exactly.

Every kind of failure at every moment: real ranks, real signals, and a file in which the rank says that it was hit.
At most half of a checkpoint is there afterwards, and it is never taken for one.
"""

import json
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import HOROVODRUN, contents, horovodrun, run, succeeded
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.ranks.come_to_grief import CHECKPOINT, EVALUATION, FIRST, MIDDLE, STEPS, WHOLE_FILE
from tests.lib.ranks.resume_steps import BATCH
from tests.lib.ranks.running import checkpoints_of, marked, started, wait_until
from train.checkpoints.store import FOLDER, MARKER, name_of, open_checkpoint

pytestmark = pytest.mark.integration

SCRIPT, GO_ON = "tests/lib/ranks/come_to_grief.py", "tests/lib/ranks/resume_steps.py"
RANKS, EPOCHS, LAST_STEP = 4, 2, 10
ENDS_WITHIN_S = 60.0
SHORT_TIMEOUT_S, DEFAULT_TIMEOUT_S = 9.0, 45.0

# as in resume_steps.py
MODEL = ("--model", "tests.lib.ranks.tiny:tiny", "--batch", BATCH, "--lr", 0.04, "--augment", "crop,flip")
LENGTH = ("--epochs", EPOCHS, "--checkpoint-steps", 1, "--keep", 1000, "--deterministic", "--audit")
OPTIONS = (*MODEL, *LENGTH)

WHERE = r"epoch {epoch}, step {step}"
LINES = {
    "raises": rf", {WHERE} \(.+\): RuntimeError: no such thing \(the traceback is in \S+/logs/rank-\S+\.log\)",
    "killed": rf" was killed or died without a word in {WHERE}, .+; --resume goes on from the last checkpoint",
    "stopped": rf" \(process \d+\) was silent for \d+ s, stopped or hung in {WHERE}, .+; its guard ends it",
    # a checkpoint is written while the steps go on
    "disk": r", epoch \d+, step \d+ \(.+\): File too large: \S+/runs/\S+",
}


@dataclass(frozen=True)
class Grief:
    """``rank`` fails in the way ``kind`` at ``moment``."""

    kind: str
    moment: str
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.kind}-{self.moment}-{self.rank}"

    @property
    def place(self) -> dict[str, int]:
        """Where the rank is then; a checkpoint is written, and an epoch evaluated, before the next step."""
        step = STEPS[self.moment]
        return {"epoch": 1 + (step > LAST_STEP // EPOCHS), "step": step + (self.moment in (CHECKPOINT, EVALUATION))}

    @property
    def variables(self) -> dict[str, str]:
        """The settings of come_to_grief.py."""
        return {"GRIEF_KIND": self.kind, "GRIEF_MOMENT": self.moment, "GRIEF_RANK": str(self.rank)}


@dataclass
class Ended:
    """How a run ended."""

    run: Place
    log: str
    status: int

    @property
    def lines(self) -> list[str]:
        return [line for line in self.log.splitlines() if "ringslice: error:" in line]


SAMPLE = [Grief("killed", CHECKPOINT), Grief("killed", EVALUATION)]
OTHERS = {
    "raises": {MIDDLE: 1, CHECKPOINT: 0, EVALUATION: 3},
    "killed": {FIRST: 0, MIDDLE: 3, CHECKPOINT: 2},
    "stopped": {MIDDLE: 2, CHECKPOINT: 3},
    "disk": {FIRST: 2, MIDDLE: 0, CHECKPOINT: 0},
}


def bring(grief: Grief, root: str, folder: Path, timeout_s: float, **variables: str) -> Ended:
    """Have a run fail. All its processes are gone 60 s after it was hit."""
    name, mark = str(grief), f"{folder}/{grief}"
    hit, log = folder / f"{name}.hit", folder / f"{name}.log"
    variables |= grief.variables | {"GRIEF_HIT": str(hit), "MARK": mark}
    words = (*HOROVODRUN, "-np", RANKS, SCRIPT, *OPTIONS, "--data", root, "--run", name, "--stall-timeout", timeout_s)
    with started(*words, log=log, **variables) as running:
        wait_until(hit.exists, running)
        deadline = time.monotonic() + ENDS_WITHIN_S
        status = running.wait(ENDS_WITHIN_S)
        while left := marked(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    where = ", ".join(f"{what} {number}" for what, number in ({"rank": grief.rank} | grief.place).items())
    assert hit.read_text() == where
    assert status != 0
    return Ended(open_place(root) / "runs" / name, log.read_text(), status)


def require_no_half(grief: Grief, folder: Place) -> None:
    """What was about to be written is absent or incomplete, and is not a checkpoint."""
    finished = checkpoints_of(folder)
    if grief.moment == CHECKPOINT:
        unfinished = {info.base_name for info in (folder / FOLDER / name_of(STEPS[CHECKPOINT])).children()}
        assert WHOLE_FILE in unfinished
        assert MARKER not in unfinished
        assert finished[-1] == STEPS[CHECKPOINT] - 1
    elif grief.moment == EVALUATION:
        marker = open_checkpoint(folder, finished[-1]).marker
        assert (marker["step"], marker["score"]) == (STEPS[EVALUATION], None)
        assert marker["position"]["trained"].keys() == {"train_loss", "train_accuracy", "images_per_s"}
    else:
        assert all(step < STEPS[grief.moment] for step in finished)
    assert not (folder / "result.json").exists()


def go_on(root: Path, *griefs: Grief) -> None:
    """Resume these runs from their last checkpoints; they end as the run ``whole``, which nothing disturbed."""
    found = [root / "runs" / str(grief) for grief in griefs]
    lasts = [max(checkpoints_of(open_place(str(each))), default=0) for each in found]
    log = succeeded(horovodrun(RANKS, GO_ON, root, "whole", *griefs, timeout_s=500)).stderr
    for each, last in zip(found, lasts, strict=True):
        own = log.partition(f"{each}: ")[2].partition(f"{root}/runs/")[0]
        assert (f", from step {last} on" in own) == (last > 0), own
        require_as_whole(each, root)


def require_as_whole(run: Path, root: Path) -> None:
    """It consumed each example once in each epoch, and has the weights and metrics of ``whole`` (not its speed)."""
    whole = root / "runs" / "whole"
    require_each_key_once(run, root / "slices" / "default", EPOCHS)
    weights, results = [], []
    for each in (run, whole):
        weights.append(contents(each / FOLDER / name_of(LAST_STEP), MARKER))
        found = json.loads((each / "result.json").read_text())
        epochs = [{**epoch, "images_per_s": 0} for epoch in found["epochs"]]
        results.append((found["steps"], found["result"], epochs))
    assert weights[0] == weights[1], run
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "griefs",
    [
        pytest.param(SAMPLE, id="sample"),
        *(
            pytest.param([Grief(kind, *each) for each in ranks.items()], marks=pytest.mark.chaos, id=kind)
            for kind, ranks in OTHERS.items()
        ),
    ],
)
def test_all_end_in_one_line_that_names_the_rank_and_go_on_exactly(griefs: list[Grief], root: Path) -> None:
    for grief in griefs:
        ended = bring(grief, str(root), root, SHORT_TIMEOUT_S if griefs is SAMPLE else DEFAULT_TIMEOUT_S)
        assert len(ended.lines) == 1, ended.log
        line = rf"\[\d\]<stderr>:ringslice: error: rank {grief.rank} on \S+{LINES[grief.kind].format(**grief.place)}"
        assert re.fullmatch(line, ended.lines[0]), ended.lines
        require_no_half(grief, ended.run)
    go_on(root, *griefs)


@pytest.mark.chaos
def test_all_end_where_hdfs_is_gone(
    root: Path, hadoop_alone: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 kills the NameNode, and any rank may be the first to miss it; once it is there again the run goes on."""
    for name, value in hadoop_alone.environment().items():
        monkeypatch.setenv(name, value)
    dfs = (hadoop_alone.home / "bin" / "hdfs", "dfs")
    uri = f"{hadoop_alone.uri}/tests/{uuid.uuid4().hex}"
    succeeded(run(*dfs, "-mkdir", "-p", uri))
    succeeded(run(*dfs, "-put", root / "slices", uri))
    grief = Grief("hdfs", CHECKPOINT)
    namenode = str(hadoop_alone.pid("namenode"))
    ended = bring(grief, uri, tmp_path, DEFAULT_TIMEOUT_S, GRIEF_NAMENODE=namenode, TMPDIR=str(tmp_path))
    assert ended.lines, ended.log
    unreachable = r"error: rank \d on \S+, .*cannot reach the NameNode of "
    assert all(re.search(unreachable, line) for line in ended.lines), ended.lines
    hadoop_alone.restart("namenode")
    require_no_half(grief, ended.run)
    succeeded(horovodrun(RANKS, "train/main.py", *OPTIONS, "--data", uri, "--run", grief, "--resume"))
    succeeded(run(*dfs, "-get", ended.run.uri, tmp_path / "run"))
    go_on(root)
    require_as_whole(tmp_path / "run", root)
