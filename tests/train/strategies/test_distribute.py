"""TensorFlow's own strategies: their steps, their shares of the slices, changes of strategy, and how they end."""

import os
import signal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from tests.hadoop.processes import find_all
from tests.lib.commands import Finished, failed, horovodrun, run, succeeded
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.ranks.running import metric_lines, started, wait_until

pytestmark = pytest.mark.integration

WITHOUT_REDUCTION = "tests/lib/ranks/without_reduction.py"
CLOSE = 1e-4  # of single precision, after 15 steps
MIRRORED = ("--strategy", "mirrored", "--replicas", 2)
WORKERS = ("--strategy", "multi-worker-mirrored")


def launch(ranks: int, *words: object) -> Finished:
    return run("python", "train/launch.py", "-np", ranks, *words)


def weights_of(root: Path, name: str) -> npt.NDArray[np.float64]:
    """All weights of a run after its last step."""
    last = max((root / "runs" / name / "checkpoints").iterdir())
    arrays = load_file(last / "model.safetensors")
    return np.concatenate([arrays[each].astype(np.float64).ravel() for each in sorted(arrays)])


def distance(root: Path, reference: str, other: str) -> float:
    """The distance of the other run's weights from those of the reference, as a part of these."""
    expected = weights_of(root, reference)
    return float(np.linalg.norm(weights_of(root, other) - expected) / np.linalg.norm(expected))


@pytest.fixture
def words(root: Path) -> tuple[object, ...]:
    """15 steps with batch norm over all copies and clipping; the last one of an epoch is not full."""
    options = ("--data", root, "--model", "tests.lib.ranks.tiny:smooth_normed", "--batch-norm", "synchronised")
    return *options, "--clip-norm", 1, "--warmup-epochs", 0, "--lr", 0.1, "--max-steps", 15


@pytest.mark.witness
def test_they_take_the_steps_of_others_fed_the_same_batches(root: Path, words: tuple[object, ...]) -> None:
    """Two copies in a process read what one process with a batch of both reads; two workers what two ranks of Horovod
    do.
    """
    succeeded(run("python", "train/main.py", *words, "--batch", 128, "--run", "alone"))
    succeeded(run("python", "train/main.py", *words, "--batch", 64, *MIRRORED, "--run", "mirrored"))
    succeeded(horovodrun(2, "train/main.py", *words, "--batch", 64, "--run", "ring"))
    succeeded(launch(2, "train/main.py", *words, "--batch", 64, *WORKERS, "--run", "workers"))
    assert distance(root, "alone", "mirrored") < CLOSE
    assert distance(root, "ring", "workers") < CLOSE


def test_it_is_noticed_if_nothing_is_reduced(root: Path, words: tuple[object, ...]) -> None:
    succeeded(run("python", "train/main.py", *words, "--batch", 128, "--run", "alone"))
    succeeded(run("python", WITHOUT_REDUCTION, *words, "--batch", 64, *MIRRORED, "--run", "mirrored"))
    assert distance(root, "alone", "mirrored") > 100 * CLOSE
    result = launch(2, WITHOUT_REDUCTION, *words, "--batch", 64, *WORKERS, "--run", "workers")
    assert result.returncode == 3
    assert "the weights of ranks [1] are not those of rank 0" in result.stderr


def test_a_run_goes_on_with_other_strategies(root: Path) -> None:
    options = ("--data", root, "--run", "one", "--model", "tests.lib.ranks.tiny:tiny", "--epochs", 2, "--batch", 36)
    words = ("train/main.py", *options, "--audit", "--resume", "auto")
    succeeded(horovodrun(2, *words, "--max-steps", 9))
    result = succeeded(run("python", *words, *MIRRORED, "--max-steps", 15)).stderr
    assert "on 1 rank: 11 steps of --batch 36 on each of 2 replicas, from step 9 on" in result
    succeeded(launch(2, *words, *WORKERS, "--max-steps", 30))
    succeeded(run("python", *words))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


def test_what_they_do_not_support_is_refused(root: Path) -> None:
    words = ("python", "train/main.py", "--data", root)
    line = "--compression fp16 is not supported by --strategy mirrored"
    failed(run(*words, *MIRRORED, "--compression", "fp16"), 2, line)
    failed(run(*words, "--replicas", 2), 2, "--replicas 2 is for --strategy mirrored")
    failed(
        run(*words, *WORKERS, TF_CONFIG='{"cluster": {}}'), 2, "names no workers HOST:PORT with this process among them"
    )
    failed(
        launch(1, *words[1:], *MIRRORED, "--batch-norm", "synchronised", "--accumulate", 2), 2, "--accumulate 2 is not"
    )
    result = launch(2, "train/main.py", "--data", root)
    assert result.returncode == 2
    assert "--strategy horovod: TF_CONFIG has several workers. Give --strategy multi-worker-mirrored" in result.stderr
    result = horovodrun(2, "train/main.py", "--data", root, *MIRRORED)
    assert result.returncode != 0
    assert result.stderr.count("for all devices of a host; start it without horovodrun") == 1


@pytest.mark.parametrize("victim", ["worker", "launcher"])
def test_nothing_stays_of_a_run_that_lost_a_process(victim: str, root: Path, tmp_path: Path) -> None:
    words = ("train/main.py", "--data", root, "--run", "long", *WORKERS, "--model", "mlp", "--epochs", 500)
    log = tmp_path / "log"

    def workers() -> list[int]:
        own = {b"train/main.py", str(root).encode()}
        return sorted(each.pid for each in find_all(lambda words, _: own <= set(words) and b"-np" not in words))

    with started("python", "train/launch.py", "-np", 2, *words, "--checkpoint-steps", 5, log=log) as process:
        wait_until(lambda: bool(metric_lines(root / "runs/long")), process)
        os.kill(workers()[-1] if victim == "worker" else process.pid, signal.SIGKILL)
        status = process.wait(120)
        wait_until(lambda: not workers())
    if victim == "worker":
        assert status == 128 + signal.SIGKILL, log.read_text()
        assert "ringslice: error: rank 1 was killed (SIGKILL); the others end, too" in log.read_text()
