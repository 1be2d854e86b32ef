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


def test_batch_norm_is_that_of_micro_batches_in_turn(root: Path) -> None:
    """Of full steps (--drop-last): a pipeline's micro-batches have the padding, too."""
    words = ("--data", root, "--model", f"{TINY}:normalised", "--max-steps", 15, *UPDATE, "--drop-last")
    succeeded(in_torch("python", MAIN, *words, "--strategy", "ddp", "--batch", 16, "--accumulate", 4, "--run", "whole"))
    stages = ("--strategy", "pipeline", "--pipeline-schedule", "gpipe", "--micro-batches", 4)
    succeeded(torchrun(2, MAIN, *words, *stages, "--batch", 64, "--run", "stages"))
    assert distance(root, "whole", "stages") < CLOSE


def test_what_cannot_be_divided_is_refused_in_one_line(root: Path) -> None:
    words = ["--data", str(root), "--batch", "64", "--max-steps", "1", "--strategy"]
    refused = {
        "needs a torch.nn.Sequential, whose layers it divides; --model gives NotSequential": [
            *("pipeline", "--model", f"{TINY}:not_sequential")
        ],
        "--batch 64 is not divisible by --micro-batches 5": ["pipeline", "--micro-batches", "5"],
        "3 ranks for 2 layers with weights": ["pipeline", "--model", "mlp"],
        "divides pairs of torch.nn.Linear": ["tensor-parallel", "--model", "cnn"],
    }
    told = succeeded(torchrun(3, SEVERAL, json.dumps([[*words, *each] for each in refused.values()])))
    assert len(told.stdout.splitlines()) == len(refused)
    for line, found in zip(refused, told.stdout.splitlines(), strict=True):
        assert line in found
    failed(in_torch("python", MAIN, *words, "pipeline"), 2, "divides the model among ranks, and there is one")
