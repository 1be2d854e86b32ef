"""The manifest of a set of slices: how it is made from the finished slices, and what readers take from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from etl import tables
from etl.config import NormalizeConfig
from etl.errors import DataError
from etl.slices import blocks_place, facts_place
from etl.stages import SLICES_FORMAT, Stage, require
from etl.storage import Place

EXAMPLES_FILE = "examples.parquet"
BLOCKS_FILE = "blocks.parquet"
CLASS_COUNTS_FILE = "class_counts.parquet"


@dataclass
class PixelSums:
    """Exact sums of the training split's pixels and of their squares, by channel; ``pixels`` counts one channel's."""

    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Add the images of these rows (columns width, height, sums, squares)."""
        if not rows.num_rows:
            return
        areas = rows["width"].to_numpy().astype(np.int64) * rows["height"].to_numpy()
        self.pixels += int(areas.sum())
        self.sums = _add(self.sums, rows["sums"])
        self.squares = _add(self.squares, rows["squares"])

    def to_json(self) -> dict[str, Any]:
        """With mean and standard deviation on the scale 0 to 255, rounded once, from the exact sums."""
        mean = [total / self.pixels for total in self.sums]
        variances = [
            (self.pixels * square - total * total) / (self.pixels * self.pixels)
            for total, square in zip(self.sums, self.squares, strict=True)
        ]
        std = [math.sqrt(variance) for variance in variances]
        return {"mean": mean, "std": std, "pixels": self.pixels, "sums": self.sums, "squares": self.squares}


def _add(sums: list[int], column: pa.ChunkedArray) -> list[int]:
    more = column.combine_chunks().values.to_numpy().reshape(len(column), -1).sum(axis=0)
    return [have + int(value) for have, value in zip(sums or [0] * len(more), more, strict=True)]


def build_manifest(
    stage: Stage,
    identity: Mapping[str, Any],
    normalized: Mapping[str, Any],
    slices: Sequence[tuple[str, str, int]],
    statistics: PixelSums,
) -> dict[str, Any]:
    """Check every slice of ``slices`` (split, name, examples), write the tables beside them, return the manifest.

    Raises DataError where a slice is missing or holds another number of examples.
    """
    folder = stage.folder
    facts = [_checked_facts(folder, split, name, records) for split, name, records in slices]
    names = [name for _, name, _ in slices]
    image = NormalizeConfig.from_json(normalized["config"])
    return {
        "format": SLICES_FORMAT,
        **identity,
        "classes": normalized["classes"],
        "image": {
            "height": image.height,
            "width": image.width,
            "channels": image.channels,
            "format": image.format.upper(),
        },
        "splits": {
            split: _split(facts, split, len(normalized["classes"]))
            for split in dict.fromkeys(split for split, _, _ in slices)
        },
        "statistics": statistics.to_json(),
        "tables": {
            "examples": _write(
                stage, EXAMPLES_FILE, tables.EXAMPLES, (tables.read_table(facts_place(folder, name)) for name in names)
            ),
            "blocks": _write(
                stage, BLOCKS_FILE, tables.BLOCKS, (tables.read_table(blocks_place(folder, name)) for name in names)
            ),
            "class_counts": _write(stage, CLASS_COUNTS_FILE, tables.CLASS_COUNTS, [_class_counts(facts)]),
        },
    }


def _checked_facts(folder: Place, split: str, name: str, records: int) -> dict[str, Any]:
    place = facts_place(folder, name)
    require(place.exists(), f"slice {name} is missing though the job ended; run again")
    facts = tables.read_facts(place)
    require(facts["records"] == records, f"slice {name} holds {facts['records']} examples, {records} were planned")
    info = (folder / f"{name}.tfrecord").info()
    require(
        info.size == facts["bytes"],
        f"{info.path} has {info.size} bytes, {facts['bytes']} were written; run again with --overwrite",
    )
    require((folder / f"{name}.idx").exists(), f"the index of slice {name} is missing; run again with --overwrite")
    return facts


def _split(facts: list[dict[str, Any]], split: str, classes: int) -> dict[str, Any]:
    own = [each for each in facts if each["split"] == split]
    by_class = [sum(each["by_label"].get(str(label), 0) for each in own) for label in range(classes)]
    kept = ("name", "records", "bytes", "sha256", "index_sha256")
    return {
        "records": sum(each["records"] for each in own),
        "bytes": sum(each["bytes"] for each in own),
        "by_class": by_class,
        "slices": [{name: each[name] for name in kept} for each in own],
    }


def _class_counts(facts: list[dict[str, Any]]) -> pa.Table:
    rows = [
        {"slice": each["name"], "split": each["split"], "label": int(label), "records": count}
        for each in facts
        for label, count in each["by_label"].items()
    ]
    return tables.table_of(tables.CLASS_COUNTS, rows)


def _write(stage: Stage, name: str, schema: pa.Schema, parts: Any) -> dict[str, Any]:
    output, rows = tables.write_tables(stage.folder / name, stage.attempts, schema, parts)
    return {"file": name, "rows": rows, "sha256": output.sha256}


@dataclass(frozen=True)
class Slice:
    """One slice as the manifest names it; ``name`` is its path below the manifest without an ending."""

    name: str
    records: int
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a reader needs of the manifest: ``mean`` and ``std`` are by channel, on the scale 0 to 255."""

    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    format: str
    splits: dict[str, tuple[Slice, ...]]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_json(cls, marker: Mapping[str, Any]) -> Self:
        """Raises DataError where something is missing."""
        try:
            image, statistics = marker["image"], marker["statistics"]
            splits = {
                name: tuple(Slice(each["name"], each["records"], each["bytes"]) for each in split["slices"])
                for name, split in marker["splits"].items()
            }
            return cls(
                tuple(marker["classes"]),
                image["height"],
                image["width"],
                image["channels"],
                image["format"],
                splits,
                tuple(statistics["mean"]),
                tuple(statistics["std"]),
            )
        except KeyError as error:
            raise DataError(f"the manifest lacks {error}; it was damaged or written by something else") from None
