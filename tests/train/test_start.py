"""The commands that start ranks: which launcher with which options, what is shown of its lines, and how they end."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import UsageError
from tests.lib.commands import REPOSITORY, Finished, failed, ringslice, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.running import bytes_per_step, marked, metric_lines, started, wait_until
from tests.lib.torch_ranks.running import BIN, in_torch, require_torch
from train.parallel.launchers import HOROVODRUN, LAUNCH, TORCHRUN, RankLines, Ranks
from train.start import STRATEGY, with_data

RANK = "t/main.py --run x"


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (Ranks(), f"py {RANK}"),
        (Ranks(count=2), f"py -P -m horovod.runner.launch -np 2 py {RANK}"),
        (Ranks(hosts="a:2,b:1"), f"py -P -m horovod.runner.launch -np 3 -H a:2,b:1 py {RANK}"),
        (Ranks(count=1, hosts="a:2"), f"py -P -m horovod.runner.launch -np 1 -H a:2 py {RANK}"),
        (Ranks("mirrored"), f"py {RANK}"),
        (Ranks("mirrored", 2), f"py {RANK} --replicas 2"),
        (Ranks("multi-worker-mirrored", 2), f"py t/launch.py -np 2 {RANK}"),
        (Ranks("parameter-server", 2), f"py t/launch.py --workers 2 --servers 1 {RANK}"),
        (Ranks("synchronous-parameter-server", 2, 3), f"py t/launch.py --workers 2 --servers 3 {RANK}"),
        (Ranks("ddp", 1), f"py {RANK}"),
        (Ranks("ddp", 2), f"py -P -m torch.distributed.run --standalone --nproc-per-node 2 -- {RANK}"),
    ],
)
def test_each_strategy_has_its_launcher(ranks: Ranks, line: str) -> None:
    assert ranks.command_line("py", "t", "main.py", ["--run", "x"]) == line.split()


@pytest.mark.parametrize("strategy", [*STRATEGY.type.choices][1:])  # type: ignore[attr-defined]
def test_hosts_are_for_horovod(strategy: str) -> None:
    with pytest.raises(UsageError, match=f"--hosts is for --strategy horovod, not for {strategy}"):
        Ranks(strategy, hosts="a:2,b:2")


def test_root_is_the_first_word() -> None:
    assert with_data(["root", "--resume"]) == ["--data", "root", "--resume"]
    assert with_data(["--resume"]) == ["--resume"]


def shown_of(launcher: str, text: str, status: int = 1) -> tuple[int, str]:
    """What is left of a launcher's output, and the status."""
    lines = RankLines(launcher)
    shown = [each for line in text.splitlines(keepends=True) for each in lines.take(line, "stderr")]
    status, more = lines.ending(status)
    return status, "".join([*shown, *more])


HOROVOD_END = """[0]<stderr>:ringslice train: 2 ranks
[1]<stderr>:2026 a warning
Process 1 exit with status code {status}.
Traceback (most recent call last):
RuntimeError: The first process to do so was:
Process name: 1
Exit code: {status}
"""
TORCH_LINES = """ringslice train: 2 ranks
Traceback (most recent call last):
  File "/work/train/main.py", line 1
W1126 10:00:39.767000 4788 /x/torch/distributed/elastic/multiprocessing/api.py:1028] Sending SIGTERM
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 130 (pid: 4832)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {status} (pid: 4831)
"""


def test_lines_of_horovodrun_are_kept_off() -> None:
    lines = "ringslice train: 2 ranks\n[1] 2026 a warning\n"
    status, shown = shown_of(HOROVODRUN, HOROVOD_END.format(status=3) + "[1]<stderr>:ringslice: error: why\n")
    assert (status, shown) == (3, f"{lines}ringslice: error: why\n")
    killed = shown_of(HOROVODRUN, HOROVOD_END.format(status=137) + "[1]<stderr>:Killed\n")
    assert killed == (137, f"{lines}ringslice: error: rank 1 was killed (SIGKILL)\n")
    status, shown = shown_of(HOROVODRUN, HOROVOD_END.format(status=3))  # no rank reported why
    assert status == 3 and "RuntimeError" in shown and "rank 1 ended with status 3; above is what" in shown
    assert shown_of(HOROVODRUN, "ssh failed\n")[0] == 3


def test_lines_of_torchrun_are_kept_off() -> None:
    """But not a traceback of a rank."""
    lines = "".join(TORCH_LINES.splitlines(keepends=True)[:3])
    assert shown_of(TORCHRUN, TORCH_LINES.format(status=2)) == (2, lines)
    killed = f"{lines}ringslice: error: rank 0 was killed (SIGSEGV)\n"
    assert shown_of(TORCHRUN, TORCH_LINES.format(status=-11)) == (139, killed)


