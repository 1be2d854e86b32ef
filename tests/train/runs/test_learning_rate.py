"""The schedule of a run: kept by its checkpoints, changed only by --decay-until; a note if it is not followed."""

import math
from pathlib import Path
from typing import Any

import pytest

from etl.errors import UsageError
from tests.lib.commands import contents, failed, succeeded
from tests.lib.ranks.running import metric_lines
from tests.lib.ranks.strategies import Alone
from tests.lib.train_in_process import train_here
from tests.train.conftest import MODEL, TrainedRun
from train.config.recipe import Recipe
from train.config.schedule import Schedule
from train.config.settings import Settings
from train.config.stopping import Stopping
from train.runs.folder import find_dataset
from train.runs.learning_rate import schedule_notes
from train.runs.run import Choice, Run, open_run, require_possible

STEPS = 20  # of an epoch of the trained run


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
    with pytest.raises(UsageError, match="301 ranks for 300 training examples; start fewer ranks"):
        require_possible(open_run(settings, Alone(), print), ranks=301)


@pytest.mark.integration
def test_a_refused_resume_writes_nothing_and_an_allowed_one_is_kept(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    before = contents(made.folder)
    refused = train_here(*made.training, "--epochs", 3, "--resume")
    failed(refused, 2, "give --decay-until 3, which lifts it from 0.31 to 0.63")
    assert contents(made.folder) == before
    more = ("--epochs", 3, "--resume", "--max-steps")
    result = succeeded(train_here(*made.training, *more, 26, "--decay-until", 3)).stderr
    assert "decays until epoch 3 instead of 2, and goes on at 0.63 of its peak instead of 0.31\n" in result
    assert "--max-steps 26 ends the run at epoch 1.3 of 3, at a learning rate of 0.6 of its peak" in result
    assert "without a validation split" not in result
    assert "decays until" not in succeeded(train_here(*made.training, *more, 27)).stderr
    rates = {line["step"]: line["rate"] for line in metric_lines(made.folder) if line["kind"] == "step"}
    ends = {25: 2, 26: 3, 27: 3}  # where the decay ended for these steps
    assert {step: rates[step] for step in ends} == pytest.approx(
        {step: Schedule(1, 0, end).rate((step - 1) / STEPS, 15) for step, end in ends.items()}
    )
