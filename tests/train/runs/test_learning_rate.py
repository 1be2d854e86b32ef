"""The schedule of a run: kept by its checkpoints, changed only by --decay-until; a note if it is not followed."""

import math
from pathlib import Path
from typing import Any

import pytest

from etl.errors import UsageError
from etl.storage.place import open_place
from tests.lib.commands import contents, failed, succeeded
from tests.lib.inline import shard_here
from tests.lib.ranks.running import metric_lines
from tests.lib.ranks.strategies import Alone
from tests.lib.train_in_process import train_here
from tests.train.conftest import MODEL, TrainedRun
from train.config.recipe import Recipe
from train.config.schedule import Schedule
from train.config.settings import AUTO, Settings
from train.config.stopping import Stopping
from train.monitor.monitor import Monitor
from train.runs.folder import find_dataset
from train.runs.learning_rate import recipe_of_run, schedule_notes
from train.runs.run import Choice, Run, open_run

STEPS = 20  # of an epoch of the trained run


def recipe_of(made: TrainedRun, epochs: int, **recipe: Any) -> Recipe:
    """That of the run, gone on with until so many epochs."""
    settings = Settings(str(made.root), Recipe(**recipe), Stopping(epochs), run="mine", resume=AUTO)
    dataset, run = find_dataset(str(made.root), None), open_place(str(made.folder))
    return recipe_of_run(settings, dataset, run, ranks=1, log=Monitor().log)


def notes(epochs: int, max_steps: int | None = None, max_time_s: float | None = None, **recipe: Any) -> list[str]:
    """Of a run of 10 steps per epoch."""
    stopping = Stopping(epochs, max_steps=max_steps, max_time_s=max_time_s)
    settings = Settings("d", Recipe(**recipe).resolved(epochs), stopping)
    return list(schedule_notes(settings, 256, math.inf if max_steps is None else max_steps / 10))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, None),
        ({"decay": "step", "max_steps": 100}, None),
        ({"warmup_epochs": 5}, None),
        ({"max_steps": 32}, "ends the run at epoch 3.2 of 10, at a learning rate of 0.86 of its peak"),
        ({"decay_until": 3, "warmup_epochs": 5}, "--warmup-epochs 5 is not below the end of the decay at epoch 3: the"),
        ({"decay_until": 8}, "the learning rate is 0 from epoch 8 to the end of the run at epoch 10"),
        ({"max_time_s": 90}, "--max-time 90 s may end the run before epoch 10, until which the learning rate decays;"),
        ({"warmup_epochs": 10, "decay": "none"}, "--warmup-epochs 10: --epochs 10 ends the run at epoch 10"),
    ],
)
def test_a_schedule_that_is_not_followed_to_its_end_is_reported(options: dict[str, Any], line: str | None) -> None:
    found = notes(10, **options)
    assert found == [] if line is None else line in found[0]


@pytest.mark.integration
def test_a_ring_keeps_the_batch_of_the_first_one(stopped: TrainedRun) -> None:
    """300 examples: a batch of 8 on 1 rank, of 4 on 8 ranks."""
    settings = Settings(str(stopped.root), Recipe(model=MODEL, crop=20), run="new")
    earlier = Run.of(settings, Choice(find_dataset(settings.data, None), str(stopped.root / "runs/new"), replicas=8))
    for each, batch in ((None, 8), (earlier, 4)):
        strategy = Alone(earlier=each)
        assert open_run(settings, strategy, print).settings.recipe.batch == batch


@pytest.mark.integration
def test_more_epochs_need_a_new_end_of_the_decay(trained: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as raised:
        recipe_of(trained, 4)
    assert "give --decay-until 4, which lifts it from 0 to 0.5 of its peak, --decay-until 2, which" in str(raised.value)
    assert recipe_of(trained, 4, decay_until=2).decay_until == 2
    assert capsys.readouterr().err == ""
    assert recipe_of(trained, 4, decay_until=4).decay_until == 4
    assert "until epoch 4 instead of 2, and goes on at 0.5 of its peak instead of 0\n" in capsys.readouterr().err


@pytest.mark.integration
def test_a_refused_resume_writes_nothing_and_an_allowed_one_is_kept(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    before = contents(made.folder)
    failed(train_here(*made.training, "--epochs", 3, "--resume"), 2, "give --decay-until 3, which lifts it from 0.31")
    assert contents(made.folder) == before
    more = ("--epochs", 3, "--resume", "--max-steps")
    result = succeeded(train_here(*made.training, *more, 26, "--decay-until", 3)).stderr
    assert "--decay-until 3: the learning rate decays until epoch 3 instead of 2" in result
    assert "--max-steps 26 ends the run at epoch 1.3 of 3, at a learning rate of 0.6 of its peak" in result
    assert "without a validation split" not in result
    assert "instead of 2" not in succeeded(train_here(*made.training, *more, 27)).stderr
    rates = {line["step"]: line["rate"] for line in metric_lines(made.folder) if line["kind"] == "step"}
    ends = {25: 2, 26: 3, 27: 3}  # where the decay ended for these steps
    assert {step: rates[step] for step in ends} == pytest.approx(
        {step: Schedule(1, 0, end).rate((step - 1) / STEPS, 15) for step, end in ends.items()}
    )


@pytest.mark.integration
def test_a_run_that_selects_on_its_test_split_reports_it(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    shard_here(made.root, "--workers", 2, "--split", "train=0.5,test=0.5", "--name", "two")
    words = ("--data", made.root, "--name", "two", "--run", "new", "--model", MODEL, "--crop", 20)
    result = succeeded(train_here(*words, "--max-steps", 1)).stderr
    lines = [line for line in result.splitlines() if "without a validation split" in line]
    assert len(lines) == 1
    assert "ringslice shard --split train=0.8,validation=0.1,test=0.1" in lines[0]
