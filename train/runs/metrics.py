"""What is measured at every step of every rank, as JSON lines: ``metrics/`` in the folder of a run.

There are two kinds of lines. A ``step`` has the loss, the accuracy and the number of the examples of all ranks, the
learning rate, and by rank the seconds of the step: ``input_s`` of waiting for the next batch, ``compute_s`` of the
forward and backward pass, ``reduce_s`` of waiting, when that was done, for the gradients of all ranks; ``step_s`` is
the whole of it, with what was done since the step before: a commit, a checkpoint. An ``epoch`` has the metrics of an
epoch that is over. A file has the lines from one checkpoint to the next; when a run goes on from a checkpoint, the
files of the steps after it are deleted. Where rank 0 of an elastic run dies, the lines since the last checkpoint may be
lost.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from etl.stages.run_files import METRICS_FOLDER
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place
from train.runs.position import Position

_NAME = re.compile(r"steps-(\d+)-(\d+)\.jsonl")

Line = dict[str, Any]


def _now() -> str:
    """UTC, in milliseconds, as ISO 8601 has it."""
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


@dataclass(frozen=True)
class StepOfRank:
    """What one rank measured at one step; sums over its examples, and seconds."""

    step: int
    loss: float
    hits: float
    examples: float
    rate: float
    input_s: float
    compute_s: float
    reduce_s: float
    step_s: float
    time: str = field(default_factory=_now)

    @classmethod
    def of(cls, step: int, rate: float, sums: Sequence[float], seconds: Sequence[float]) -> Self:
        """``seconds`` are of input, computing, reducing, and the whole step."""
        loss, hits, examples = sums
        input_s, compute_s, reduce_s, step_s = (max(0.0, each) for each in seconds)  # a clock may be set back
        return cls(step, loss, hits, examples, rate, input_s, compute_s, reduce_s, step_s)

    @property
    def sums(self) -> tuple[float, float, float]:
        return self.loss, self.hits, self.examples


PARTS = {"input": "input_s", "all-reduce": "reduce_s", "compute": "compute_s"}  # of a step, as people are told of them
SECONDS = ("step_s", "input_s", "compute_s", "reduce_s")


def step_line(epoch: int, ranks: Sequence[StepOfRank]) -> Line:
    """The line of a step, from what each rank measured, by rank. Pure."""
    loss, hits, examples = (sum(each) for each in zip(*(rank.sums for rank in ranks), strict=True))
    return {
        "kind": "step",
        "epoch": epoch,
        "step": ranks[0].step,
        "time": ranks[0].time,
        "examples": int(examples),
        "loss": _finite(loss / max(1, examples)),
        "accuracy": hits / max(1, examples),
        "rate": ranks[0].rate,
        **{name: [round(getattr(rank, name), 6) for rank in ranks] for name in SECONDS},
    }


def _finite(value: float) -> float | None:
    """JSON has no number that is none."""
    return value if math.isfinite(value) else None


def sums_over(ranks: Iterable[Iterable[StepOfRank]]) -> tuple[float, ...]:
    """The sums of losses, hits and examples of all steps of all ranks. Pure."""
    return tuple(
        sum(each) for each in zip((0.0, 0.0, 0.0), *(step.sums for rank in ranks for step in rank), strict=True)
    )


def shares(steps: Iterable[StepOfRank]) -> dict[str, float]:
    """What part of the seconds of these steps went to input, to the all-reduce and to computing. Pure."""
    told = list(steps)
    total = sum(each.step_s for each in told) or 1.0
    return {name: sum(getattr(each, seconds) for each in told) / total for name, seconds in PARTS.items()}


class MetricsFiles:
    """Of a run; rank 0 writes them."""

    def __init__(self, run: Place, attempts: Place) -> None:
        self._folder = run / METRICS_FOLDER
        self._attempts = attempts

    def publish(self, lines: Sequence[Line]) -> None:
        """Write down what was measured since the last time."""
        last = lines[-1]["step"]
        first = min((line["step"] for line in lines if line["kind"] == "step"), default=last + 1)
        content = "".join(f"{json.dumps(line)}\n" for line in lines)
        replace_bytes(self._folder / f"steps-{first:09d}-{last:09d}.jsonl", self._attempts, content.encode())

    def roll_back(self, step: int) -> None:
        """Delete the files of steps after ``step``, which are to be taken again."""
        delete_after(step, self._folder, _NAME)


def delete_after(step: int, folder: Place, pattern: re.Pattern[str]) -> None:
    """Delete the files whose names, by the second group of ``pattern``, end with a later step."""
    for info in folder.children():
        name = pattern.fullmatch(info.base_name)
        if name is not None and int(name[2]) > step:
            (folder / info.base_name).delete()


def epoch_line(position: Position) -> Line:
    """The line of the epoch before ``position``, at whose end it is."""
    told = {name: _finite(value) for name, value in position.history[-1].items()}
    return {"kind": "epoch", "step": position.step, "time": _now(), **told}
