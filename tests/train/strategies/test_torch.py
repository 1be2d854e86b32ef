"""PyTorch's strategies: DistributedDataParallel, and parts of a model on the ranks, by layer and by module."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lib.commands import Finished, failed, run, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.outcomes import distance, last_checkpoint, require_each_key_once
from tests.lib.torch_ranks.running import in_torch, torchrun
from train.parallel.endings import LOST
from train.tf_backend.builders import BUILDERS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("torch_environment")]

MAIN = "train/main.py"
DDP = ("--strategy", "ddp")
CLOSE = 1e-5  # of single precision, after 20 steps


def test_examples_count_once_and_the_state_is_whole_on_other_numbers_of_ranks(root: Path) -> None:
    model = ("--model", "tests.lib.torch_ranks.tiny:tiny", "--batch", 24, "--epochs", 2)
    words = (MAIN, "--data", root, *DDP, *model, "--audit", "--run", "one", "--resume", "auto")
    succeeded(torchrun(4, *words, "--max-steps", 10))
    succeeded(torchrun(3, *words, "--max-steps", 25))
    trained = json.loads(succeeded(in_torch("python", *words, "--json")).stdout)
    require_each_key_once(root / "runs/one", root / "slices/default", 2)
    evaluate = ("train/evaluate.py", "--data", root, "--run", "one", "--json")
    found = json.loads(succeeded(torchrun(2, *evaluate, *DDP)).stdout)
    assert (found["ranks"], found["accuracy"]) == (2, pytest.approx(trained["test_accuracy"], abs=1e-4))
    failed(run("python", *evaluate), 2, "evaluate and promote a run of PyTorch with --strategy ddp")


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
    """On changing numbers of ranks and of workers, stopped between two rounds of the workers. Any number of these has
    the memory that it needs.
    """
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


def loss_of(evaluation: Finished) -> float:
    found: float = json.loads(succeeded(evaluation).stdout)["loss"]
    return found


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
    evaluate = ("python", "train/evaluate.py", "--data", root, "--json", "--run")
    assert loss_of(run(*evaluate, "torch")) == pytest.approx(ended["test_loss"], abs=2e-4)
    assert loss_of(in_torch(*evaluate, "torch", *DDP)) == pytest.approx(ended["test_loss"], abs=1e-4)
    assert loss_of(in_torch(*evaluate, "keras", *DDP)) == pytest.approx(first["test_loss"], abs=2e-4)
    promote = ("python", "train/promote.py", "--data", root, "--json", *DDP, "torch", "keras")
    assert json.loads(succeeded(in_torch(*promote)).stdout)["promoted"]
    succeeded(run(*convert, "--run", "torch", "--to", "back"))
    succeeded(run(*words, "--run", "keras", "--resume", "--max-steps", 5))
    assert distance(root, "keras", "back", "kernel") < CLOSE
    assert distance(root, "keras", "back", "momentum") < 10 * CLOSE
    succeeded(run(*words, "--run", "back", "--resume", "--max-steps", 6))
    failed(run(*convert, "--run", "keras", "--to", "back"), 2, "back already exists; give another name")


def test_wrong_use_ends_in_one_line(root: Path) -> None:
    words = ("python", MAIN, "--data", root)
    failed(run(*words, *DDP), 3, "(--strategy ddp needs it). Run: pip install 'ringslice[torch]'")
    failed(in_torch(*words), 3, "(--strategy horovod needs it). Run: pip install 'ringslice[train]'")
    failed(in_torch(*words, *DDP, "--device", "gpu"), 3, "PyTorch sees none on this host")
    failed(in_torch(*words, *DDP, "--model", "nothing:here"), 2, "--model 'nothing:here'")
    succeeded(in_torch(*words, *DDP, "--run", "torch", "--max-steps", 1))
    failed(run(*words, "--run", "torch", "--resume"), 2, "was trained with torch, --strategy horovod trains with")
    told = torchrun(2, MAIN, "--data", root)
    assert told.stderr.count("torchrun started 2 processes. Give --strategy ddp") == 1


SEVERAL = "tests/lib/torch_ranks/several_runs.py"
TINY = "tests.lib.torch_ranks.tiny"
WIDE_BYTES = 206e6  # of the weights of tiny.wide
OTHER_BYTES = 130e6  # of stacks, batches and buffers of a rank
UPDATE = ("--lr", "0.1", "--weight-decay", "0.001", "--label-smoothing", "0.1", "--clip-norm", "1")


def runs_of_ddp(words: list[str], ranks: int) -> list[list[str]]:
    """One process that is fed the batches of ranks, these ranks, and a negative control."""
    ddp = [*words, "--strategy", "ddp", "--batch"]
    return [
        [f"alone-{ranks}", *ddp, "128", "--run", "joined"],
        [*ddp, str(64 // ranks), "--accumulate", "2", "--run", "ddp"],
        ["without-reduction", *ddp, str(128 // ranks), "--run", "control"],
    ]


def require_ddp(root: Path, ranks: int, stdout: str) -> None:
    """What `runs_of_ddp` must come to, by what they printed."""
    assert distance(root, "joined", "ddp") < CLOSE
    assert f"the weights of ranks {[*range(1, ranks)]} are not those of rank 0" in stdout


@pytest.mark.witness
def test_ranks_and_parts_take_the_steps_of_one_process(root: Path) -> None:
    """Of one that is fed the batches of all ranks, or has the whole model."""
    words = ["--data", str(root), "--model", f"{TINY}:smooth", "--max-steps", "15", *UPDATE, "--warmup-epochs", "0"]
    pipeline, tensor = (
        [*words, "--batch", "64", "--strategy", each, "--run"] for each in ("pipeline", "tensor-parallel")
    )
    runs = [
        ["alone-1", *words, "--batch", "64", "--strategy", "ddp", "--run", "whole"],
        [*pipeline, "pipeline"],
        [*tensor, "tensor"],
        ["without-gradients", *pipeline, "control-1"],
        ["without-sum", *tensor, "control-2"],
        *runs_of_ddp(words, 2),
    ]
    told = succeeded(torchrun(2, SEVERAL, json.dumps(runs)))
    found = {name: distance(root, "whole", name) for name in ("pipeline", "tensor", "control-1", "control-2")}
    assert all(found[each] < CLOSE for each in ("pipeline", "tensor")), found
    assert all(found[each] > 100 * CLOSE for each in ("control-1", "control-2")), found
    require_ddp(root, 2, told.stdout)


def test_four_ranks_take_the_steps_of_one_process_that_is_fed_their_batches(root: Path) -> None:
    words = ["--data", str(root), "--model", f"{TINY}:smooth", "--max-steps", "20", *UPDATE, "--warmup-epochs", "0"]
    told = succeeded(torchrun(4, SEVERAL, json.dumps(runs_of_ddp(words, 4))))
    require_ddp(root, 4, told.stdout)


def test_a_weight_that_the_loss_does_not_use_is_as_in_one_process(root: Path) -> None:
    """Also with parts of a step, which are summed up on each rank."""
    words = ["--data", str(root), "--model", f"{TINY}:partly_used", *UPDATE, "--warmup-epochs", "0"]
    told = succeeded(torchrun(2, SEVERAL, json.dumps(runs_of_ddp([*words, "--max-steps", "15"], 2))))
    require_ddp(root, 2, told.stdout)


def test_branches_on_different_ranks_take_the_steps_of_the_whole_model(root: Path) -> None:
    """With batch norm and dropout in them; and those of two copies, on whatever division a run goes on."""
    words = ["--data", str(root), *UPDATE, "--warmup-epochs", "0"]
    noisy = [*words, "--model", f"{TINY}:noisy_branches", "--batch", "64", "--max-steps", "20"]
    runs = [
        ["alone-1", *noisy, "--strategy", "ddp", "--run", "noisy"],
        [*noisy, "--strategy", "tensor-parallel", "--run", "divided"],
        ["without-sum-of-branches", *noisy, "--strategy", "tensor-parallel", "--run", "control"],
    ]
    succeeded(torchrun(2, SEVERAL, json.dumps(runs)))
    assert distance(root, "noisy", "divided") < CLOSE
    assert distance(root, "noisy", "control") > 100 * CLOSE
    words += ["--model", f"{TINY}:branched"]
    whole = ["alone-2", *words, "--batch", "64", "--strategy", "ddp"]
    tensor, pipeline = (
        [*words, "--batch", "32", "--model-ranks", "2", "--strategy", each] for each in ("tensor-parallel", "pipeline")
    )
    one = ["--run", "one", "--resume", "auto", "--max-steps"]
    runs = [
        [*whole, "--run", "whole", "--max-steps", "20"],
        [*tensor, *one, "5"],
        [*pipeline, *one, "10"],
        [*whole, *one, "15"],
        [*tensor, *one, "20"],
        ["without-average", *tensor, "--run", "control-2", "--max-steps", "20"],
    ]
    succeeded(torchrun(4, SEVERAL, json.dumps(runs)))
    assert distance(root, "whole", "one") < CLOSE
    assert distance(root, "whole", "control-2") > 100 * CLOSE


def test_copies_of_a_divided_model_take_the_steps_of_one_process_that_is_fed_their_batches(root: Path) -> None:
    """And each example counts once, on whatever layout a run goes on."""
    words = ["--data", str(root), "--model", f"{TINY}:smooth", *UPDATE, "--warmup-epochs", "0"]
    divided = [*words, "--batch", "32", "--model-ranks", "2", "--strategy"]
    whole = ["alone-2", *words, "--batch", "64", "--strategy", "ddp"]
    runs = [
        [*whole, "--run", "whole"],
        [*divided, "pipeline", "--run", "pipeline"],
        [*divided, "tensor-parallel", "--run", "tensor"],
        ["without-average", *divided, "pipeline", "--run", "control-1"],
        ["without-average", *divided, "tensor-parallel", "--run", "control-2"],
    ]
    one = ["--run", "one", "--resume", "auto", "--audit", "--epochs", "2", "--max-steps"]
    going_on = [
        [*divided, "tensor-parallel", *one, "10"],
        [*whole, *one, "30"],
        [*divided, "pipeline", *one, "100"],
        ["without-average", *divided, "tensor-parallel", "--run", "control-3", "--epochs", "1"],
    ]
    equal_steps = [[*each, "--max-steps", "15"] for each in runs]
    told = succeeded(torchrun(4, SEVERAL, json.dumps([*equal_steps, *going_on])))
    found = {name: distance(root, "whole", name) for name in ("pipeline", "tensor", "control-1", "control-2")}
    assert all(found[each] < CLOSE for each in ("pipeline", "tensor")), found
    assert all(found[each] > 100 * CLOSE for each in ("control-1", "control-2")), found
    require_each_key_once(root / "runs/one", root / "slices/default", 2)
    assert "the weights of ranks [2, 3] are not those of rank 0" in told.stdout


def test_a_run_goes_on_with_the_model_divided_otherwise(root: Path) -> None:
    """Each example once; weights and optimizer are those of a process that has taken all steps."""
    words = ("--data", root, "--model", f"{TINY}:deep", "--batch", 64, "--epochs", 2, *UPDATE, "--audit")
    one = (*words, "--run", "one", "--resume", "auto")
    succeeded(torchrun(3, MAIN, *one, "--strategy", "pipeline", "--max-steps", 8))
    succeeded(torchrun(2, MAIN, *one, "--strategy", "tensor-parallel", "--max-steps", 26))
    succeeded(in_torch("python", MAIN, *words, "--strategy", "ddp", "--run", "whole", "--max-steps", 26))
    assert distance(root, "whole", "one") < CLOSE
    succeeded(torchrun(2, MAIN, *one, "--strategy", "ddp"))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


@pytest.mark.parametrize("copies", [1, 2])
def test_batch_norm_is_that_of_micro_batches_in_turn(copies: int, root: Path) -> None:
    """Of steps that are not full."""
    words = ("--data", root, "--model", f"{TINY}:normalised", "--max-steps", 15, *UPDATE)
    whole = ("--strategy", "ddp", "--batch", 8, "--accumulate", 4, "--run", "whole")
    succeeded(torchrun(copies, MAIN, *words, *whole))
    stages = ("--strategy", "pipeline", "--pipeline-schedule", "gpipe", "--micro-batches", 4, "--model-ranks", 2)
    succeeded(torchrun(2 * copies, MAIN, *words, *stages, "--batch", 32, "--run", "stages"))
    assert distance(root, "whole", "stages") < CLOSE


def test_a_model_too_large_for_one_rank_fits_two(root: Path) -> None:
    """Adam's two moments, the gradients and a checkpoint are 7 times the weights on one rank, 5 on the first of two."""
    limited = "tests/lib/torch_ranks/with_memory_limit.py"
    words = ("--data", root, "--model", f"{TINY}:wide", "--optimizer", "adam", "--batch", 8, "--max-steps", 2)
    extra = str(int(6.5 * WIDE_BYTES + OTHER_BYTES))
    alone = ("python", limited, *words, "--strategy", "ddp", "--run", "alone")
    failed(in_torch(*alone, EXTRA_BYTES=extra, OMP_NUM_THREADS="1"), 3, "out of memory (cannot allocate ")
    branches = ("--model", f"{TINY}:wide_branches")
    for name, strategy, *more in (("a", "pipeline"), ("b", "tensor-parallel"), ("c", "tensor-parallel", *branches)):
        succeeded(torchrun(2, limited, *words, *more, "--strategy", strategy, "--run", name, EXTRA_BYTES=extra))


