"""What the page of a run must say, worked out anew from the files of the run, without any code of the report's."""

import json
import math
import statistics
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

PARTS = ("input", "compute", "all-reduce", "other")
UNKNOWN = "–"  # noqa: RUF001
Line = dict[str, Any]
Table = list[list[str]]


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def accuracy(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.2f} %"


def percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


@dataclass
class Told:
    """The lines of a run: of steps and epochs that are told of twice the last ones. Rows are those of the page."""

    folder: Path
    steps: list[Line] = field(default_factory=list)
    epochs: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        by_kind: dict[str, dict[int, Line]] = {"step": {}, "epoch": {}}
        for path in sorted((self.folder / "metrics").glob("*.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                by_kind[line["kind"]][line[line["kind"]]] = line
        self.steps = [by_kind["step"][number] for number in sorted(by_kind["step"])]
        self.epochs = [by_kind["epoch"][number] for number in sorted(by_kind["epoch"])]
        self.result = read(self.folder / "result.json")
        self.record = read(self.folder / "run.json")
        self.confusion = read(self.folder / "confusion-test.json")
        recipe = self.folder / "recipe.toml"
        self.recipe = tomllib.loads(recipe.read_text()) if recipe.exists() else {}
        if self.result and not self.steps:
            self.epochs, self.recipe = self.result["epochs"], self.recipe or self.result["settings"]

    @staticmethod
    def parts_of(line: Line) -> dict[str, float]:
        """Seconds of a step, by part: means over the ranks."""
        told = [line[f"{part}_s"]["mean"] for part in ("input", "compute", "reduce")]
        return dict(zip(PARTS, [*told, max(0.0, line["step_s"]["mean"] - sum(told))], strict=True))

    @property
    def overall(self) -> list[float]:
        sums = [math.fsum(line["ranks"] * self.parts_of(line)[part] for line in self.steps) for part in PARTS]
        return [each / sum(sums) for each in sums]

    def last_in(self, rank: int) -> list[Line]:
        """The steps in which the others waited for this rank."""
        return [line for line in self.steps if line["ranks"] > 1 and line["own_s"]["slowest_rank"] == rank]

    def own_work(self, rank: int) -> float:
        """Median seconds without the all-reduce of the steps in which it was the last."""
        return statistics.median(line["own_s"]["max"] for line in self.last_in(rank))

    def others_work(self, rank: int) -> float:
        """The same of the means of the others."""
        found = []
        for line in self.last_in(rank):
            parts = self.parts_of(line)
            own = line["ranks"] * (sum(parts.values()) - parts["all-reduce"])
            found.append((own - line["own_s"]["max"]) / (line["ranks"] - 1))
        return statistics.median(found)

    def behind_in(self, rank: int) -> str:
        lines = self.last_in(rank)
        times = {part: sum(line[f"{part}_s"]["slowest_rank"] == rank for line in lines) for part in PARTS[:2]}
        return max(times, key=times.__getitem__) if any(times.values()) else "other"

    def last_share(self, rank: int) -> float:
        return len(self.last_in(rank)) / sum(line["ranks"] > 1 for line in self.steps)

    def ranks(self) -> list[int]:
        """Those that came last, the most frequent first."""
        found = {line["own_s"]["slowest_rank"] for line in self.steps if line["ranks"] > 1}
        return sorted(found, key=lambda rank: (-len(self.last_in(rank)), rank))

    def rank_rows(self) -> Table:
        return [
            [
                str(rank),
                f"{len(self.last_in(rank)):,}",
                percent(self.last_share(rank)),
                ms(self.own_work(rank)),
                ms(self.others_work(rank)),
                self.behind_in(rank),
            ]
            for rank in self.ranks()
        ]

    def part_rows(self) -> Table:
        rows = []
        for part, share in zip(PARTS, self.overall, strict=True):
            seconds = [self.parts_of(line)[part] for line in self.steps]
            p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
            told = list(map(ms, (statistics.fmean(seconds), statistics.median(seconds), p95)))
            name = f"{part.removeprefix('all-')}_s"
            if part == "other":
                most = ["", ""]
            else:
                ranks = [line[name]["slowest_rank"] for line in self.steps]
                slowest = min(set(ranks), key=lambda rank: (-ranks.count(rank), rank))
                most = [ms(max(line[name]["max"] for line in self.steps)), str(slowest)]
            rows.append([part, *told, *most, percent(share)])
        return rows

    def epoch_rows(self) -> Table:
        """With the heads of the columns."""
        names = [name for name in self.epochs[0] if name not in ("kind", "epoch", "step", "time")]
        wording: dict[str, Callable[[Any], str]] = {
            "loss": loss,
            "accuracy": accuracy,
            "s": "{:,.0f}".format,
            "skipped": str,
        }
        rows = [["epoch", "last step", *(name.replace("_per_s", "/s").replace("_", " ") for name in names)]]
        for line in self.epochs:
            cells = [wording[name.rpartition("_")[2]](line[name]) for name in names]
            rows.append([str(line["epoch"]), f"{line['step']:,}" if "step" in line else UNKNOWN, *cells])
        return rows

    def result_rows(self) -> Table:
        rows = []
        for split in ("train", "validation", "test"):
            told = [line for line in self.epochs if f"{split}_loss" in line]
            final = self.result["result"] if self.result and split == "test" else None
            if not told and not final:
                continue
            own = final or told[-1]
            best = max((line.get(f"{split}_accuracy", -1) for line in told), default=-1)
            epoch = next((str(line["epoch"]) for line in told if line.get(f"{split}_accuracy") == best), "")
            when = "at the end" if final else f"after epoch {told[-1]['epoch']}"
            values = loss(own[f"{split}_loss"]), accuracy(own.get(f"{split}_accuracy"))
            rows.append([split, *values, when, accuracy(best) if epoch else UNKNOWN, epoch])
        return rows

    def tiles(self) -> list[tuple[str, str]]:
        found = []
        if self.result:
            found.append((accuracy(self.result["result"]["test_accuracy"]), "test accuracy"))
        for split in ("validation", "test"):
            own = [(line[f"{split}_accuracy"], line["epoch"]) for line in self.epochs if f"{split}_accuracy" in line]
            if own:
                best = max(value for value, _ in own)
                epoch = next(epoch for value, epoch in own if value == best)
                found.append((accuracy(best), f"best {split} accuracy, epoch {epoch}"))
        found.append((str(len(self.epochs)), f"of {self.recipe['epochs']} epochs"))
        found.append((f"{self.result['steps'] if self.result else self.steps[-1]['step']:,}", "steps"))
        sizes = [line["ranks"] for line in self.steps] or [len(self.record["ranks"])]
        changes = [size for number, size in enumerate(sizes) if number == 0 or size != sizes[number - 1]]
        found.append((", then ".join(map(str, changes)), "ranks"))
        found.append(
            (f"{statistics.median(line['images_per_s'] for line in self.epochs):,.0f}", "images/s, median of epochs")
        )
        if self.steps:
            first, last = (datetime.fromisoformat(self.steps[each]["time"]) for each in (0, -1))
            seconds = (last - first).total_seconds() + sum(self.parts_of(self.steps[0]).values())
            minutes, rest = divmod(round(seconds), 60)
            told = f"{seconds:.1f} s" if seconds < 60 else f"{minutes} min {rest:02d} s"
            found.append((told, "from the first step to the last"))
        return found

    def score_rows(self) -> Table:
        """Of all classes, by label."""
        counts, classes = self.confusion["counts"], self.confusion["classes"]
        rows = []
        for label, name in enumerate(classes):
            right, taken = counts[label][label], sum(row[label] for row in counts)
            wrong = [0 if other == label else number for other, number in enumerate(counts[label])]
            most = f"{classes[wrong.index(max(wrong))]} ({max(wrong):,})" if max(wrong) else ""
            told = [f"{sum(counts[label]):,}", f"{right:,}", accuracy(right / sum(counts[label]))]
            rows.append([name, *told, accuracy(right / taken if taken else None), "", most])
        return rows

    def mistake_rows(self) -> Table:
        counts, classes = self.confusion["counts"], self.confusion["classes"]
        pairs = [(-number, i, j) for i, row in enumerate(counts) for j, number in enumerate(row) if i != j and number]
        return [
            [classes[i], classes[j], f"{-number:,}", percent(-number / sum(counts[i]))]
            for number, i, j in sorted(pairs)[:10]
        ]
