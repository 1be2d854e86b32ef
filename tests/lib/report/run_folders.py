"""Folders of made-up training runs, with lines of metrics as the trainer writes them.

Every number follows from the step and the rank.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from train.parallel.trainer import StepOfRank
from train.runs.metrics import ranks_line, step_lines, to_maximise, to_sum

RECIPE = 'model = "cnn"\nepochs = {epochs}\nbatch = {batch}\nlr = 0.1\ndecay = "cosine"\nseed = 7\n'
BEGAN = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
INPUT_S, WORK_S, LATE_WORK_S, REDUCE_S, OTHER_S = 0.002, 0.1, 0.15, 0.004, 0.001
Line = dict[str, Any]


def confusion(classes: int) -> list[list[int]]:
    """Of class i 20 or 30 examples, in turn: i % 7 are taken for the next class, and i % 3 for the one after it."""
    counts = [[0] * classes for _ in range(classes)]
    for label in range(classes):
        counts[label][label] = 20 + 10 * (label % 2) - label % 7 - label % 3
        counts[label][(label + 1) % classes] += label % 7
        counts[label][(label + 2) % classes] += label % 3
    return counts


@dataclass
class RunFolder:
    """Makes a run in ``folder``: an epoch of ``steps`` steps for each number of ranks in ``ranks``.

    Evaluation is of the split ``evaluated``. ``late`` is a rank that takes longer, in each tenth step the one before
    it does. ``lost`` are steps without a line; ``recorded_twice`` of them at the end of an epoch have two.
    """

    folder: Path
    ranks: tuple[int, ...] = (2, 2, 2)
    steps: int = 20
    evaluated: str = "validation"
    late: int | None = None
    lost: range = range(0)
    recorded_twice: int = 0

    def __post_init__(self) -> None:
        (self.folder / "metrics").mkdir(parents=True)

    def write_metrics(self) -> "RunFolder":
        for epoch, ranks in enumerate(self.ranks, 1):
            first, last = (epoch - 1) * self.steps + 1, epoch * self.steps
            self._write(epoch, ranks, [step for step in range(first, last + 1) if step not in self.lost])
            if self.recorded_twice:  # a checkpoint was damaged: the steps after the one before it are taken again
                self._write(epoch, ranks, range(last - self.recorded_twice + 1, last + 1))
        return self

    def write_recipe(self, batch: int = 64) -> "RunFolder":
        (self.folder / "recipe.toml").write_text(RECIPE.format(epochs=len(self.ranks), batch=batch))
        return self

    def write_result(self, stopped: str = "epochs") -> "RunFolder":
        result = {
            "format": "ringslice.run/2",
            "slices": "d7" * 32,
            "settings": {"model": "cnn", "epochs": len(self.ranks)},
            "steps": len(self.ranks) * self.steps,
            "rolled_back_steps": 1234,
            "stopped": stopped,
            "epochs": [{"epoch": 1, "train_loss": 0.5, "images_per_s": 77}],
            "result": {"test_loss": 0.24385, "test_accuracy": 0.92222},
        }
        (self.folder / "result.json").write_text(json.dumps(result))
        record = {
            "finished": "2026-01-02T05:24:00.000+00:00",
            "seconds": 8400.0,
            "command": ["train/main.py", "--run", "best"],
            "versions": {"numpy": "2.4.6"},
            "strategy": "horovod",
            "ranks": [{"rank": rank, "host": f"worker{rank // 2}"} for rank in range(self.ranks[-1])],
        }
        (self.folder / "run.json").write_text(json.dumps(record))
        return self

    def write_confusion(self, classes: Sequence[str]) -> "RunFolder":
        facts = {"format": "ringslice.confusion/1", "split": "test", "classes": list(classes)}
        (self.folder / "confusion-test.json").write_text(json.dumps(facts | {"counts": confusion(len(classes))}))
        return self

    def _write(self, epoch: int, ranks: int, steps: Sequence[int]) -> None:
        """A file of these steps, as all ranks measured them, of what they used, and of the epoch.

        In each step, rank r sends 1,000,000 + r bytes and receives twice as many.
        """
        measured = [[self._step(step, rank, ranks) for step in steps] for rank in range(ranks)]
        sums = np.sum([to_sum(own) for own in measured], axis=0)
        largest = np.max([to_maximise(own, rank) for rank, own in enumerate(measured)], axis=0)
        usage = [[len(steps) * (10**6 + rank) * times for times in (1, 2)] for rank in range(ranks)]
        memory = [[10**9 * (epoch + rank)] for rank in range(ranks)]
        lines = [
            *step_lines(epoch, measured[0], sums, largest, ranks),
            ranks_line(epoch, measured[0], np.hstack([usage, memory])),
            self._epoch(epoch),
        ]
        place = self.folder / "metrics" / f"steps-{steps[0]:09d}-{steps[-1]:09d}.jsonl"
        place.write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))

    def _step(self, step: int, rank: int, ranks: int) -> StepOfRank:
        late = None if self.late is None else self.late - (step % 10 == 0)
        works = [LATE_WORK_S if each == late else WORK_S for each in range(ranks)]
        whole_s = INPUT_S + max(works) + REDUCE_S + OTHER_S
        loss = math.nan if step % 97 == 0 else 2.3 / (1 + step / 100) + (step % 5) / 50
        seconds = INPUT_S, works[rank], max(works) - works[rank] + REDUCE_S, whole_s
        return StepOfRank.of(step, 0.1 / (1 + step / 100), (64 * loss, 32, 64), seconds, self._stamp(step))

    def _stamp(self, step: int) -> str:
        return (BEGAN + timedelta(seconds=step)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _epoch(self, epoch: int) -> Line:
        """The accuracy of the last epoch but one is the best."""
        return {
            "kind": "epoch",
            "epoch": epoch,
            "step": epoch * self.steps,
            "time": self._stamp(epoch * self.steps),
            "train_loss": 2 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "images_per_s": 1000 + epoch,
            f"{self.evaluated}_loss": 2.1 / epoch,
            f"{self.evaluated}_accuracy": 0.9 - 0.5 / epoch - (0.2 if epoch == len(self.ranks) else 0),
            "train_skipped": epoch % 2,
        }