def test_a_model_is_built_without_memory_for_its_weights() -> None:
    """Unless it has a tensor beside its state: then each rank makes it, and trains with it."""
    models = {"resnet50": True, f"{TINY}:tiny": True, f"{TINY}:branched": False}
    found = succeeded(in_torch("python", "tests/lib/torch_ranks/on_meta.py", *models))
    assert json.loads(found.stdout) == models


def test_steps_of_few_examples_are_taken() -> None:
    """Of none nothing changes; of one, also in a part of a step, the weights do."""
    scant = ("python", "tests/lib/torch_ranks/scant_steps.py", "[[0, 1], [1, 1], [3, 4]]")
    none, one, in_parts = (float(each) for each in json.loads(succeeded(in_torch(*scant)).stdout))
    assert none == 0
    assert 0 < one < 10
    assert 0 < in_parts < 10


@pytest.mark.witness
def test_a_rank_that_works_alone_is_waited_for_and_one_that_does_not_come_is_named() -> None:
    """Rank 0 works alone for longer than a step may take, before it gathers and before it reduces. A timeout may be
    larger than PyTorch takes.
    """
    result = succeeded(torchrun(2, "tests/lib/torch_ranks/late_rank.py"))
    assert sorted(result.stdout.splitlines()) == [
        "0: 3",
        "0: done",
        "0: rank 1 did not come, and may hang; all ranks end (waited for 10 s, by --stall-timeout)",
        "1: 3",
        f"1: {LOST} (it waited for rank 0)",
        "1: done",
    ]


