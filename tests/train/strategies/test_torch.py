"""PyTorch's strategies: DistributedDataParallel, and parts of a model on the ranks, by layer and by module."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lib.commands import failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.outcomes import distance, keys_of_split, last_checkpoint, require_each_key_once
from tests.lib.torch_ranks.running import in_torch, torchrun
from tests.lib.train_in_process import convert_here, evaluate_here, train_here
from train.parallel.endings import LOST
from train.tf_backend.builders import BUILDERS

pytestmark = pytest.mark.integration

MAIN = "train/main.py"
SEVERAL = "tests/lib/torch_ranks/several_runs.py"
TINY = "tests.lib.torch_ranks.tiny"
DDP, PIPELINE, TENSOR = (("--strategy", each) for each in ("ddp", "pipeline", "tensor-parallel"))
CLOSE = 1e-5  # of single precision, after 20 steps
UPDATE = ("--lr", 0.1, "--weight-decay", 0.001, "--label-smoothing", 0.1, "--clip-norm", 1, "--warmup-epochs", 0)


def run_several(ranks: int, *runs: Sequence[object]) -> list[str]:
    """Have so many ranks do these runs, see `tests.lib.torch_ranks.several_runs`; the lines of standard output."""
    words = json.dumps([[str(word) for word in each] for each in runs])
    return succeeded(in_torch("python", SEVERAL, ranks, words, OMP_NUM_THREADS="1")).stdout.splitlines()


def test_a_resume_changes_no_bit(root: Path) -> None:
    """With all that has state: momentum, batch norm, dropout, augmentation, loss scaling."""
    model = ("--model", f"{TINY}:tiny", "--batch", 16, "--accumulate", 2, "--precision", "float16")
    update = ("--optimizer", "lars", "--weight-decay", 0.001, "--epochs", 2, "--deterministic")
    words = ("--data", root, *DDP, *model, *update, "--augment", "crop,flip,colour", "--crop", 20, "--max-steps")
    parts = ("--run", "parts", "--resume", "auto")
    run_several(2, [*words, 17, *parts], [*words, 30, "--run", "whole"], [*words, 30, *parts])
    for file in ("model.safetensors", "optimizer.safetensors"):
        whole, resumed = (last_checkpoint(root, name) / file for name in ("whole", "parts"))
        assert whole.read_bytes() == resumed.read_bytes(), file


SHAPES = ((28, 28, 1, 10), (64, 64, 3, 7), (224, 224, 3, 1000))


def test_models_and_their_steps() -> None:
    """Models have the parameters of those of Keras; GoogLeNet has those of Caffe's (6,998,552), with 4 of batch norm
    for each of its 7,280 biases. One is built without memory for its weights, unless it has a tensor beside its state:
    then each rank makes it. A step of no example changes nothing; one of one example, or of few in parts, does.
    """
    facts = json.loads(succeeded(in_torch("python", "tests/lib/torch_ranks/facts.py", json.dumps(SHAPES))).stdout)
    expected = {name: [build(each[:3], each[3]).count_params() for each in SHAPES] for name, build in BUILDERS.items()}
    found = facts["parameters"]
    assert found.pop("googlenet")[2] == 6_998_552 + 3 * 7_280
    assert found == expected
    assert facts["on_meta"] == ["resnet50", f"{TINY}:tiny"]
    none, one, in_parts = map(float, facts["changes"])
    assert none == 0
    assert 0 < one < 10
    assert 0 < in_parts < 10
    assert facts["constant_channel"] == [[[[0.0]], [[0.0]]]]  # not divided by zero


def test_programs_of_their_own_read_each_example_once(root: Path) -> None:
    """On changing numbers of ranks and of workers, stopped between two rounds of the workers; and in each epoch of
    Lightning's Trainer. Any number of workers has the memory that it needs.
    """
    output = succeeded(in_torch("python", "tests/lib/torch_ranks/consume.py", root)).stdout
    found = json.loads(output.splitlines()[-1])
    keys = keys_of_split(root / "slices/default")
    assert sorted(found["keys"]) == keys
    assert found["batches"][:6] == [7, 7, 5, 5, 5, 10]
    assert found["batches"][6] == found["batches"][7] > 0
    assert found["epoch"] == 2
    first, second = found["of_lightning"]
    assert sorted(first) == sorted(second) == keys
    assert first != second  # in another order


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with slices of noise: in a plain region the frameworks' poolings take other ones of equal pixels."""
    folder, random = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    for number in range(300):
        path = folder / "source" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (28, 28, 3), dtype=np.uint8)).save(path)
    options = ("-r", "inline", "--size", 28, "--format", "png", "--workers", 2)
    succeeded(ringslice_here("pipeline", folder / "source", folder / "root", *options))
    return folder / "root"


