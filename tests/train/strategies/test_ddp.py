"""PyTorch's DistributedDataParallel: its steps, shares and resumes, and how it ends."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.hadoop.processes import find_all
from tests.lib.commands import REPOSITORY, failed, run, succeeded
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.ranks.running import metric_lines, started, wait_until
from tests.lib.torch_ranks.running import BIN, in_torch, require_torch, torchrun
from train.tf_backend.builders import BUILDERS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("torch_environment")]

MAIN = "train/main.py"
DDP = ("--strategy", "ddp")
CLOSE = 1e-5  # of single precision, after 20 steps


@pytest.fixture(scope="module")
def torch_environment() -> None:
    require_torch()


@pytest.fixture
def root(digits_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(digits_root / "slices", tmp_path / "digits/slices")
    return tmp_path / "digits"


def last_checkpoint(root: Path, name: str) -> Path:
    return max((root / "runs" / name / "checkpoints").iterdir())


def distance(root: Path, reference: str, other: str) -> float:
    """The distance of the other run's last weights from those of the reference, as a part of these."""
    expected, found = (load_file(last_checkpoint(root, name) / "model.safetensors") for name in (reference, other))
    squares = [float(np.square(found[name] - each).sum()) for name, each in expected.items()]
    return float(np.sqrt(sum(squares) / sum(float(np.square(each).sum()) for each in expected.values())))


@pytest.mark.witness
def test_ranks_take_the_steps_of_one_process_that_is_fed_their_batches(root: Path) -> None:
    options = ("--data", root, *DDP, "--model", "tests.lib.torch_ranks.tiny:smooth", "--max-steps", 20, "--lr", 0.1)
    words = (*options, "--weight-decay", 0.001, "--label-smoothing", 0.1, "--clip-norm", 1, "--warmup-epochs", 0)
    one_process = ("python", "tests/lib/torch_ranks/one_process.py")
    succeeded(in_torch(*one_process, *words, "--batch", 128, "--run", "alone", RANKS="2"))
    succeeded(torchrun(2, MAIN, *words, "--batch", 32, "--accumulate", 2, "--run", "ranks"))
    assert distance(root, "alone", "ranks") < CLOSE
    told = torchrun(2, "tests/lib/torch_ranks/without_reduction.py", *words, "--batch", 64, "--run", "control")
    assert told.returncode != 0
    assert "the weights of ranks [1] are not those of rank 0" in told.stderr


def test_examples_count_once_and_the_state_is_whole_on_other_numbers_of_ranks(root: Path) -> None:
    model = ("--model", "tests.lib.torch_ranks.tiny:tiny", "--batch", 24, "--epochs", 2)
    words = (MAIN, "--data", root, *DDP, *model, "--audit", "--run", "one", "--resume", "auto")
    succeeded(torchrun(4, *words, "--max-steps", 10))
    succeeded(torchrun(3, *words, "--max-steps", 25))
    succeeded(in_torch("python", *words))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


def test_a_resume_changes_no_bit(root: Path) -> None:
    """With all that has state: momentum, batch norm, dropout, augmentation, loss scaling."""
    model = ("--model", "tests.lib.torch_ranks.tiny:tiny", "--batch", 16, "--accumulate", 2, "--precision", "float16")
    words = (MAIN, "--data", root, *DDP, *model, "--augment", "crop,flip,colour", "--crop", 20, "--deterministic")
    more = ("--optimizer", "lars", "--weight-decay", 0.001, "--epochs", 2)
    succeeded(torchrun(2, *words, *more, "--max-steps", 30, "--run", "whole"))
    succeeded(torchrun(2, *words, *more, "--max-steps", 17, "--run", "parts"))
    succeeded(torchrun(2, *words, *more, "--max-steps", 30, "--run", "parts", "--resume"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        whole, parts = (last_checkpoint(root, name) / file for name in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), file


def test_models_have_the_parameters_of_those_of_keras() -> None:
    shapes = [(28, 28, 1, 10), (64, 64, 3, 7)]
    told = succeeded(in_torch("python", "tests/lib/torch_ranks/count_parameters.py", json.dumps(shapes)))
    assert json.loads(told.stdout) == {
        name: [builder(shape[:3], shape[3]).count_params() for shape in shapes] for name, builder in BUILDERS.items()
    }


def test_wrong_use_ends_in_one_line(root: Path) -> None:
    words = ("python", MAIN, "--data", root)
    failed(run(*words, *DDP), 3, "--strategy ddp: torch is not installed in")
    failed(in_torch(*words), 3, "--strategy horovod: ")
    failed(in_torch(*words, *DDP, "--xla"), 2, "--xla is not supported by --strategy ddp")
    failed(in_torch(*words, *DDP, "--device", "gpu"), 3, "PyTorch sees none on this host")
    failed(in_torch(*words, *DDP, "--model", "nothing:here"), 2, "--model 'nothing:here'")
    succeeded(in_torch(*words, *DDP, "--run", "torch", "--max-steps", 1))
    failed(run(*words, "--run", "torch", "--resume"), 2, "was trained with torch, --strategy horovod trains with")
    told = torchrun(2, MAIN, "--data", root)
    assert told.stderr.count("torchrun started 2 processes. Give --strategy ddp") == 1


def test_nothing_stays_of_a_run_that_lost_a_rank(root: Path, tmp_path: Path) -> None:
    words = (MAIN, "--data", root, "--run", "long", *DDP, "--model", "mlp", "--epochs", 500, "--checkpoint-steps", 5)
    log = tmp_path / "log"

    def ranks() -> list[int]:
        own = {MAIN.encode(), str(root).encode()}
        return sorted(each.pid for each in find_all(lambda words, _: own <= set(words) and b"--" not in words))

    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    launcher = (BIN / "torchrun", "--standalone", "--nproc-per-node", 2, "--")
    with started(*launcher, *words, log=log, PATH=path, PYTHONPATH=str(REPOSITORY)) as process:
        wait_until(lambda: bool(metric_lines(root / "runs/long")), process)
        os.kill(ranks()[-1], signal.SIGKILL)
        assert process.wait(120) != 0
        wait_until(lambda: not ranks())
    assert "another rank has ended, or does not answer" in log.read_text()
    assert "Signal 9 (SIGKILL)" in log.read_text()  # torchrun names the rank