def test_what_cannot_be_divided_is_refused_in_one_line(root: Path) -> None:
    words = ["--data", str(root), "--batch", "64", "--max-steps", "1", "--strategy"]
    refused = {
        "needs a torch.nn.Sequential, whose layers it divides; --model gives NotSequential": [
            *("pipeline", "--model", f"{TINY}:not_sequential")
        ],
        "--model has 2.weight as 4.weight, too": ["tensor-parallel", "--model", f"{TINY}:shared"],
        "--batch 64 is not divisible by --micro-batches 5": ["pipeline", "--micro-batches", "5"],
        "3 ranks for 2 layers with weights": ["pipeline", "--model", "mlp"],
        "divides Branches, of at least 3, and pairs of torch.nn.Linear": ["tensor-parallel", "--model", "cnn"],
        f"--model '{TINY}:mistaken': tiny.py, line ": ["ddp", "--model", f"{TINY}:mistaken"],
        "--model-ranks 2 does not divide the number of ranks, 3": ["pipeline", "--model-ranks", "2"],
    }
    told = succeeded(torchrun(3, SEVERAL, json.dumps([[*words, *each] for each in refused.values()])))
    assert len(told.stdout.splitlines()) == len(refused)
    for line, found in zip(refused, told.stdout.splitlines(), strict=True):
        assert line in found
    failed(in_torch("python", MAIN, *words, "pipeline"), 2, "divides the model among ranks, and there is one")
