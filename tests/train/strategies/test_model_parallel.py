"""Parts of a model on the ranks, by layer (pipeline) and by module (tensor parallel)."""

import json
from pathlib import Path

import pytest

from tests.lib.commands import failed, succeeded
from tests.lib.ranks.audits import require_each_key_once
from tests.lib.torch_ranks.running import in_torch, torchrun
from tests.lib.torch_ranks.weights import distance

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("torch_environment")]

MAIN = "train/main.py"
SEVERAL = "tests/lib/torch_ranks/several_runs.py"
TINY = "tests.lib.torch_ranks.tiny"
CLOSE = 1e-5  # of single precision
WIDE_BYTES = 206e6  # of the weights of tiny.wide
OTHER_BYTES = 130e6  # of stacks, batches and buffers of a rank
UPDATE = ("--lr", "0.1", "--weight-decay", "0.001", "--label-smoothing", "0.1", "--clip-norm", "1")


@pytest.mark.witness
def test_parts_take_the_steps_of_the_whole_model(root: Path) -> None:
    words = ["--data", str(root), "--model", f"{TINY}:smooth", "--batch", "64", "--max-steps", "15", *UPDATE]
    pipeline, tensor = ([*words, "--strategy", each, "--run"] for each in ("pipeline", "tensor-parallel"))
    runs = [
        [*words, "--strategy", "ddp", "--run", "whole"],
        [*pipeline, "pipeline"],
        [*tensor, "tensor"],
        ["without-gradients", *pipeline, "control-1"],
        ["without-sum", *tensor, "control-2"],
    ]
    succeeded(torchrun(2, SEVERAL, json.dumps(runs)))
    names = [each[each.index("--run") + 1] for each in runs]
    found = {name: distance(root, "whole", name) for name in names}
    assert all(found[each] < CLOSE for each in ("pipeline", "tensor")), found
    assert all(found[each] > 100 * CLOSE for each in ("control-1", "control-2")), found


def test_branches_on_different_ranks_take_the_steps_of_the_whole_model(root: Path) -> None:
    """With batch norm and dropout in them; and those of two copies, on whatever division a run goes on."""
    words = ["--data", str(root), *UPDATE, "--warmup-epochs", "0"]
    noisy = [*words, "--model", f"{TINY}:noisy_branches", "--batch", "64", "--max-steps", "20"]
    runs = [
        [*noisy, "--strategy", "ddp", "--run", "noisy"],
        [*noisy, "--strategy", "tensor-parallel", "--run", "divided"],
        ["without-sum-of-branches", *noisy, "--strategy", "tensor-parallel", "--run", "control"],
    ]
    succeeded(torchrun(2, SEVERAL, json.dumps(runs)))
    assert distance(root, "noisy", "divided") < CLOSE
    assert distance(root, "noisy", "control") > 100 * CLOSE
    words += ["--model", f"{TINY}:branched"]
    whole = [*words, "--batch", "64", "--strategy", "ddp"]
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
    succeeded(torchrun(4, SEVERAL, json.dumps(runs), RANKS="2"))
    assert distance(root, "whole", "one") < CLOSE
    assert distance(root, "whole", "control-2") > 100 * CLOSE


def test_copies_of_a_divided_model_take_the_steps_of_one_process_that_is_fed_their_batches(root: Path) -> None:
    """And each example counts once, on whatever layout a run goes on."""
    words = ["--data", str(root), "--model", f"{TINY}:smooth", *UPDATE, "--warmup-epochs", "0"]
    divided = [*words, "--batch", "32", "--model-ranks", "2", "--strategy"]
    runs = [
        [*words, "--batch", "64", "--strategy", "ddp", "--run", "whole"],
        [*divided, "pipeline", "--run", "pipeline"],
        [*divided, "tensor-parallel", "--run", "tensor"],
        ["without-average", *divided, "pipeline", "--run", "control-1"],
        ["without-average", *divided, "tensor-parallel", "--run", "control-2"],
    ]
    one = ["--run", "one", "--resume", "auto", "--audit", "--epochs", "2", "--max-steps"]
    going_on = [
        [*divided, "tensor-parallel", *one, "10"],
        [*words, "--batch", "64", "--strategy", "ddp", *one, "30"],
        [*divided, "pipeline", *one, "100"],
        ["without-average", *divided, "tensor-parallel", "--run", "control-3", "--epochs", "1"],
    ]
    equal_steps = [[*each, "--max-steps", "15"] for each in runs]
    told = succeeded(torchrun(4, SEVERAL, json.dumps([*equal_steps, *going_on]), RANKS="2"))
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
        "--model-ranks 2 does not divide the number of ranks, 3": ["pipeline", "--model-ranks", "2"],
    }
    told = succeeded(torchrun(3, SEVERAL, json.dumps([[*words, *each] for each in refused.values()])))
    assert len(told.stdout.splitlines()) == len(refused)
    for line, found in zip(refused, told.stdout.splitlines(), strict=True):
        assert line in found
    failed(in_torch("python", MAIN, *words, "pipeline"), 2, "divides the model among ranks, and there is one")
