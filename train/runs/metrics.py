"""What is measured at every step of every rank, as JSON lines: ``metrics/`` in the folder of a run.

There are three kinds of lines. A ``step`` has the loss, the accuracy and the number of the examples of all ranks, the
learning rate, the number of ranks, and the seconds of the step, each as the mean and the maximum over the ranks and the
rank of the maximum: ``input_s`` of waiting for the next batch, ``compute_s`` of the forward and backward pass,
``reduce_s`` of waiting, when that was done, for the gradients of all ranks; ``step_s`` is the whole of it, with what
was done since the step before: a commit, a checkpoint; ``own_s`` is the whole without ``reduce_s``: the others wait for
the rank of its maximum. A line of ``ranks`` has what each rank used in the ``steps`` up to its step (`Usage`): lists by
rank. An ``epoch`` has the metrics of an epoch that is over.

No file has lines from before and from after a checkpoint; when a run goes on from a checkpoint, the files of the steps
after it are deleted. If rank 0 of an elastic run dies, the lines that are not in a file yet may be lost.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from train.parallel.usage import Usage
from train.runs.position import Position

if TYPE_CHECKING:  # needs packages of the extra "train"; a report of a run does without
    from train.parallel.trainer import StepOfRank

FILE_NAME = re.compile(r"steps-(\d+)-(\d+)\.jsonl")

Line = dict[str, Any]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def now() -> str:
    """UTC, in milliseconds, as ISO 8601 has it."""
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


PARTS = {"input": "input_s", "all-reduce": "reduce_s", "compute": "compute_s"}  # of a step, as messages name them
SECONDS = ("step_s", "input_s", "compute_s", "reduce_s", "own_s")
SUMS = 3  # a loss, hits and examples, before the seconds
RANK_BITS = 20  # of a maximum, below its microseconds


def to_sum(steps: Sequence["StepOfRank"]) -> Floats:
    """What is summed over the ranks: of shape (steps, `SUMS` and `SECONDS`). Pure."""
    return np.array([[*step.sums, *(getattr(step, name) for name in SECONDS)] for step in steps])


def to_maximise(steps: Sequence["StepOfRank"], rank: int) -> Integers:
    """Of what the maximum over the ranks is taken: microseconds with the rank behind them, of shape (steps, `SECONDS`).
    Pure.
    """
    seconds = np.array([[getattr(step, name) for name in SECONDS] for step in steps])
    return (np.rint(1e6 * seconds).astype(np.int64) << RANK_BITS) + rank


def step_lines(epoch: int, own: Sequence["StepOfRank"], sums: Floats, largest: Integers, ranks: int) -> list[Line]:
    """The lines of steps, from one rank's own and from `to_sum` and `to_maximise` over all ``ranks``. Pure."""
    means = np.round(sums[:, SUMS:] / ranks, 6).tolist()
    maxima, slowest = (largest >> RANK_BITS).tolist(), (largest & ((1 << RANK_BITS) - 1)).tolist()
    return [
        {
            "kind": "step",
            "epoch": epoch,
            "step": step.step,
            "time": step.time,
            "ranks": ranks,
            "examples": int(examples),
            "loss": _finite(loss / max(1, examples)),
            "accuracy": hits / max(1, examples),
            "rate": step.rate,
            **{
                name: {"mean": mean, "max": most / 1e6, "slowest_rank": rank}
                for name, mean, most, rank in zip(SECONDS, *own_seconds, strict=True)
            },
        }
        for step, (loss, hits, examples), *own_seconds in zip(
            own, sums[:, :SUMS].tolist(), means, maxima, slowest, strict=True
        )
    ]


def usage_to_sum(own: Usage, rank: int, ranks: int) -> Integers:
    """What is summed to have the usage of each rank: of shape (ranks, fields of `Usage`). Pure."""
    rows = np.zeros((ranks, len(fields(Usage))), np.int64)
    rows[rank] = astuple(own)
    return rows


def ranks_line(epoch: int, own: Sequence["StepOfRank"], usage: Integers) -> Line:
    """The line of what all ranks used in these steps, from one rank's own and the sum of `usage_to_sum`. Pure."""
    lists = {field.name: column.tolist() for field, column in zip(fields(Usage), usage.T, strict=True)}
    last = own[-1]
    return {"kind": "ranks", "epoch": epoch, "step": last.step, "time": last.time, "steps": len(own), **lists}


def _finite(value: float) -> float | None:
    """None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def sums_over(steps: Iterable["StepOfRank"]) -> tuple[float, ...]:
    """The sums of losses, hits and examples of these steps. Pure."""
    return tuple(sum(each) for each in zip((0.0, 0.0, 0.0), *(step.sums for step in steps), strict=True))


def shares(steps: Iterable["StepOfRank"]) -> dict[str, float]:
    """What part of the seconds of these steps went to input, to the all-reduce and to computing. Pure."""
    listed = list(steps)
    total = sum(each.step_s for each in listed) or 1.0
    return {name: sum(getattr(each, seconds) for each in listed) / total for name, seconds in PARTS.items()}


def skipped(split: str, examples: float) -> dict[str, int]:
    """The metric of damaged examples that were left out, over all ranks: none if there were none. Pure."""
    return {f"{split}_skipped": int(examples)} if examples else {}


def metrics_file(lines: Sequence[Line]) -> tuple[str, bytes]:
    """The name and the content of the file of these lines. Pure."""
    last = lines[-1]["step"]
    first = min((line["step"] for line in lines if line["kind"] == "step"), default=last + 1)
    content = "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines)
    return f"steps-{first:09d}-{last:09d}.jsonl", content.encode()


def lines_until(position: Position, lines: Iterable[Line]) -> list[Line]:
    """Those of ``lines`` that a run which goes on from ``position`` does not make again. Pure."""
    return [
        line
        for line in lines
        if line["step"] <= position.step and (line["kind"] != "epoch" or line["epoch"] < position.epoch)
    ]


def epoch_line(position: Position) -> Line:
    """The line of the epoch before ``position``, at whose end it is."""
    metrics = {name: _finite(value) for name, value in position.history[-1].items()}
    return {"kind": "epoch", "step": position.step, "time": now(), **metrics}