HYPERPARAMETERS = ("--batch", 64, "--weight-decay", 0.001, "--label-smoothing", 0.1, "--clip-norm", 1, "--json")


@pytest.mark.parametrize(
    ("model", "optimizer"), [("mlp", "adam"), ("cnn", "sgd"), pytest.param("mlp", "adamw", marks=pytest.mark.chaos)]
)
def test_a_run_of_one_framework_goes_on_in_the_other(model: str, optimizer: str, noise: Path) -> None:
    """The same evaluation after a conversion, and the same weights after another step, also converted back."""
    keras, torch, back = (f"{optimizer}-{each}" for each in ("keras", "torch", "back"))
    words = ("--data", noise, "--model", model, "--optimizer", optimizer, *HYPERPARAMETERS)
    first = json.loads(succeeded(train_here(*words, "--run", keras, "--max-steps", 4)).stdout)
    succeeded(convert_here("--data", noise, "--run", keras, "--to", torch))
    failed(train_here(*words, "--run", torch, "--resume"), 2, "trained with torch, --strategy horovod trains with")
    resumed = ("alone-1", *words, *DDP, "--run", torch, "--resume", "auto", "--max-steps")
    again, ended = map(json.loads, run_several(1, [*resumed, 4], [*resumed, 5]))
    assert again["test_loss"] == pytest.approx(first["test_loss"], abs=2e-4)
    evaluated = json.loads(succeeded(evaluate_here("--data", noise, "--run", torch, "--json")).stdout)
    assert evaluated["loss"] == pytest.approx(ended["test_loss"], abs=2e-4)
    succeeded(convert_here("--data", noise, "--run", torch, "--to", back))
    succeeded(train_here(*words, "--run", keras, "--resume", "--max-steps", 5))
    assert distance(noise, keras, back, "kernel") < CLOSE
    assert distance(noise, keras, back, "momentum") < 10 * CLOSE
    succeeded(train_here(*words, "--run", back, "--resume", "--max-steps", 6))


def test_runs_of_both_frameworks_are_evaluated_and_promoted_by_pytorch(noise: Path) -> None:
    words = ("--data", noise, "--model", "mlp", *HYPERPARAMETERS, "--max-steps", 4)
    trained = json.loads(succeeded(train_here(*words, "--run", "keras")).stdout)
    succeeded(in_torch("python", MAIN, *words, *DDP, "--run", "torch"))
    common = ("--data", noise, "--json", *DDP)
    evaluated = succeeded(in_torch("python", "train/evaluate.py", *common, "--run", "keras")).stdout
    assert json.loads(evaluated)["loss"] == pytest.approx(trained["test_loss"], abs=2e-4)
    promoted = succeeded(in_torch("python", "train/promote.py", *common, "torch", "keras")).stdout
    assert json.loads(promoted)["promoted"]


def test_what_the_environment_lacks_is_named(root: Path) -> None:
    words = ("python", MAIN, "--data", root)
    failed(in_torch(*words), 3, "(--strategy horovod needs it). Run: pip install 'ringslice[train]'")
    failed(in_torch(*words, *DDP, "--device", "gpu"), 3, "PyTorch sees none on this host")


WIDE_BYTES = 206e6  # of the weights of tiny.wide
OTHER_BYTES = 160e6  # of stacks, batches and buffers of a rank


def runs_of_ddp(words: Sequence[object]) -> list[Sequence[object]]:
    """One process that is fed the batches of two ranks, and these ranks."""
    ddp = [*words, *DDP, "--max-steps", 15, "--batch"]
    return [["alone-2", *ddp, 128, "--run", "joined"], [*ddp, 32, "--accumulate", 2, "--run", "ddp"]]


def require_steps(root: Path, reference: str, equal: Sequence[str], controls: Sequence[str] = ()) -> None:
    """These runs have the weights of the reference, and the negative controls have not."""
    found = {name: distance(root, reference, name) for name in (*equal, *controls)}
    assert all(found[each] < CLOSE for each in equal), found
    assert all(found[each] > 100 * CLOSE for each in controls), found


