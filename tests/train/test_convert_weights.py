"""Copies of a checkpoint for the other framework, to the new run ``place``: their settings, and who makes them."""

from pathlib import Path

import numpy as np
import pytest

from etl.errors import EnvironmentFailure, UsageError
from etl.stages.lease import BusyError, Lease
from etl.stages.names import WORK_FOLDER
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.checkpoints.conversion import convert_to_tensorflow, convert_to_torch, weights_of
from train.checkpoints.store import Checkpoint
from train.config.recipe import Recipe
from train.convert_weights import convert


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """The checkpoint of a run of TensorFlow with options that PyTorch's strategies refuse."""
    run = open_place(str(tmp_path / "keras"))
    staging = (run / WORK_FOLDER).make_folder()
    model = {each.keras: np.zeros((2, 3), np.float32) for each in weights_of("mlp")}
    settings = Recipe(model="mlp", batch=8, compression="fp16", xla=True).to_json() | {"group": None}
    facts = {"framework": "tensorflow", "settings": settings}
    return store.write(run, staging, 4, {"model": model, "optimizer": {}}, facts)


def test_a_copy_has_no_option_that_pytorch_refuses(checkpoint: Checkpoint, place: Place) -> None:
    """What a copy that failed has left is replaced."""
    made = convert(checkpoint, place)
    assert made.marker["framework"] == "torch"
    assert made.marker["settings"] == checkpoint.marker["settings"] | {"compression": "none", "xla": False}
    assert [info.base_name for info in place.children()] == ["checkpoints"]
    with pytest.raises(UsageError, match=r"--to .* already exists; give another name"):
        convert(checkpoint, place)
    (made.folder / "checkpoint.json").delete()
    assert convert(checkpoint, place).marker == made.marker


def test_updates_of_adam_are_counted_as_before() -> None:
    """Asynchronous workers make several in a step."""
    weights = weights_of("mlp")
    model = {each.keras: np.zeros((2, 3), np.float32) for each in weights}
    names = ["iteration", *(f"x_{moment}" for moment in ("momentum", "velocity") for _ in weights)]
    optimizer = {f"{number:04d}-{name}": np.full((2, 3), 18, np.float32) for number, name in enumerate(names)}
    optimizer["0000-iteration"] = np.array(18, np.int64)
    groups = convert_to_torch("mlp", {"model": model, "optimizer": optimizer}, 6)
    assert {float(each) for name, each in groups["optimizer"].items() if name.startswith("step.")} == {18.0}
    assert convert_to_tensorflow("mlp", groups, 6)["optimizer"]["0000-iteration"] == 18


def test_settings_that_pytorch_does_not_support_are_refused(tmp_path: Path, place: Place) -> None:
    settings = Recipe(model="mlp", batch=8, batch_norm="synchronised", accumulate=2).to_json() | {"group": None}
    marker = {"framework": "tensorflow", "settings": settings}
    with pytest.raises(UsageError, match="--accumulate 2 is not supported by --strategy ddp with --batch-norm"):
        convert(Checkpoint(open_place(str(tmp_path)), marker), place)


def test_a_trainer_that_begins_the_run_keeps_it(checkpoint: Checkpoint, place: Place) -> None:
    Lease.take(place / WORK_FOLDER, "a trainer")
    with pytest.raises(BusyError, match=r"train/convert_weights.py to .*/run is locked by process "):
        convert(checkpoint, place)
    assert [info.base_name for info in place.children()] == [WORK_FOLDER]


def test_a_checkpoint_that_its_trainer_removes_meanwhile_is_not_damaged(checkpoint: Checkpoint, place: Place) -> None:
    checkpoint.folder.delete()
    with pytest.raises(EnvironmentFailure, match="step-00000004 was removed or replaced meanwhile; run again"):
        convert(checkpoint, place)
