"""PyTorch's DistributedDataParallel: its steps, shares and resumes, and how it ends."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.hadoop.processes import find_all
from tests.lib.commands import REPOSITORY, failed, run, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.ranks.running import metric_lines, started, wait_until
from tests.lib.torch_ranks.running import BIN, in_torch, torchrun
from tests.lib.torch_ranks.weights import distance, last_checkpoint
from train.tf_backend.builders import BUILDERS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("torch_environment")]

MAIN = "train/main.py"
DDP = ("--strategy", "ddp")
CLOSE = 1e-5  # of single precision, after 20 steps


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.witness), 4])
def test_ranks_take_the_steps_of_one_process_that_is_fed_their_batches(ranks: int, root: Path) -> None:
    options = ("--data", root, *DDP, "--model", "tests.lib.torch_ranks.tiny:smooth", "--max-steps", 20, "--lr", 0.1)
    words = (*options, "--weight-decay", 0.001, "--label-smoothing", 0.1, "--clip-norm", 1, "--warmup-epochs", 0)
    one_process = ("python", "tests/lib/torch_ranks/one_process.py")
    succeeded(in_torch(*one_process, *words, "--batch", 128, "--run", "alone", RANKS=str(ranks)))
    succeeded(torchrun(ranks, MAIN, *words, "--batch", 64 // ranks, "--accumulate", 2, "--run", "ranks"))
    assert distance(root, "alone", "ranks") < CLOSE
    control = (*words, "--batch", 128 // ranks, "--run", "control")
    told = torchrun(ranks, "tests/lib/torch_ranks/without_reduction.py", *control)
    assert told.returncode != 0
    assert f"the weights of ranks {[*range(1, ranks)]} are not those of rank 0" in told.stderr


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
    """And GoogLeNet those of Caffe's (6,998,552), with 4 of batch norm for each of its 7,280 biases."""
    shapes = [(28, 28, 1, 10), (64, 64, 3, 7), (224, 224, 3, 1000)]
    told = succeeded(in_torch("python", "tests/lib/torch_ranks/count_parameters.py", json.dumps(shapes)))
    found = json.loads(told.stdout)
    assert found.pop("googlenet")[2] == 6_998_552 + 3 * 7_280
    assert found == {
        name: [builder(shape[:3], shape[3]).count_params() for shape in shapes] for name, builder in BUILDERS.items()
    }


def test_programs_of_their_own_read_each_example_once(root: Path) -> None:
    """On changing numbers of ranks and of workers, stopped between two rounds of the workers."""
    phases = [(2, 2, 7), (3, 0, 5), (1, 3, 10), (2, 2, None)]
    consume = ("python", "tests/lib/torch_ranks/consume.py", root)
    found = json.loads(succeeded(in_torch(*consume, json.dumps(phases))).stdout)
    whole = json.loads(succeeded(in_torch(*consume, json.dumps([(1, 0, None)]))).stdout)
    assert len(set(whole["keys"])) == len(whole["keys"]) == 1437
    assert sorted(found["keys"]) == sorted(whole["keys"])
    assert found["batches"][:6] == [7, 7, 5, 5, 5, 10]
    assert found["batches"][6] == found["batches"][7] > 0
    assert found["epoch"] == whole["epoch"] == 2


def test_lightning_trains_on_slices(root: Path) -> None:
    trained = succeeded(in_torch("python", "tests/lib/torch_ranks/with_lightning.py", root))
    assert json.loads(trained.stdout.splitlines()[-1]) == [1437, 1437]


def write_noise(folder: Path) -> Path:
    """Images of noise, in two classes: in a plain region the frameworks' poolings take other ones of equal pixels."""
    random = np.random.default_rng(0)
    for number in range(300):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (28, 28, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "adam"), ("cnn", "sgd"), ("mlp", "adamw")])
def test_a_run_of_one_framework_goes_on_in_the_other(model: str, optimizer: str, tmp_path: Path) -> None:
    """The same evaluation after a conversion, and the same weights after another step, also converted back."""
    root = tmp_path / "noise"
    options = ("-r", "inline", "--size", 28, "--format", "png", "--workers", 2)
    succeeded(ringslice_here("pipeline", write_noise(tmp_path / "source"), root, *options))
    hyperparameters = ("--batch", 64, "--weight-decay", 0.001, "--label-smoothing", 0.1, "--clip-norm", 1)
    words = ("python", MAIN, "--data", root, "--model", model, "--optimizer", optimizer, *hyperparameters, "--json")
    first = json.loads(succeeded(run(*words, "--run", "keras", "--max-steps", 4)).stdout)
    convert = ("python", "train/convert_weights.py", "--data", root)
    succeeded(run(*convert, "--run", "keras", "--to", "torch"))
    again = json.loads(succeeded(in_torch(*words, *DDP, "--run", "torch", "--resume", "--max-steps", 4)).stdout)
    assert again["test_loss"] == pytest.approx(first["test_loss"], abs=2e-4)
    ended = json.loads(succeeded(in_torch(*words, *DDP, "--run", "torch", "--resume", "--max-steps", 5)).stdout)
    found = json.loads(succeeded(run("python", "train/evaluate.py", "--data", root, "--run", "torch", "--json")).stdout)
    assert found["loss"] == pytest.approx(ended["test_loss"], abs=2e-4)
    succeeded(run(*convert, "--run", "torch", "--to", "back"))
    succeeded(run(*words, "--run", "keras", "--resume", "--max-steps", 5))
    assert distance(root, "keras", "back", "kernel") < CLOSE
    assert distance(root, "keras", "back", "momentum") < 10 * CLOSE
    succeeded(run(*words, "--run", "back", "--resume", "--max-steps", 6))
    failed(run(*convert, "--run", "keras", "--to", "back"), 2, "back is there already")


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
    # The rank that is left either loses its connection first, or is ended by torchrun first.
    ends = "another rank has ended, or does not answer", "ringslice: interrupted; "
    assert any(each in log.read_text() for each in ends)
    assert "Signal 9 (SIGKILL)" in log.read_text()  # torchrun names the rank
