"""TensorFlow's own strategies: their steps, their shares of the slices, changes of strategy, and what ends them."""

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, failed, run, succeeded, wait_until
from tests.lib.ranks.fed_by_all import fed_by_all
from tests.lib.ranks.outcomes import distance, require_each_key_once
from tests.lib.ranks.running import marked, spawn
from tests.lib.train_in_process import train_here

pytestmark = pytest.mark.integration

MAIN, WITHOUT_REDUCTION = "train/main.py", "tests/lib/ranks/without_reduction.py"
CLOSE = 1e-4  # of single precision, after 15 steps
MIRRORED = ("--strategy", "mirrored", "--replicas", 2)
WORKERS = ("--strategy", "multi-worker-mirrored")
SYNCHRONOUS = ("--strategy", "synchronous-parameter-server")
ASYNCHRONOUS = ("--strategy", "parameter-server")
LAUNCH = ("python", "train/launch.py", "-np", 2)
# with the path by which programs among the tests import the project
LAUNCH_SERVED = ("env", f"PYTHONPATH={REPOSITORY}", "python", "train/launch.py", "--workers", 2, "--servers", 1)
MODEL = ("--model", "tests.lib.ranks.tiny:smooth_normed", "--batch", 64)


def process_of(role: str, index: int, log: Path) -> Process:
    """The process of this role that the launcher of ``log`` started."""
    task = json.dumps({"type": role, "index": index})[1:-1]
    return next(each for each in marked(str(log)) if task.encode() in Path(f"/proc/{each.pid}/environ").read_bytes())


@pytest.fixture
def words(root: Path) -> tuple[object, ...]:
    """15 steps with batch norm and clipping; the last one of an epoch is not full."""
    options = ("--data", root, "--model", "tests.lib.ranks.tiny:smooth_normed", "--clip-norm", 1)
    return *options, "--warmup-epochs", 0, "--lr", 0.1, "--max-steps", 15


@pytest.mark.witness
def test_copies_take_the_steps_of_one_process(root: Path, words: tuple[object, ...]) -> None:
    """Two copies in a process read what one process with a batch of both reads, two workers what one process reads that
    is fed the batches of two ranks; batch norm is over all copies.
    """
    synchronised = (*words, "--batch-norm", "synchronised", "--run")
    succeeded(train_here(*synchronised, "alone", "--batch", 128))
    with fed_by_all(2):
        succeeded(train_here(*synchronised, "joined", "--batch", 128))
    succeeded(run("python", MAIN, *synchronised, "mirrored", "--batch", 64, *MIRRORED))
    succeeded(run(*LAUNCH, MAIN, *synchronised, "workers", "--batch", 64, *WORKERS))
    assert distance(root, "alone", "mirrored") < CLOSE
    assert distance(root, "joined", "workers") < CLOSE


@pytest.mark.chaos
def test_it_is_noticed_if_nothing_is_reduced(root: Path, words: tuple[object, ...]) -> None:
    """The negative controls of the two witnesses here."""
    plain = (*words, "--batch", 64)
    succeeded(run("python", MAIN, *plain, *MIRRORED, "--run", "alone"))
    succeeded(run("python", WITHOUT_REDUCTION, *plain, *MIRRORED, "--run", "mirrored"))
    succeeded(run(*LAUNCH_SERVED, WITHOUT_REDUCTION, *plain, *SYNCHRONOUS, "--run", "served"))
    assert distance(root, "alone", "mirrored") > 100 * CLOSE
    assert distance(root, "alone", "served") > 100 * CLOSE
    result = run(*LAUNCH, WITHOUT_REDUCTION, *plain, *WORKERS, "--run", "workers")
    assert result.returncode == 3
    assert "the weights of ranks [1] are not those of rank 0" in result.stderr


def test_a_run_goes_on_with_other_strategies(root: Path) -> None:
    """And with other numbers of ranks; each example counts once."""
    options = ("--data", root, "--run", "one", "--model", "tests.lib.ranks.tiny:tiny", "--epochs", 2, "--batch", 36)
    words = (MAIN, *options, "--audit", "--resume", "auto")
    succeeded(train_here(*words[1:], "--max-steps", 6))
    result = succeeded(run("python", *words, *MIRRORED, "--max-steps", 12, TF_CONFIG="of another job")).stderr
    assert "on 1 rank: 17 steps of --batch 36 on each of 2 replicas, from step 6 on" in result
    succeeded(run(*LAUNCH, *words, *WORKERS, "--max-steps", 24))
    succeeded(run(*LAUNCH_SERVED, *words, *SYNCHRONOUS, "--max-steps", 32))
    succeeded(train_here(*words[1:]))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


def test_wrong_use_of_the_launcher_is_reported_once(root: Path) -> None:
    line = "--strategy horovod: TF_CONFIG has several workers. Give --strategy multi-worker-mirrored"
    failed(run(*LAUNCH, MAIN, "--data", root, "--strategy", "horovod"), 2, line)
    failed(run(*LAUNCH, "train/mian.py"), 2, "WORDS: train/mian.py (no such file)")
    of_torchrun = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}  # of the caller
    words = (*LAUNCH_SERVED, MAIN, "--data", root, *SYNCHRONOUS, "--lr", "none")
    failed(run(*words, variables=of_torchrun), 2, "Invalid value for '--lr'")


