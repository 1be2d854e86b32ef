"""What is measured at every step: each step once, whatever stopped the run, and equal to what the result tells."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.python.summary.summary_iterator import summary_iterator

from etl.storage.place import Place, open_place
from tests.lib.commands import run, succeeded
from tests.lib.faults import Fault, faulty
from tests.lib.in_process import ringslice_here
from tests.lib.ranks.audits import committed_keys
from tests.lib.ranks.running import metric_lines
from tests.lib.train_in_process import train_here
from tests.train.conftest import TrainedRun
from train.runs.metrics import MetricsFiles, StepOfRank, now, shares, step_lines, sums_over, to_maximise, to_sum
from train.runs.metrics_writer import MetricsWriter
from train.runs.position import Position
from train.runs.tensorboard_events import scalars, windows
from train.trainer import commits
from train.trainer.commits import Keeper

ROUNDED = 2e-6
Line = dict[str, Any]


def measured(step: int, examples: float = 8.0, **seconds: float) -> StepOfRank:
    told: dict[str, Any] = {"input_s": 0.1, "compute_s": 0.2, "reduce_s": 0.05, "step_s": 0.4} | seconds
    return StepOfRank(step, 2 * examples, examples / 4, examples, 0.1, **told, time=now())


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


@given(st.lists(st.lists(st.floats(0, 1e5), min_size=3, max_size=3), min_size=1, max_size=40))
def test_the_slowest_rank_has_the_maximum(seconds: list[list[float]]) -> None:
    lines = lines_of(*[[measured(step, input_s=each) for step, each in enumerate(own, 1)] for own in seconds])
    for line, own in zip(lines, zip(*seconds, strict=True), strict=True):
        told = line["input_s"]
        assert told["max"] == pytest.approx(max(own), abs=ROUNDED)
        assert own[told["slowest_rank"]] == pytest.approx(max(own), abs=ROUNDED)
        assert told["mean"] == pytest.approx(sum(own) / len(own), abs=ROUNDED)


def test_a_step_of_repeats_alone_divides_by_nothing() -> None:
    assert lines_of([measured(1, examples=0)])[0]["loss"] == 0


def test_a_clock_that_is_set_back_costs_no_time_and_a_loss_that_is_no_number_is_none() -> None:
    step = StepOfRank.of(7, 0.1, (math.nan, 0, 8), (0.5, -10.0, 0.5, 2.0), now())
    (line,) = lines_of([step])
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    means = [line[name]["mean"] for name in ("input_s", "compute_s", "reduce_s", "step_s", "own_s")]
    assert means == [0.5, 0.0, 0.5, 2.0, 1.5]
    assert line["loss"] is None
    assert math.isnan(scalars([line])["step/loss"])


def test_shares_are_of_the_time() -> None:
    told = shares([measured(1), measured(2, step_s=0.6)])
    assert told == pytest.approx({"input": 0.2, "all-reduce": 0.1, "compute": 0.4})
    assert shares([]) == {"input": 0, "all-reduce": 0, "compute": 0}


def test_sums_are_over_steps() -> None:
    assert sums_over([measured(1), measured(2), measured(1), measured(2, examples=4)]) == (56, 7, 28)
    assert sums_over([]) == (0, 0, 0)


@given(st.integers(0, 2000), st.integers(1, 150))
def test_windows_hold_each_line_once(number: int, most: int) -> None:
    lines: list[Line] = [{"step": step} for step in range(number)]
    told = windows(lines, most)
    assert [line for window in told for line in window] == lines
    assert len(told) <= most
    assert len({len(window) for window in told[:-1]}) <= 1


def test_a_curve_shows_means() -> None:
    steps = [measured(1), measured(2, step_s=0.6)]
    window = lines_of(steps, steps)
    told = scalars(window)
    assert told["step/images_per_s"] == pytest.approx(32)
    assert told["share/input"] == pytest.approx(0.2)


def test_files_after_a_step_are_taken_back(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    files = MetricsFiles(place, (place / "_work").make_folder())
    for first in (1, 4, 7):
        files.publish(lines_of([measured(step) for step in range(first, first + 3)]))
    files.roll_back(6)
    assert steps_of(place) == [1, 2, 3, 4, 5, 6]
    files.publish(lines_of([measured(step) for step in (7, 8)]))
    assert steps_of(place) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_lines_are_in_files_that_end_with_a_checkpoint(tmp_path: Path) -> None:
    """Whenever they are written, a run that goes back to a checkpoint loses those after it, and no other."""
    place = open_place(str(tmp_path))
    lines: list[Line] = []
    writer = MetricsWriter(place, (place / "_work").make_folder(), lines)
    for last in (3, 5, 8):
        lines += lines_of([measured(step) for step in range(last - 1, last + 1)])
        writer.cut(last - 1)
    writer.start()
    writer.wait()
    assert lines == []
    assert steps_of(place) == [2, 3, 4, 5, 7, 8]
    writer.roll_back(4)
    assert steps_of(place) == [2, 3, 4]


def test_lines_are_told_once_where_only_the_curves_could_not_be_written(tmp_path: Path) -> None:
    place, lines = open_place(str(tmp_path)), lines_of([measured(1), measured(2)])
    writer = MetricsWriter(place, (place / "_work").make_folder(), lines)
    (tmp_path / "tensorboard").touch()  # where a folder is to be
    writer.write()
    assert len(lines) == 2
    lines += lines_of([measured(3)])
    writer.write()
    (tmp_path / "tensorboard").unlink()
    lines += lines_of([measured(4)])
    writer.write()
    assert not lines
    assert [line["step"] for line in metric_lines(tmp_path)] == [1, 2, 3, 4]


def test_lines_that_cannot_be_written_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = open_place(str(tmp_path))
    fault = Fault(5, dies=True)
    made = lines_of([measured(1), measured(2)])
    lines = made.copy()
    MetricsWriter(faulty(place, fault), faulty((place / "_work").make_folder(), fault), lines).write()
    assert "2 lines of metrics were not written (" in capsys.readouterr().err
    assert lines == made
    MetricsWriter(place, place / "_work", lines).write()
    assert lines == []
    assert steps_of(place) == [1, 2]


def steps_of(folder: Place) -> list[int]:
    return [line["step"] for line in metric_lines(Path(folder.path)) if line["kind"] == "step"]


@pytest.mark.integration
def test_a_run_that_is_stopped_and_gone_on_with_tells_each_step_once(
    stopped: TrainedRun, trained: TrainedRun, tmp_path: Path
) -> None:
    result = json.loads((stopped.folder / "result.json").read_text())
    assert (result["stopped"], result["steps"], len(result["epochs"])) == ("steps", 25, 1)
    assert steps_of(open_place(str(stopped.folder))) == list(range(1, 26))  # 20 of the first epoch, 5 of the second
    result = json.loads((trained.folder / "result.json").read_text())
    assert (result["stopped"], result["steps"], len(result["epochs"])) == ("epochs", 40, 2)
    lines = metric_lines(trained.folder)
    assert steps_of(open_place(str(trained.folder))) == list(range(1, result["steps"] + 1))
    require_result(lines, result)
    require_events(sorted((trained.folder / "tensorboard").iterdir()), lines)
    counts = json.loads((trained.folder / "confusion-test.json").read_text())["counts"]
    page = tmp_path / "page.html"
    succeeded(ringslice_here("report", trained.folder, "-o", page))
    assert f"{result['result']['test_accuracy']:.2%}".replace("%", " %") in page.read_text().replace("\xa0", " ")
    hits = sum(counts[each][each] for each in range(10))
    assert hits / sum(map(sum, counts)) == pytest.approx(result["result"]["test_accuracy"])


@pytest.mark.integration
def test_metrics_reach_the_disk_between_checkpoints(
    stopped: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from its last checkpoint takes those of the steps after it back."""
    made = stopped.copy(tmp_path / "root")
    monkeypatch.setattr(commits, "METRICS_S", 0.0)
    with monkeypatch.context() as patch:
        after_step = Keeper.after_step

        def dies(keeper: Keeper, position: Position, last: bool) -> Position:
            if position.step == 35:
                keeper._metrics.wait()
                raise KeyboardInterrupt
            return after_step(keeper, position, last)

        patch.setattr(Keeper, "after_step", dies)
        told = train_here(*made.training, "--epochs", 2, "--resume", "--audit")
        assert told.returncode != 0
    found = steps_of(open_place(str(made.folder)))
    assert found == list(range(1, len(found) + 1))
    assert 30 < len(found) < 35
    assert len(list(made.folder.glob("tensorboard/*"))) > 3
    succeeded(train_here(*made.training, "--epochs", 2, "--resume", "--audit"))
    keys = committed_keys(made.folder, epoch=2)
    assert len(keys) == len(set(keys)) == 300 - 5 * 15
    assert steps_of(open_place(str(made.folder))) == list(range(1, 41))
    lines = metric_lines(made.folder)
    require_result(lines, json.loads((made.folder / "result.json").read_text()))
    require_events(sorted((made.folder / "tensorboard").iterdir()), lines)