@pytest.mark.witness
def test_ranks_and_parts_take_the_steps_of_one_process(root: Path) -> None:
    """Of one that is fed the batches of all ranks, or has the whole model; not if they do not exchange anything."""
    words = ["--data", root, "--model", f"{TINY}:smooth", *UPDATE]
    divided = [*words, "--max-steps", 15, "--batch", 64]
    lines = run_several(
        2,
        ["alone-1", *divided, *DDP, "--run", "whole"],
        [*divided, *PIPELINE, "--run", "pipeline"],
        [*divided, *TENSOR, "--run", "tensor"],
        *runs_of_ddp(words),
        ["without-gradients", *divided, *PIPELINE, "--run", "control-1"],
        ["without-sum", *divided, *TENSOR, "--run", "control-2"],
        ["without-reduction", *divided, *DDP, "--run", "control-3"],
    )
    require_steps(root, "whole", ["pipeline", "tensor"], ["control-1", "control-2"])
    require_steps(root, "joined", ["ddp"])
    assert any("the weights of ranks [1] are not those of rank 0" in line for line in lines)


def test_two_ranks_take_the_steps_of_one_process_with_other_models(root: Path) -> None:
    """A weight has no part in the loss, also with parts of a step, which are summed up on each rank. Branches on
    different ranks have batch norm and dropout in them. A stage begins in place. A layer that one rank leaves out in a
    step, and another does not, ends nothing.
    """
    words = ["--data", root, *UPDATE]
    in_place = [*words, "--model", f"{TINY}:in_place", "--batch", 64, "--max-steps", 15]
    noisy = [*words, "--model", f"{TINY}:noisy_branches", "--batch", 64, "--max-steps", 20]
    run_several(
        2,
        *runs_of_ddp([*words, "--model", f"{TINY}:PartlyUsed"]),
        ["alone-1", *noisy, *DDP, "--run", "noisy"],
        [*noisy, *TENSOR, "--run", "divided"],
        ["without-sum-of-branches", *noisy, *TENSOR, "--run", "control"],
        ["alone-1", *in_place, *DDP, "--run", "alone"],
        [*in_place, *PIPELINE, "--run", "in-place"],
        [*words, "--model", f"{TINY}:sometimes_used", "--batch", 64, "--epochs", 1, *DDP, "--run", "sometimes"],
    )
    require_steps(root, "joined", ["ddp"])
    require_steps(root, "noisy", ["divided"], ["control"])
    require_steps(root, "alone", ["in-place"])
    assert (root / "runs/sometimes/result.json").exists()


def test_copies_of_a_divided_model_take_the_steps_of_one_process_on_whatever_layout(root: Path) -> None:
    """Of one that is fed the batches of both copies; each example counts once. Batch norm is that of micro-batches in
    turn, also in steps that are not full.
    """
    words = ["--data", root, "--model", f"{TINY}:branched", *UPDATE, "--epochs", 1, "--audit"]
    divided, whole = [*words, "--batch", 32, "--model-ranks", 2], ["alone-2", *words, "--batch", 64, *DDP]
    one = ["--run", "one", "--resume", "auto"]
    normed = ["--data", root, "--model", f"{TINY}:normalised", "--max-steps", 15, *UPDATE]
    run_several(2, [*normed, *DDP, "--batch", 8, "--accumulate", 4, "--run", "in-turn"])
    stages = [*PIPELINE, "--pipeline-schedule", "gpipe", "--micro-batches", 4, "--model-ranks", 2]
    lines = run_several(
        4,
        [*normed, *stages, "--batch", 32, "--run", "stages"],
        [*whole, "--run", "whole"],
        [*divided, *TENSOR, *one, "--max-steps", 5],
        [*divided, *PIPELINE, *one, "--max-steps", 10],
        [*whole, *one, "--max-steps", 15],
        [*divided, *TENSOR, *one],
        ["without-average", *divided, *PIPELINE, "--run", "control-1", "--max-steps", 20],
        ["without-average", *divided, *TENSOR, "--run", "control-2"],
    )
    require_steps(root, "whole", ["one"], ["control-1"])
    require_steps(root, "in-turn", ["stages"])
    require_each_key_once(root / "runs/one", root / "slices/default", 1)
    assert any("the weights of ranks [2, 3] are not those of rank 0" in line for line in lines)