@pytest.mark.parametrize(
    ("strategy", "victim", "status", "line"),
    [
        (WORKERS, ("worker", 1), 128 + signal.SIGKILL, r"rank 1 was killed \(SIGKILL\); the others end, too"),
        (WORKERS, None, -signal.SIGKILL, ""),
        (ASYNCHRONOUS, ("ps", 0), 3, "a parameter server has ended, .* --resume goes on from the last"),
    ],
    ids=["worker", "launcher", "server"],
)
def test_nothing_stays_of_a_run_that_lost_a_process(
    strategy: tuple[str, str], victim: tuple[str, int] | None, status: int, line: str, root: Path
) -> None:
    """Its launcher, if no ``victim`` is named."""
    launcher = LAUNCH if strategy == WORKERS else LAUNCH_SERVED
    words = (MAIN, "--data", root, "--run", "long", *strategy, *MODEL, "--epochs", 500, "--checkpoint-steps", 5)
    log = root.parent / "log"
    with spawn(*launcher, *words, log=log) as process:
        wait_until(lambda: any((root / "runs/long/checkpoints").glob("*")), process)
        os.kill(process_of(*victim, log).pid if victim else process.pid, signal.SIGKILL)
        assert process.wait(120) == status, log.read_text()
        wait_until(lambda: not marked(str(log)))
    text = log.read_text()
    assert "Traceback" not in text
    if victim:
        assert text.count("ringslice: error:") == 1, text
        assert re.search(f"ringslice: error: .*{line}", text), text


REPLACED = "ringslice: worker 0 was killed (SIGKILL); it is replaced"


def test_asynchronous_workers_of_which_one_is_killed_learn_from_each_example_once(root: Path, tmp_path: Path) -> None:
    words = (MAIN, "--data", root, "--run", "one", "--model", "cnn", "--batch", 32, "--epochs", 3, "--audit")
    log = tmp_path / "log"
    with spawn(
        *LAUNCH_SERVED, *words, *ASYNCHRONOUS, "--augment", "colour", "--checkpoint-steps", 1, log=log
    ) as process:
        wait_until(lambda: any((root / "runs/one/checkpoints").glob("*")), process)
        os.kill(process_of("worker", 0, log).pid, signal.SIGKILL)
        status = process.wait(240)
    assert status == 0, log.read_text()
    assert log.read_text().count(REPLACED) == 1
    require_each_key_once(root / "runs/one", root / "slices/default", 3)
    assert json.loads((root / "runs/one/result.json").read_text())["result"]["test_accuracy"] > 0.9


@pytest.mark.witness
def test_synchronous_workers_take_the_steps_of_copies_though_one_is_lost(root: Path) -> None:
    """What it has computed is computed again."""
    words = ("--data", root, *MODEL, "--warmup-epochs", 0, "--lr", 0.1, "--max-steps", 15)
    served = run(*LAUNCH_SERVED, "tests/lib/ranks/lost_result.py", *words, *SYNCHRONOUS, "--run", "served", "--audit")
    assert succeeded(served).stderr.count(REPLACED) == 1
    require_each_key_once(root / "runs/served", root / "slices/default", 1)
    succeeded(run("python", MAIN, *words, *MIRRORED, "--run", "alone"))
    assert distance(root, "alone", "served") < CLOSE


def test_nothing_stays_of_a_run_that_was_interrupted_twice(root: Path, tmp_path: Path) -> None:
    words = ("train", root, "--ranks", 2, "--run", "long", *ASYNCHRONOUS, *MODEL, "--epochs", 500)
    log = tmp_path / "log"
    with spawn("ringslice", *words, "--checkpoint-steps", 5, log=log) as process:
        wait_until(lambda: any((root / "runs/long/checkpoints").glob("*")), process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, log.read_text()
        assert not marked(str(log))
    lines = log.read_text().splitlines()
    assert [each for each in lines if "interrupted" in each] == lines[-1:]
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("role", ["chief", "ps"])
def test_a_port_that_is_taken_is_named(role: str, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]}
        cluster[role] = [f"127.0.0.1:{port}"]
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
        result = run("python", "train/main.py", "--data", root, *SYNCHRONOUS, TF_CONFIG=config)
    failed(result, 3, f"{role} 0 cannot serve 127.0.0.1:{port}")


# The program of processes of which the workers have another version of a user's code.
OTHER_VERSION = """
import json, os, runpy, sys
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
    os.environ["RINGSLICE_CODE"] = "v2"
sys.argv[0] = "train/main.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_worker_with_another_version_is_named(root: Path, tmp_path: Path) -> None:
    """By the chief; ranks that form a ring compare theirs in tests/train/runs/test_checks.py."""
    (tmp_path / "other.py").write_text(OTHER_VERSION)
    words = ("--data", root, *SYNCHRONOUS, "--model", "mlp", "--max-steps", 1)
    finished = run(*LAUNCH_SERVED, tmp_path / "other.py", *words)
    failed(finished, 3, f": worker 0 on {socket.gethostname()} has $RINGSLICE_CODE v2, the chief has none;")
