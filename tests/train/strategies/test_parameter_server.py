"""Parameter servers: the steps of one process, each example once, and what a lost process costs."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.hadoop.processes import Process
from tests.lib.commands import Finished, failed, horovodrun, run, succeeded
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.ranks.running import marked, started, wait_until
from tests.train.strategies.test_distribute import CLOSE, WITHOUT_REDUCTION, distance

pytestmark = pytest.mark.integration

ASYNCHRONOUS = ("--strategy", "parameter-server")
SYNCHRONOUS = ("--strategy", "synchronous-parameter-server")
MIRRORED = ("--strategy", "mirrored", "--replicas", 2)
LAUNCH = ("python", "train/launch.py", "--workers", 2, "--servers", 1)
MODEL = ("--model", "tests.lib.ranks.tiny:smooth_normed", "--batch", 64)


def launch(*words: object) -> Finished:
    return run(*LAUNCH, *words)


def process_of(role: str, index: int, log: Path) -> Process | None:
    """The process of this role that the launcher of ``log`` started."""
    task = json.dumps({"type": role, "index": index})[1:-1]
    found = [each for each in marked(str(log)) if task.encode() in Path(f"/proc/{each.pid}/environ").read_bytes()]
    return found[0] if found else None


@pytest.fixture
def words(root: Path) -> tuple[object, ...]:
    """15 steps with batch norm and clipping; the last one of an epoch is not full."""
    return "--data", root, *MODEL, "--clip-norm", 1, "--warmup-epochs", 0, "--lr", 0.1, "--max-steps", 15


@pytest.mark.witness
def test_synchronous_workers_take_the_steps_of_one_process(root: Path, words: tuple[object, ...]) -> None:
    succeeded(run("python", "train/main.py", *words, *MIRRORED, "--run", "alone"))
    succeeded(launch("train/main.py", *words, *SYNCHRONOUS, "--run", "served"))
    assert distance(root, "alone", "served") < CLOSE / 10


def test_it_is_noticed_if_nothing_is_added_up(root: Path, words: tuple[object, ...]) -> None:
    succeeded(run("python", "train/main.py", *words, *MIRRORED, "--run", "alone"))
    succeeded(launch(WITHOUT_REDUCTION, *words, *SYNCHRONOUS, "--run", "served"))
    assert distance(root, "alone", "served") > 100 * CLOSE


def test_asynchronous_workers_learn_from_each_example_once_per_epoch(root: Path) -> None:
    words = ("--data", root, "--run", "one", "--model", "cnn", "--batch", 32, "--epochs", 3, "--augment", "colour")
    succeeded(launch("train/main.py", *words, *ASYNCHRONOUS, "--audit"))
    require_each_key_once(root / "runs/one", root / "slices/default", 3)
    assert json.loads((root / "runs/one/result.json").read_text())["result"]["test_accuracy"] > 0.9


@pytest.mark.parametrize("strategy", [SYNCHRONOUS, ASYNCHRONOUS])
def test_a_killed_worker_is_replaced(strategy: tuple[str, ...], root: Path, tmp_path: Path) -> None:
    options = ("train/main.py", "--data", root, *MODEL, "--warmup-epochs", 0, "--lr", 0.1, "--epochs", 3)
    log = tmp_path / "log"
    served = (*options, *strategy, "--run", "served", "--audit", "--checkpoint-steps", 1)
    with started(*LAUNCH, *served, log=log) as process:
        wait_until(lambda: any((root / "runs/served/checkpoints").glob("*")), process)
        worker = process_of("worker", 0, log)
        assert worker
        os.kill(worker.pid, signal.SIGKILL)
        status = process.wait(240)
    assert status == 0, log.read_text()
    assert log.read_text().count("ringslice: worker 0 was killed (SIGKILL); it is replaced") == 1
    require_each_key_once(root / "runs/served", root / "slices/default", 3)
    if strategy == SYNCHRONOUS:
        succeeded(run("python", *options, *MIRRORED, "--run", "alone"))
        assert distance(root, "alone", "served") < CLOSE


@pytest.mark.parametrize("victim", ["ps", "launcher", "interrupt"])
def test_nothing_stays_of_a_run_that_ended_early(victim: str, root: Path, tmp_path: Path) -> None:
    words = ("train/main.py", "--data", root, "--run", "long", *ASYNCHRONOUS, *MODEL, "--epochs", 500)
    log = tmp_path / "log"
    with started(*LAUNCH, *words, "--checkpoint-steps", 5, log=log) as process:
        wait_until(lambda: any((root / "runs/long/checkpoints").glob("*")), process)
        server = process_of("ps", 0, log)
        assert server
        os.kill(
            server.pid if victim == "ps" else process.pid, signal.SIGINT if victim == "interrupt" else signal.SIGKILL
        )
        status = process.wait(120)
        wait_until(lambda: not marked(str(log)))
    lines = [each for each in log.read_text().splitlines() if "ringslice: " in each]
    if victim == "ps":
        assert status == 3, log.read_text()
        assert sum("error:" in each for each in lines) == 1
        assert "a parameter server has ended, and with it the weights" in lines[-1]
        assert "--resume goes on from the last checkpoint" in lines[-1]
    elif victim == "interrupt":
        assert status == 130
        assert [each for each in lines if "interrupted" in each] == lines[-1:]
    assert "Traceback" not in log.read_text()


def test_a_run_goes_on_with_other_strategies(root: Path) -> None:
    options = ("--data", root, "--run", "one", "--model", "tests.lib.ranks.tiny:tiny", "--epochs", 2, "--batch", 36)
    words = ("train/main.py", *options, "--audit", "--resume", "auto")
    succeeded(horovodrun(2, *words, "--max-steps", 9))
    succeeded(launch(*words, *SYNCHRONOUS, "--max-steps", 25))
    succeeded(run("python", *words, *MIRRORED))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


def test_what_they_do_not_support_is_refused(root: Path) -> None:
    words = ("train/main.py", "--data", root)
    for options in (
        ("--compression", "fp16"),
        ("--batch-norm", "synchronised"),
        ("--precision", "float16"),
        ("--device", "gpu"),
        ("--accumulate", 2),
    ):
        line = f"{options[0]} {options[1]} is not supported by --strategy parameter-server"
        failed(run("python", *words, *ASYNCHRONOUS, *options), 2, line)
    failed(launch(*words, *SYNCHRONOUS, "--deterministic"), 2, "--deterministic is not supported by --strategy sync")
    failed(run("python", *words, *SYNCHRONOUS, TF_CONFIG="{"), 2, "names no chief, workers and ps HOST:PORT")
    failed(
        launch(*words, *MIRRORED), 2, "TF_CONFIG has parameter servers. Give --strategy synchronous-parameter-server"
    )


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
