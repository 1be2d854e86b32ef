"""Runs of four ranks, one of which comes to grief: all end in one line that names it, and the run goes on exactly.

Every kind of grief at every moment: real ranks, real signals, and a file of the unlucky rank's that says that it was
hit. What is there afterwards is the half of a checkpoint at most, and nobody takes it for one.
"""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Sequence
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
OPTIONS = (
    *(
        "--model",
        "tests.lib.ranks.tiny:tiny",
        "--epochs",
        EPOCHS,
        "--batch",
        BATCH,
        "--lr",
        0.04,
        "--augment",
        "crop,flip",
    ),
    *("--checkpoint-steps", 1, "--keep", 1000, "--deterministic", "--audit"),
)

WHERE = r"epoch {epoch}, step {step}"
LINES = {
    "raises": rf", {WHERE} \(.+\): RuntimeError: no such thing \(the traceback is in \S+/logs/rank-\S+\.log\)",
    "killed": rf" was killed or died without a word in {WHERE}, .+; --resume goes on from the last checkpoint",
    "stopped": rf" \(process \d+\) was silent for \d+ s, stopped or hung in {WHERE}, .+; its guard ends it",
    # a checkpoint's writer fails beside the steps
    "disk": r", epoch \d+, step \d+ \(.+\): File too large: \S+/runs/\S+",
}