def test_a_run_goes_on_with_the_model_divided_otherwise(root: Path) -> None:
    """And on other numbers of ranks: each example once, with the weights and optimizer of a process that has taken all
    steps. Evaluations of any number of ranks are the same.
    """
    words = ("--data", root, "--model", f"{TINY}:deep", "--batch", 64, "--epochs", 2, *UPDATE, "--audit")
    one = (*words, "--run", "one", "--resume", "auto")
    run_several(3, [*one, *PIPELINE, "--max-steps", 8])
    whole = ["alone-1", *words, *DDP, "--run", "whole", "--max-steps", 26]
    run_several(2, whole, [*one, *TENSOR, "--max-steps", 26])
    assert distance(root, "whole", "one") < CLOSE
    trained = json.loads(run_several(4, [*one, *DDP, "--max-steps", 28], ["alone-1", *one, *DDP, "--json"])[-1])
    require_each_key_once(root / "runs/one", root / "slices/default", 2)
    evaluate = ("--data", root, "--run", "one", "--json")
    found = json.loads(succeeded(torchrun(2, "train/evaluate.py", *evaluate, *DDP)).stdout)
    assert (found["ranks"], found["accuracy"]) == (2, pytest.approx(trained["test_accuracy"], abs=1e-4))
    failed(evaluate_here(*evaluate), 2, "evaluate and promote a run of PyTorch with --strategy ddp")


@pytest.mark.parametrize(
    "has_branches", [False, pytest.param(True, marks=pytest.mark.chaos)], ids=["", "with branches"]
)
def test_a_model_too_large_for_one_rank_fits_two(has_branches: bool, root: Path) -> None:
    """Weights, Adam's moments, the gradients and a checkpoint are 7 times the weights on one rank, and 5 on the first
    of two. With all else, 7.9 and at most 6.6 were measured; the limit is between them.
    """
    limited = "tests/lib/torch_ranks/with_memory_limit.py"
    words = ("--data", root, "--model", f"{TINY}:wide", "--optimizer", "adam", "--batch", 8, "--max-steps", 2)
    extra = str(int(6.5 * WIDE_BYTES + OTHER_BYTES))
    alone = ("python", limited, *words, *DDP, "--run", "alone")
    failed(in_torch(*alone, EXTRA_BYTES=extra, OMP_NUM_THREADS="1"), 3, "out of memory (cannot allocate ")
    divided = [("a", *PIPELINE), ("b", *TENSOR), ("c", *TENSOR, "--model", f"{TINY}:wide_branches")]
    for name, *more in divided[: 2 + has_branches]:
        succeeded(torchrun(2, limited, *words, *more, "--run", name, EXTRA_BYTES=extra))


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
    words = ["--data", root, "--batch", 64, "--max-steps", 1, "--strategy"]
    refused = {
        "whose layers it divides; --model gives PartlyUsed": ["pipeline", "--model", f"{TINY}:PartlyUsed"],
        "--model gives Residual with a forward, hooks or": ["pipeline", "--model", f"{TINY}:residual"],
        "--model gives other logits once": ["tensor-parallel", "--model", f"{TINY}:Interposed"],
        "--model has 2.weight as 4.weight, too": ["tensor-parallel", "--model", f"{TINY}:shared"],
        "--model has none. Use ddp": ["tensor-parallel", "--model", f"{TINY}:hooked"],
        "gives (2, 20) in training, not logits": ["ddp", "--model", f"{TINY}:twice_in_training"],
        "--batch 64 is not divisible by --micro-batches 5": ["pipeline", "--micro-batches", "5"],
        "3 ranks for 2 layers with weights": ["pipeline", "--model", "mlp"],
        "divides Branches, of at least 3, and pairs of torch.nn.Linear": ["tensor-parallel", "--model", "cnn"],
        f"--model '{TINY}:mistaken': tiny.py, line ": ["ddp", "--model", f"{TINY}:mistaken"],
        "--model 'nothing:here'": ["ddp", "--model", "nothing:here"],
        "--model-ranks 2 does not divide the number of ranks, 3": ["pipeline", "--model-ranks", "2"],
    }
    for line, found in zip(refused, run_several(3, *([*words, *each] for each in refused.values())), strict=True):
        assert line in found
    failed(in_torch("python", MAIN, *words, "pipeline"), 2, "divides the model among ranks, and there is one")
