"""The metrics of a run, from ``RUN/metrics``: a JSON line for each step and each epoch, in files by ascending steps."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.stages.run_files import METRICS_FOLDER
from etl.storage.place import Place

PREFIX, SUFFIX = "steps-", ".jsonl"
PARTS = ("input", "compute", "all-reduce", "other")  # of a step's time, on each rank
TIMED = ("input_s", "compute_s", "reduce_s", "own_s")  # what a line has the maximum over the ranks of
OWN = TIMED.index("own_s")  # a rank's time without the all-reduce: the others wait for the rank with the most

Seconds = npt.NDArray[np.float64]
Epoch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of so many ``ranks``: the means over them of `PARTS`, the maxima of `TIMED`, and the ranks of these.

    ``time`` is when the step was over on rank 0.

    A loss, an accuracy or a rate that is not told, or no finite number, is NaN.
    """

    number: int
    epoch: int
    time: datetime
    examples: int
    loss: float
    accuracy: float
    rate: float
    ranks: int
    mean_s: Seconds
    largest_s: Seconds
    slowest: npt.NDArray[np.int64]

    @property
    def total_s(self) -> Seconds:
        """The seconds of all ranks together, by `PARTS`."""
        return self.mean_s * self.ranks

    @property
    def others_own_s(self) -> float:
        """The mean, over all ranks but the slowest, of a rank's time without the all-reduce."""
        own = self.total_s.sum() - self.total_s[PARTS.index("all-reduce")]
        return float(max(0.0, own - self.largest_s[OWN]) / max(1, self.ranks - 1))


@dataclass
class Metrics:
    """Steps and epochs in their order. ``epochs`` hold the numbers of a line by name, "epoch" and "step" among them.

    ``usage`` are the lines of what the ranks used, each of some steps.
    """

    steps: list[Step] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    lines: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line; of a kind that is not known, nothing.

        A run that went back to a checkpoint tells of some steps twice: the last telling counts. Raises KeyError,
        TypeError or ValueError where the line is damaged.
        """
        self.lines += 1
        if line["kind"] == "step":
            step = _step(line)
            while self.steps and self.steps[-1].number >= step.number:
                self.steps.pop()
            while self.epochs and self.epochs[-1]["step"] >= step.number:
                self.epochs.pop()
            while self.usage and self.usage[-1]["step"] >= step.number:
                self.usage.pop()
            self.steps.append(step)
        elif line["kind"] == "epoch":
            epoch = _epoch(line)
            while self.epochs and self.epochs[-1]["epoch"] >= epoch["epoch"]:
                self.epochs.pop()
            self.epochs.append(epoch)
        elif line["kind"] == "ranks":
            self.usage.append(line)

    @property
    def lost_steps(self) -> int:
        """Steps between the first and the last that no line tells of."""
        return self.steps[-1].number - self.steps[0].number + 1 - len(self.steps) if self.steps else 0


def read_metrics(run: Place) -> Metrics:
    """All lines of the run in this folder; memory goes by the number of steps.

    Raises DataError naming file and line where one is damaged.
    """
    metrics = Metrics()
    for place in metric_files(run):
        for number, line in enumerate(place.read_bytes().splitlines(), 1):
            try:
                metrics.add(json.loads(line))
            except KeyError as error:
                _refuse(place, number, f"it has no {error.args[0]}")
            except (TypeError, ValueError, OverflowError) as error:
                _refuse(place, number, str(error))
    return metrics


def metric_files(run: Place) -> Iterator[Place]:
    """The files of lines in the order of their steps."""
    folder = run / METRICS_FOLDER
    names = [info.base_name for info in folder.children() if info.is_file]
    for name in sorted(names):
        if name.startswith(PREFIX) and name.endswith(SUFFIX):
            yield folder / name


def _refuse(place: Place, number: int, what: str) -> None:
    raise DataError(
        f"{place}, line {number} is damaged ({what}); put back a sound copy, or move the file away to see the rest"
    ) from None


def _step(line: Mapping[str, Any]) -> Step:
    ranks = _whole(line, "ranks")
    whole, *timed = (_spread(line, key, ranks) for key in ("step_s", *TIMED))
    means = [mean for mean, _, _ in timed[:OWN]]
    return Step(
        _whole(line, "step"),
        _whole(line, "epoch"),
        _time(line["time"]),
        _whole(line, "examples"),
        _number(line.get("loss")),
        _number(line.get("accuracy")),
        _number(line.get("rate")),
        ranks,
        np.array([*means, max(0.0, whole[0] - sum(means))]),
        np.array([largest for _, largest, _ in timed]),
        np.array([rank for _, _, rank in timed]),
    )


def _spread(line: Mapping[str, Any], key: str, ranks: int) -> tuple[float, float, int]:
    """The mean and the maximum of a time over the ranks, and the rank of the maximum."""
    told = line[key]
    if not isinstance(told, dict):
        raise ValueError(f"{key} is {told!r}, no object with mean, max and slowest_rank")
    mean, largest = (_number(told[name]) for name in ("mean", "max"))
    if not (0 <= mean < math.inf and 0 <= largest < math.inf):
        raise ValueError("seconds must be finite and not negative")
    rank = _whole(told, "slowest_rank")
    if rank >= ranks:
        raise ValueError(f"slowest_rank of {key} is {rank}, of {ranks} ranks")
    return mean, largest, rank


def _epoch(line: Mapping[str, Any]) -> Epoch:
    """Also of an entry of the history in ``result.json``, which has no "step": then it is 0."""
    numbers = {name: _number(value) for name, value in line.items() if isinstance(value, int | float)}
    return numbers | {"epoch": _whole(line, "epoch"), "step": _whole(line, "step") if "step" in line else 0}


def epochs_of(history: list[Mapping[str, Any]]) -> list[Epoch]:
    """The epochs that ``result.json`` tells of. Raises as `Metrics.add` does."""
    return [_epoch(entry) for entry in history]


def _whole(line: Mapping[str, Any], key: str) -> int:
    value = line[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} is {value!r}, no whole number")
    return value


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return time


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return float(value) if math.isfinite(value) else math.nan
