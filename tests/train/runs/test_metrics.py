"""What is measured at every step: each step once, whatever stopped the run, and equal to the result."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.python.summary.summary_iterator import summary_iterator

from etl.storage.place import Place
from tests.lib.commands import succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.outcomes import committed_keys
from tests.lib.ranks.running import bytes_per_step, metric_lines
from tests.lib.train_in_process import train_here
from tests.train.conftest import TrainedRun
from train.parallel.trainer import StepOfRank
from train.reader.state import ReaderState
from train.runs import metrics_log
from train.runs.hooks import Hooks
from train.runs.metrics import PARTS, Line, lines_until, now, shares, step_lines, sums_over, to_maximise, to_sum
from train.runs.metrics_writer import MetricsWriter
from train.runs.position import Position
from train.runs.results import describe_steps
from train.runs.tensorboard_events import scalars, windows

ROUNDED = 2e-6


def test_lines_of_what_is_done_again_are_left_out() -> None:
    """A ring ended at step 9, in the evaluation after epoch 2, whose commit was before; step 10 was reported, too."""
    lines = [{"kind": "step", "step": step, "epoch": 1 + step // 7} for step in (6, 9, 10)]
    lines += [{"kind": "epoch", "step": 6, "epoch": 1}, {"kind": "epoch", "step": 9, "epoch": 2}]
    position = Position(9, ReaderState("these", "train", 0, 2, 16, ((0, 100),), 1, 1, 10))
    assert lines_until(position, lines) == [lines[0], lines[1], lines[3]]


def measured(step: int, examples: float = 8.0, **seconds: float) -> StepOfRank:
    default: dict[str, Any] = {"input_s": 0.1, "compute_s": 0.2, "reduce_s": 0.05, "step_s": 0.4}
    return StepOfRank(step, 2 * examples, examples / 4, examples, 0.1, **default | seconds, time=now())


def lines_of(*ranks: Sequence[StepOfRank], epoch: int = 1) -> list[Line]:
    """The lines of steps, from what each rank has measured."""
    sums = np.sum([to_sum(steps) for steps in ranks], axis=0)
    largest = np.max([to_maximise(steps, rank) for rank, steps in enumerate(ranks)], axis=0)
    return step_lines(epoch, ranks[0], sums, largest, len(ranks))


def test_a_line_is_of_all_ranks() -> None:
    (line,) = lines_of([measured(7)], [measured(7, examples=0, input_s=0.3)], [measured(7, step_s=3600.5)], epoch=3)
    assert (line["epoch"], line["step"], line["examples"], line["ranks"]) == (3, 7, 16, 3)
    assert (line["loss"], line["accuracy"]) == (2, 0.25)
    assert line["input_s"] == {"mean": pytest.approx(0.5 / 3, abs=ROUNDED), "max": 0.3, "slowest_rank": 1}
    assert line["step_s"] == {"mean": pytest.approx(3601.3 / 3, abs=ROUNDED), "max": 3600.5, "slowest_rank": 2}
    assert line["own_s"]["max"] == pytest.approx(3600.45)


def test_a_clock_that_is_set_back_and_a_loss_that_is_not_finite() -> None:
    step = StepOfRank.of(7, 0.1, (math.nan, 0, 8), (0.5, -10.0, 0.5, 2.0), now())
    (line,) = lines_of([step])
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    means = [line[name]["mean"] for name in ("input_s", "compute_s", "reduce_s", "step_s", "own_s")]
    assert means == [0.5, 0.0, 0.5, 2.0, 1.5]
    assert line["loss"] is None
    assert math.isnan(scalars([line])["step/loss"])


def test_sums_and_shares_of_steps() -> None:
    assert lines_of([measured(1, examples=0)])[0]["loss"] == 0
    assert ", 40 images/s (" in describe_steps([measured(1), measured(2)], 2)
    assert describe_steps([], 2) == ""
    steps = [measured(1), measured(2, step_s=0.6)]
    assert shares(steps) == pytest.approx({"input": 0.2, "all-reduce": 0.1, "compute": 0.4})
    assert shares([]) == {"input": 0, "all-reduce": 0, "compute": 0}
    assert sums_over([*steps, measured(3, examples=4)]) == (40, 5, 20)
    curve = scalars(lines_of(steps, steps))
    assert (curve["step/images_per_s"], curve["share/input"]) == pytest.approx((32, 0.2))
    lines: list[Line] = [{"step": step} for step in range(250)]
    assert windows(lines, 100) == [lines[first : first + 3] for first in range(0, 250, 3)]


def test_lines_are_in_files_that_end_with_a_checkpoint(place: Place, staging: Place) -> None:
    """A run that goes back to a checkpoint loses the lines after it, and no others."""
    lines: list[Line] = []
    writer = MetricsWriter(place, staging, lines)
    for last in (3, 5, 8):
        lines += lines_of([measured(step) for step in range(last - 1, last + 1)])
        writer.cut(last - 1)
    writer.start()
    writer.wait()
    assert lines == []
    assert steps_of(Path(place.path)) == [2, 3, 4, 5, 7, 8]
    writer.roll_back(4)
    assert steps_of(Path(place.path)) == [2, 3, 4]


def test_lines_are_written_once_if_the_curves_could_not_be_written(place: Place, staging: Place) -> None:
    lines = lines_of([measured(1), measured(2)])
    writer = MetricsWriter(place, staging, lines)
    curves = Path(place.make_folder().path) / "tensorboard"
    curves.touch()  # in the way of a folder
    writer.write()
    assert len(lines) == 2
    lines += lines_of([measured(3)])
    writer.write()
    curves.unlink()
    writer.write()
    assert not lines
    assert steps_of(Path(place.path)) == [1, 2, 3]


def steps_of(run: Path) -> list[int]:
    return [line["step"] for line in metric_lines(run) if line["kind"] == "step"]


@pytest.mark.integration
def test_a_resumed_run_records_each_step_once(stopped: TrainedRun, trained: TrainedRun, tmp_path: Path) -> None:
    result = stopped.read()
    assert (result["stopped"], result["steps"], len(result["epochs"])) == ("steps", 25, 1)
    assert result["weights"] == {"epoch": 2, "step": 25}
    assert steps_of(stopped.folder) == list(range(1, 26))  # 20 of the first epoch, 5 of the second
    result = trained.read()
    assert (result["stopped"], result["steps"], len(result["epochs"])) == ("epochs", 40, 2)
    assert result["weights"] == {"epoch": 2, "step": 40}
    assert steps_of(trained.folder) == list(range(1, 41))
    require_metrics(trained)
    assert max(bytes_per_step(trained.folder)) < 1000  # there is no other rank; see tests/train/test_commands.py
    accuracy, counts = result["result"]["test_accuracy"], trained.read("confusion-test.json")["counts"]
    assert sum(counts[each][each] for each in range(10)) / sum(map(sum, counts)) == pytest.approx(accuracy)
    page = tmp_path / "page.html"
    succeeded(ringslice_here("report", trained.folder, "-o", page))
    assert f"{accuracy:.2%}".replace("%", " %") in page.read_text().replace("\xa0", " ")


class Interrupt(Hooks):
    """Ends the run after step 35."""

    def on_step(self, running: Any, position: Position) -> None:
        running.metrics.wait()  # else a slow write is still at work when the next one is due
        if position.step == 35:
            running.checkpoints.wait()
            raise KeyboardInterrupt


@pytest.mark.integration
def test_metrics_reach_the_disk_between_checkpoints(
    stopped: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from its last checkpoint takes those of the steps after it back."""
    made = stopped.copy(tmp_path / "root")
    monkeypatch.setattr(metrics_log, "METRICS_S", 0.0)
    monkeypatch.setattr(metrics_log, "MAX_REPORT_STEPS", 2)
    assert train_here(*made.training, "--epochs", 2, "--resume", "--audit", hooks=Interrupt()).returncode != 0
    found = steps_of(made.folder)
    assert found == list(range(1, len(found) + 1))
    assert 30 < len(found) < 35
    assert len(list(made.folder.glob("tensorboard/*"))) > 3
    succeeded(train_here(*made.training, "--epochs", 2, "--resume", "--audit"))
    keys = committed_keys(made.folder, epoch=2)
    assert len(keys) == len(set(keys)) == 300 - 5 * 15
    assert steps_of(made.folder) == list(range(1, 41))
    require_metrics(made)


def require_metrics(made: TrainedRun) -> None:
    """The epochs of the result are those of the lines and the sums of their steps; TensorBoard shows the same."""
    lines = metric_lines(made.folder)
    of_steps, history = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    differs = {"kind": "epoch", "step": None, "time": None}
    assert [line | differs for line in history] == [each | differs for each in made.read()["epochs"]]
    for epoch in history:
        steps = [line for line in of_steps if line["epoch"] == epoch["epoch"]]
        assert sum(step["examples"] for step in steps) == 300
        for name in ("loss", "accuracy"):
            mean = sum(step[name] * step["examples"] for step in steps) / 300
            assert mean == pytest.approx(epoch[f"train_{name}"])
    for step in of_steps:
        assert sum(step[name]["mean"] for name in PARTS.values()) <= step["step_s"]["mean"] + ROUNDED
    files = sorted((made.folder / "tensorboard").iterdir())
    events = [event for file in files for event in summary_iterator(str(file))]
    curves = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in events]
    for tag, expected in (
        ("step/loss", [(line["step"], line["loss"]) for line in of_steps]),
        ("epoch/train_loss", [(line["epoch"], line["train_loss"]) for line in history]),
    ):
        found = [(step, values[tag]) for step, values in curves if tag in values]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
