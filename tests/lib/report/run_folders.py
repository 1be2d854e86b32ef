"""Folders of training runs as the trainer leaves them, made up, with a seed."""

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

RECIPE = 'model = "cnn"\nepochs = {epochs}\nbatch = 64\nlr = 0.1\ndecay = "cosine"\nweight_decay = 0.0005\nseed = 7\n'
Line = dict[str, Any]


def spread(seconds: Sequence[float]) -> Line:
    """What a line of metrics has of the seconds of all ranks."""
    return {
        "mean": sum(seconds) / len(seconds),
        "max": max(seconds),
        "slowest_rank": seconds.index(max(seconds)),
    }


@dataclass
class RunFolder:
    """Makes a run in ``folder``: an epoch of ``steps`` steps for each number of ranks in ``ranks``.

    Evaluation is of the split ``evaluated``. ``late`` is a rank that takes longer, ``input_s`` the mean wait for input.
    ``lost`` are steps that no line tells of; ``told_again`` says how many steps a run that went back tells of twice.
    """

    folder: Path
    ranks: tuple[int, ...] = (2, 2, 2)
    steps: int = 20
    evaluated: str = "validation"
    late: int | None = None
    lost: range = range(0)
    told_again: int = 0
    input_s: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._time = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
        (self.folder / "metrics").mkdir(parents=True)

    def write_metrics(self) -> "RunFolder":
        for epoch, ranks in enumerate(self.ranks, 1):
            first, last = (epoch - 1) * self.steps + 1, epoch * self.steps
            lines = [self._step(epoch, number, ranks) for number in range(first, last + 1) if number not in self.lost]
            self._write([*lines, self._epoch(epoch, last)], first, last)
            if self.told_again:  # a checkpoint was damaged: what follows the one before it is told again
                again = range(last - self.told_again + 1, last + 1)
                self._write(
                    [*(self._step(epoch, number, ranks) for number in again), self._epoch(epoch, last)], again[0], last
                )
        return self

    def write_recipe(self) -> "RunFolder":
        (self.folder / "recipe.toml").write_text(RECIPE.format(epochs=len(self.ranks)))
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
            "started": "2026-01-02T03:04:00.000+00:00",
            "finished": "2026-01-02T05:24:00.000+00:00",
            "seconds": 8400.0,
            "command": ["train/main.py", "--run", "best"],
            "versions": {"numpy": "2.4.6"},
            "runner": None,
            "ranks": [{"rank": rank, "host": f"worker{rank // 2}", "pid": 40 + rank} for rank in range(self.ranks[-1])],
        }
        (self.folder / "run.json").write_text(json.dumps(record))
        return self

    def write_confusion(self, names: Iterable[str], examples: int = 100) -> "RunFolder":
        classes = list(names)
        counts = [[0] * len(classes) for _ in classes]
        for label in range(len(classes)):
            for _ in range(examples - label % 7):
                near = (
                    label if self._random.random() < 0.85 else (label + self._random.choice((-1, 1, 2))) % len(classes)
                )
                counts[label][near] += 1
        told = {"format": "ringslice.confusion/1", "split": "test", "classes": classes, "counts": counts}
        (self.folder / "confusion-test.json").write_text(json.dumps(told))
        return self

    def _write(self, lines: Iterable[Mapping[str, Any]], first: int, last: int) -> None:
        place = self.folder / "metrics" / f"steps-{first:09d}-{last:09d}.jsonl"
        place.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def _stamp(self) -> str:
        return self._time.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _step(self, epoch: int, number: int, ranks: int) -> Line:
        draw = self._random
        waits = [draw.expovariate(1 / self.input_s) for _ in range(ranks)]
        works = [draw.uniform(0.09, 0.1) * (1.5 if rank == self.late else 1) for rank in range(ranks)]
        over = max(wait + work for wait, work in zip(waits, works, strict=True)) + 0.004
        reduces = [over - wait - work for wait, work in zip(waits, works, strict=True)]
        wholes = [over + draw.uniform(0, 0.001) for _ in range(ranks)]
        self._time += timedelta(seconds=over + 0.001)
        done = number / (self.steps * len(self.ranks))
        loss = math.nan if number % 97 == 0 else 2.3 * math.exp(-3 * done) + draw.gauss(0, 0.05)
        return {
            "kind": "step",
            "epoch": epoch,
            "step": number,
            "time": self._stamp(),
            "examples": 64 * ranks,
            "loss": loss,
            "accuracy": 1 - math.exp(-3 * done),
            "rate": 0.05 * (1 + math.cos(math.pi * done)),
            "ranks": ranks,
            "step_s": spread(wholes),
            "input_s": spread(waits),
            "compute_s": spread(works),
            "reduce_s": spread(reduces),
            "own_s": spread([whole - reduce for whole, reduce in zip(wholes, reduces, strict=True)]),
        }

    def _epoch(self, epoch: int, last: int) -> Line:
        draw = self._random
        return {
            "kind": "epoch",
            "epoch": epoch,
            "step": last,
            "time": self._stamp(),
            "train_loss": 2 / epoch + draw.random() / 10,
            "train_accuracy": 1 - 0.5 / epoch + draw.random() / 100,
            "images_per_s": draw.randrange(900, 1100),
            f"{self.evaluated}_loss": 2.1 / epoch + draw.random() / 10,
            f"{self.evaluated}_accuracy": 0.9 - 0.5 / epoch - (0.2 if epoch == len(self.ranks) else 0),
            "train_skipped": epoch % 2,
        }
