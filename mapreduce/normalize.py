#!/usr/bin/env python3
"""Decode every raw image once, bring it to one size and colour, and keep the result as one part for each pack.

    python mapreduce/normalize.py -r local data/flowers --size 224

Map-only: a mapper's line names a pack; counts and sums travel in each part's own rows.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from etl.config import NormalizeConfig
from etl.errors import DataError
from etl.options import NORMALIZE_OPTIONS
from etl.parts import normalize_pack, rows_place
from etl.stages import NORMALIZED_FORMAT, Stage, State, normalized_stage, raw_stage, require
from etl.storage import Place, open_place
from etl.summary import Summary, normalize_summary
from etl.tables import read_facts
from mapreduce.stagejob import StageJob, main
from mapreduce.work import Work, worthwhile_tasks


class Normalize(StageJob):
    """Normalise the raw images under ROOT/raw into ROOT/normalized."""

    OPTIONS = NORMALIZE_OPTIONS
    EXAMPLE = "python mapreduce/normalize.py -r local data/flowers --size 224"

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """From the line of a pack: normalise its images and publish its part."""
        root = open_place(self.job["root"])
        config = NormalizeConfig.from_json(self.job["config"])
        facts = normalize_pack(
            root / "raw",
            root / "normalized",
            task["pack"],
            config,
            classes=self.job["classes"],
            attempts=self.attempts,
            report=lambda images: self.report(f"{task['pack']}: {images} images"),
        )
        self.count_task(task["bytes"], facts["bytes"])
        self.increment_counter("images", "good", facts["records"])
        for reason, count in facts["rejects"]["by_reason"].items():
            self.increment_counter("images", reason, count)
        yield facts["part"], facts["records"]

    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        return normalized_stage(root)

    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        self._raw = raw_stage(root).read_marker()
        self._max_rejects = values["max_rejects"]
        config = NormalizeConfig.resolve(values, self._raw["pixels"])
        self._identity = {"config": config.to_json(), "input": raw_stage(root).fingerprint()}
        if self.stage.begin(self._identity, overwrite) is State.DONE:
            return None
        images = {pack["name"]: pack["images"] for pack in self._raw["packs"]}
        folder = self.stage.folder
        todo = [pack for pack in self._raw["packs"] if not rows_place(folder, pack["name"]).exists()]
        tasks = worthwhile_tasks(sum(pack["bytes"] for pack in todo), sum(pack["images"] for pack in todo))

        def watch() -> tuple[int, str]:
            parts = (info.base_name.removesuffix(".parquet") for info in (folder / "parts").children())
            return sum(images.get(part, 0) for part in parts), ""

        job = {"stage": "normalize", "root": root.uri, "config": config.to_json(), "classes": self._raw["classes"]}
        lines = [{"pack": pack["name"], "bytes": pack["bytes"]} for pack in todo]
        return Work(job, lines, tasks, sum(images.values()), watch)

    def finish(self) -> None:
        facts = [self._checked_facts(pack) for pack in self._raw["packs"]]
        counts = count_images(facts, len(self._raw["classes"]))
        if counts["rejects"] > self._max_rejects * counts["input"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts["rejects_by_reason"].items())
            raise DataError(
                f"{counts['rejects']} of {counts['input']} images are unusable ({reasons}),"
                f" more than --max-rejects {self._max_rejects:g};"
                f" look at {self.stage.folder / 'rejects'}, or allow more"
            )
        require(
            counts["good"] > 0, f"no image of {self.stage.folder} is usable; look at {self.stage.folder / 'rejects'}"
        )
        marker = {
            "format": NORMALIZED_FORMAT,
            **self._identity,
            "classes": self._raw["classes"],
            "counts": counts,
            "parts": facts,
        }
        self.stage.commit(marker, self.run_record)

    def summary(self, already_done: bool) -> Summary:
        return normalize_summary(self.stage, already_done)

    def _checked_facts(self, pack: dict[str, Any]) -> dict[str, Any]:
        rows = rows_place(self.stage.folder, pack["name"])
        require(rows.exists(), f"{rows} is missing though the job ended; run again")
        facts = read_facts(rows)
        total = facts["records"] + facts["rejects"]["count"]
        require(
            facts["input"] == pack["images"] == total,
            f"{rows}: {facts['records']} good + {facts['rejects']['count']} rejects"
            f" are not the {pack['images']} images of the pack",
        )
        return facts | {"rows_sha256": rows.sha256()}


def count_images(facts: list[dict[str, Any]], classes: int) -> dict[str, Any]:
    """Counts over all parts, from their facts."""
    reasons: Counter[str] = Counter()
    by_class = [0] * classes
    for part in facts:
        reasons.update(part["rejects"]["by_reason"])
        for counts in part["examples"].values():
            by_class = [have + more for have, more in zip(by_class, counts, strict=True)]
    return {
        "input": sum(part["input"] for part in facts),
        "good": sum(part["records"] for part in facts),
        "rejects": sum(part["rejects"]["count"] for part in facts),
        "rejects_by_reason": dict(sorted(reasons.items())),
        "bytes": sum(part["bytes"] for part in facts),
        "by_class": by_class,
    }


if __name__ == "__main__":
    main(Normalize)