@pytest.mark.integration
def test_a_process_goes_on_with_a_run_and_records_a_timeline(stopped: TrainedRun, tmp_path: Path) -> None:
    """On Horovod, with the steps of before from another process."""
    made = stopped.copy(tmp_path / "root")
    words = (*made.training, "--epochs", 2, "--resume", "--record-timeline", "--json")
    told = succeeded(run("python", "train/main.py", *words))
    assert json.loads(told.stdout)["steps"] == 40
    assert steps_of(open_place(str(made.folder))) == list(range(1, 41))
    require_result(metric_lines(made.folder), json.loads((made.folder / "result.json").read_text()))
    assert "ALLREDUCE" in (made.folder / "timeline.json").read_text()


def require_result(lines: list[Line], result: Line) -> None:
    """The epochs that the result tells are those of the lines, and the sums of their steps."""
    history = [line for line in lines if line["kind"] == "epoch"]
    assert [
        {**each, "kind": "epoch", "step": line["step"], "time": line["time"]}
        for each, line in zip(result["epochs"], history, strict=True)
    ] == history
    for epoch in history:
        steps = [line for line in lines if line["kind"] == "step" and line["epoch"] == epoch["epoch"]]
        examples = sum(step["examples"] for step in steps)
        assert examples == 300
        for name in ("loss", "accuracy"):
            mean = sum(step[name] * step["examples"] for step in steps) / examples
            assert mean == pytest.approx(epoch[f"train_{name}"])
        for step in steps:
            whole, *parts = (step[name]["mean"] for name in ("step_s", "input_s", "compute_s", "reduce_s"))
            assert sum(parts) <= whole + ROUNDED


def require_events(files: list[Path], lines: list[Line]) -> None:
    """What TensorBoard would read: of each epoch and of each step, as few as they are, one."""
    events = [event for file in files for event in summary_iterator(str(file))]
    told = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in events]
    steps = {step: values for step, values in told if "step/loss" in values}
    epochs = {step: values for step, values in told if "epoch/train_loss" in values}
    assert list(steps) == [line["step"] for line in lines if line["kind"] == "step"]
    for line in lines:
        if line["kind"] == "step":
            assert steps[line["step"]]["step/loss"] == pytest.approx(line["loss"], rel=1e-6)
        else:
            assert epochs[line["epoch"]]["epoch/train_loss"] == pytest.approx(line["train_loss"], rel=1e-6)