def test_lines_of_ours_are_bare_and_an_ending_comes_once() -> None:
    for last in ("error: z", "interrupted; z"):
        text = f"[0] x\n[worker 1] y\n[0] ringslice: {last}\n[1] ringslice: {last}\n"
        assert shown_of(LAUNCH, text, 2) == (2, f"x\n[worker 1] y\nringslice: {last}\n")


def test_wrong_use_is_refused_before_anything_is_started() -> None:
    failed(ringslice_here("train", "ROOT", "--strategy", "ring"), 2, "'ring' is not one of 'horovod', 'mirrored'")
    failed(ringslice_here("train", "ROOT", "--ranks", 0), 2, "Invalid value for '--ranks': 0")
    failed(ringslice_here("train", "ROOT", "--ranks", 100_000), 2, "100000 processes are more than 16 for each CPU")
    failed(ringslice_here("train", "ROOT", "--servers", 2), 2, "--servers 2 is for --strategy parameter-server")
    failed(ringslice_here("train", "ROOT", "--hosts", "a,b"), 2, "--hosts 'a,b' is not a list of hosts")
    failed(ringslice_here("train", "ROOT", "--hosts", "a:1", "--ranks", 2), 2, "more than --hosts a:1 has (1)")
    failed(ringslice_here("train", "ROOT", "--strategy", "ddp"), 3, "torch is not installed in")


def torch_ringslice(*words: object) -> Finished:
    require_torch()
    return in_torch("python", "-m", "mapreduce.cli", *words)


RING = 0.15  # more bytes than the gradient's: of what the ranks agree on, and of heads
STARTS = {"horovod": ringslice, "ddp": torch_ringslice}


@pytest.mark.integration
@pytest.mark.parametrize("strategy", STARTS)
def test_ranks_train(strategy: str, root: Path) -> None:
    """Standard output is the summary, and the status that of the first rank that failed. In a ring of n ranks, each
    sends and receives 2 (n - 1) / n of the gradient's bytes in a step.
    """
    start: Callable[..., Finished] = STARTS[strategy]
    words = ("train", root, "--strategy", strategy, "--ranks", 2, "--model", "mlp", "--max-steps", 3, "--json")
    finished = succeeded(start(*words, "--run", "one"))
    summary = json.loads(finished.stdout)
    assert (summary["ranks"], summary["steps"], "test_accuracy" in summary) == (2, 3, True)
    assert all(line.startswith("ringslice train: ") for line in finished.stderr.splitlines()), finished.stderr
    parameters = int(re.search(r"mlp of ([\d,]+) parameters", finished.stderr)[1].replace(",", ""))  # type: ignore[index]
    assert bytes_per_step(root / "runs/one") == pytest.approx([4 * parameters] * 4, rel=RING)
    failed(start(*words, "--nonsense"), 2, "No such option '--nonsense'")
    if strategy == "horovod":
        evaluated = succeeded(ringslice("evaluate", root, "--ranks", 2, "--run", "one", "--json"))
        assert json.loads(evaluated.stdout)["accuracy"] == pytest.approx(summary["test_accuracy"], abs=1e-3)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("strategy", "number"),
    [
        ("horovod", signal.SIGKILL),
        ("horovod", signal.SIGINT),
        ("ddp", signal.SIGKILL),
        ("ddp", signal.SIGTERM),
    ],
)
def test_nothing_stays(strategy: str, number: signal.Signals, root: Path, tmp_path: Path) -> None:
    """A killed rank is named; Ctrl-C, for all, and SIGTERM, for the first process, end every process."""
    if strategy == "ddp":
        require_torch()
    python = BIN / "python" if strategy == "ddp" else "python"
    words = ("train", root, "--strategy", strategy, "--ranks", 2, "--model", "mlp", "--epochs", 500, "--run", "long")
    log = tmp_path / "log"
    with started(python, "-m", "mapreduce.cli", *words, log=log, PYTHONPATH=str(REPOSITORY)) as process:
        wait_until(lambda: bool(metric_lines(root / "runs/long")), process)
        if number == signal.SIGKILL:
            os.kill(rank_1(str(log)), number)
        else:
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        status = process.wait(120)
        assert not marked(str(log))
    lines = [line for line in log.read_text().splitlines() if not line.startswith("ringslice train: ")]
    if number == signal.SIGKILL:
        assert (status, lines[-1]) == (137, "ringslice: error: rank 1 was killed (SIGKILL)"), log.read_text()
    else:
        assert (status, len(lines)) == (130, 1) and lines[0].startswith("ringslice: interrupted; "), log.read_text()


def rank_1(mark: str) -> int:
    """The process that trains as rank 1."""
    for process in marked(mark):
        folder = Path(f"/proc/{process.pid}")
        words, variables = ((folder / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        is_script = any(word.endswith(b"train/main.py") for word in words[:3])
        if is_script and {b"HOROVOD_RANK=1", b"RANK=1"} & set(variables):
            return process.pid
    raise AssertionError("there is no rank 1")