@dataclass(frozen=True)
class Grief:
    """``kind`` comes to ``rank`` at ``moment``."""

    kind: str
    moment: str
    rank: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.moment}-{self.rank}"

    @property
    def place(self) -> dict[str, int]:
        """Where the rank is then; a checkpoint is written, and an epoch evaluated, before the next step."""
        step = STEPS[self.moment]
        return {"epoch": 1 + (step > LAST_STEP // EPOCHS), "step": step + (self.moment in (CHECKPOINT, EVALUATION))}

    @property
    def variables(self) -> dict[str, str]:
        """What come_to_grief.py asks for."""
        return {"GRIEF_KIND": self.kind, "GRIEF_MOMENT": self.moment, "GRIEF_RANK": str(self.rank)}


@dataclass
class Ended:
    """How a run ended."""

    run: Place
    told: str
    status: int


SAMPLE = [Grief("killed", CHECKPOINT, 0), Grief("killed", EVALUATION, 0)]
EVERY = [
    Grief(kind, moment, rank)
    for kind, ranks in {"raises": (3, 1, 0), "killed": (0, 3, 0), "stopped": (1, 2, 3), "disk": (2, 0, 0)}.items()
    for moment, rank in zip((FIRST, MIDDLE, CHECKPOINT), ranks, strict=True)
]
OTHERS = [
    *(each for each in EVERY if each not in SAMPLE),
    Grief("killed", CHECKPOINT, 2),
    Grief("raises", EVALUATION, 3),
]


class Runs:
    """Runs on one root that came to grief, each made when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ended: dict[Grief, Ended] = {}

    def ended(self, grief: Grief) -> Ended:
        if grief not in self._ended:
            timeout_s = SHORT_TIMEOUT_S if grief in SAMPLE else DEFAULT_TIMEOUT_S
            self._ended[grief] = bring(grief, str(self.root), self.root, timeout_s)
        return self._ended[grief]

    def whole(self) -> Path:
        """A run that nothing came between."""
        found = self.root / "runs" / "whole"
        if not found.exists():
            succeeded(horovodrun(RANKS, GO_ON, self.root, found.name))
        return found


@pytest.fixture(scope="module")
def runs(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("kills") / "digits"
    shutil.copytree(digits_root / "slices", root / "slices")
    return Runs(root)


def bring(
    grief: Grief, root: str, folder: Path, timeout_s: float, within: Sequence[object] = (), **variables: str
) -> Ended:
    """Have a run come to grief. All of it (a command ``within`` another) is gone 60 s after it was hit."""
    name, mark = str(grief), f"{folder}/{grief}"
    hit, log = folder / f"{name}.hit", folder / f"{name}.log"
    variables |= grief.variables | {"GRIEF_HIT": str(hit), "MARK": mark}
    words = (*HOROVODRUN, "-np", RANKS, SCRIPT, *OPTIONS, "--data", root, "--run", name, "--stall-timeout", timeout_s)
    with started(*within, *words, log=log, **variables) as running:
        wait_until(hit.exists, running)
        deadline = time.monotonic() + ENDS_WITHIN_S
        status = running.wait(ENDS_WITHIN_S)
        while left := marked(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    where = ", ".join(f"{what} {number}" for what, number in ({"rank": grief.rank} | grief.place).items())
    assert hit.read_text() == where
    return Ended(open_place(root) / "runs" / name, log.read_text(), status)


def require_one_line(grief: Grief, ended: Ended) -> None:
    assert ended.status != 0
    lines = [line for line in ended.told.splitlines() if "ringslice: error:" in line]
    assert len(lines) == 1, ended.told
    expected = rf"\[\d\]<stderr>:ringslice: error: rank {grief.rank} on \S+{LINES[grief.kind].format(**grief.place)}"
    assert re.fullmatch(expected, lines[0]), lines[0]


def require_no_half(grief: Grief, folder: Place) -> None:
    """What was about to be written is not there, or in part, and no checkpoint."""
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


def require_exact_resume(runs: Runs, griefs: list[Grief]) -> None:
    """Each run goes on from its last checkpoint, and ends as the run ``whole``, which nothing came between."""
    found = [Path(runs.ended(grief).run.path) for grief in griefs]
    lasts = [max(checkpoints_of(runs.ended(grief).run), default=0) for grief in griefs]
    whole = runs.root / "runs" / "whole"
    names = [each.name for each in ([] if whole.exists() else [whole]) + found]
    told = succeeded(horovodrun(RANKS, GO_ON, runs.root, *names, timeout_s=500)).stderr
    for each, last in zip(found, lasts, strict=True):
        own = told.partition(f"{each}: ")[2].partition(f"{runs.root}/runs/")[0]
        assert (f", from step {last} on" in own) == (last > 0), own
        require_each_key_once(each, runs.root / "slices" / "default", EPOCHS)
        assert arrays(each) == arrays(whole), each
        assert results(each) == results(whole)


def arrays(run: Path) -> dict[str, bytes]:
    return contents(run / FOLDER / name_of(LAST_STEP), MARKER)


def results(run: Path) -> object:
    """What a run ended with, but for its speed."""
    found = json.loads((run / "result.json").read_text())
    return found["steps"], found["result"], [{**epoch, "images_per_s": 0} for epoch in found["epochs"]]


every_kind = pytest.mark.parametrize(
    "grief", [*SAMPLE, *(pytest.param(each, marks=pytest.mark.chaos) for each in OTHERS)], ids=str
)


@every_kind
def test_all_end_in_one_line_that_names_the_rank(grief: Grief, runs: Runs) -> None:
    ended = runs.ended(grief)
    require_one_line(grief, ended)
    require_no_half(grief, ended.run)


def test_they_go_on_exactly(runs: Runs) -> None:
    require_exact_resume(runs, SAMPLE)


@pytest.mark.chaos
def test_all_of_them_go_on_exactly(runs: Runs) -> None:
    require_exact_resume(runs, OTHERS)


@pytest.mark.chaos
@pytest.mark.parametrize("moment", [FIRST, MIDDLE, CHECKPOINT])
def test_all_end_where_hdfs_is_gone(
    moment: str, runs: Runs, hadoop_alone: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 kills the NameNode, and any rank may be the first to miss it; once it is there again the run goes on."""
    for name, value in hadoop_alone.environment().items():
        monkeypatch.setenv(name, value)
    root = f"{hadoop_alone.uri}/tests/{uuid.uuid4().hex}"
    succeeded(run("hdfs", "dfs", "-mkdir", "-p", root, PATH=path_of(hadoop_alone)))
    succeeded(run("hdfs", "dfs", "-put", runs.root / "slices", root, PATH=path_of(hadoop_alone)))
    grief = Grief("hdfs", moment, 0)
    namenode = str(hadoop_alone.pid("namenode"))
    ended = bring(grief, root, tmp_path, DEFAULT_TIMEOUT_S, GRIEF_NAMENODE=namenode, TMPDIR=str(tmp_path))
    assert ended.status != 0
    lines = [line for line in ended.told.splitlines() if "ringslice: error:" in line]
    assert lines, ended.told
    assert all(re.search(r"error: rank \d on \S+, .*cannot reach the NameNode of ", line) for line in lines), lines
    hadoop_alone.restart("namenode")
    require_no_half(grief, ended.run)
    words = ("train/main.py", *OPTIONS, "--data", root, "--run", grief, "--resume")
    succeeded(horovodrun(RANKS, *words))
    succeeded(run("hdfs", "dfs", "-get", ended.run.uri, tmp_path / "run", PATH=path_of(hadoop_alone)))
    require_each_key_once(tmp_path / "run", runs.root / "slices" / "default", EPOCHS)
    assert arrays(tmp_path / "run") == arrays(runs.whole())
    assert results(tmp_path / "run") == results(runs.whole())


SMALL_DISK = """
mount -t tmpfs -o size=8m none "$0" || exit 99
kept=$1; shift
"$@"; status=$?
rm "$0/filler"; cp -a "$0" "$kept"
exit $status
"""
IN_NAMESPACE = ("unshare", "--map-root-user", "--mount")


@pytest.mark.chaos
@pytest.mark.parametrize("moment", [FIRST, MIDDLE, CHECKPOINT])
def test_all_end_where_the_disk_is_full(moment: str, runs: Runs, tmp_path: Path) -> None:
    """Runs are on a file system of their own, which rank 0 fills up: each rank that has to write may be the first."""
    if run(*IN_NAMESPACE, "true").returncode != 0:
        pytest.skip("this machine's users may not mount")
    grief = Grief("full", moment, 0)
    folder, kept = tmp_path / "root" / "runs", tmp_path / "kept"
    folder.mkdir(parents=True)
    shutil.copytree(runs.root / "slices", tmp_path / "root" / "slices")
    within = (*IN_NAMESPACE, "sh", "-c", SMALL_DISK, folder, kept)
    filler = str(folder / "filler")
    ended = bring(grief, str(tmp_path / "root"), tmp_path, DEFAULT_TIMEOUT_S, within, GRIEF_FILLER=filler)
    assert ended.status != 0
    lines = [line for line in ended.told.splitlines() if "ringslice: error:" in line]
    assert lines, ended.told
    no_space = rf"error: rank \d on \S+, .+: No space left on device: {folder}/{grief}/\S+ \(free some space or choose"
    assert all(re.search(no_space, line) for line in lines), lines
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    require_no_half(grief, ended.run)
    succeeded(horovodrun(RANKS, GO_ON, tmp_path / "root", grief))
    require_each_key_once(folder / str(grief), runs.root / "slices" / "default", EPOCHS)
    assert arrays(folder / str(grief)) == arrays(runs.whole())
    assert results(folder / str(grief)) == results(runs.whole())


def path_of(hadoop: Cluster) -> str:
    return f"{hadoop.home}/bin{os.pathsep}{os.environ['PATH']}"
