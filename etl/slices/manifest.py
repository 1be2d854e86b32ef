"""The manifest of a set of slices: built from the finished slices; read, with its checksum checked, for stages and
readers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables, schemas
from etl.images.config import FLOATS, NormalizeConfig
from etl.partition.pixel_statistics import PixelSums
from etl.partition.shares import worker_of
from etl.stages.layout import SLICES_FORMAT
from etl.stages.marker import Generation
from etl.stages.names import WORK_FOLDER
from etl.stages.run import Run
from etl.stages.stage import Stage, require
from etl.storage.place import Place, has_checksum, with_checksum

TABLES = {
    "examples": schemas.EXAMPLES,
    "blocks": schemas.BLOCKS,
    "class_counts": schemas.CLASS_COUNTS,
    "departed": schemas.DEPARTED,
    "contents": schemas.CONTENTS,
    "groups": schemas.GROUPS,
}


def table_file(name: str) -> str:
    """The file of the table with this name in `TABLES`, below the manifest."""
    return f"{name}.parquet"


def work_table(folder: Place, kind: str, name: str) -> Place:
    """Where a finished slice's rows and facts ("slices"), or its "blocks", are until the manifest is written."""
    return folder / WORK_FOLDER / kind / f"{name.rpartition('/')[2]}.parquet"


def read_manifest(stage: Stage) -> dict[str, Any]:
    """The manifest of finished slices. Raises as `read_slices` does."""
    return read_slices(stage).marker


def read_slices(stage: Stage) -> Generation:
    """The manifest of finished slices, with its fingerprint.

    Raises UsageError if there is none of this version, DataError if it is not as it was written.
    """
    found = stage.read_generation()
    if not has_checksum(found.marker):
        raise DataError(
            f"{stage.marker} was edited or damaged: its checksum is not that of its content;"
            " put the original back, or run shard again with --overwrite"
        )
    return found


def slices_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The split and the entry of every slice, numbered through as the tables have them."""
    return ((split, each) for split, facts in manifest["splits"].items() for each in facts["slices"])


def located_slices(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """The split and the entry of every slice, and the rows of the tables of examples and blocks where its own begin."""
    examples = blocks = 0
    for split, each in slices_of(manifest):
        yield split, each, examples, blocks
        examples += each["records"]
        blocks += each["blocks"]


@dataclass(frozen=True)
class Slice:
    """One slice as the manifest names it; ``name`` is its path below the manifest without an ending.

    ``first_example`` and ``first_block`` are the rows of the tables of examples and of blocks at which its own begin;
    ``group`` is the group of workers that it was cut for, None if there is one for all.
    """

    name: str
    records: int
    blocks: int
    size_bytes: int
    sha256: str
    first_example: int
    first_block: int
    group: int | None = None


@dataclass(frozen=True)
class Manifest:
    """What a reader needs of the manifest: ``mean`` and ``std`` are by channel, on the scale 0 to 255.

    ``height`` and ``width`` are None if images differ in size. Pixels that are kept as floats are
    (pixel - ``subtract``) / ``divide_by``, by channel.
    """

    classes: tuple[str, ...]
    height: int | None
    width: int | None
    channels: int
    format: str
    splits: dict[str, tuple[Slice, ...]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    subtract: tuple[float, ...] = ()
    divide_by: tuple[float, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every image. Raises UsageError if they differ."""
        if self.height is None or self.width is None:
            raise UsageError(
                "the images of these slices differ in size, and a batch takes one; normalize again with --fit crop,"
                " exact or pad (and without --only-shrink, unless it is pad)"
            )
        return self.height, self.width

    @classmethod
    def from_json(cls, marker: Mapping[str, Any]) -> Self:
        """Raises DataError if something is missing."""
        try:
            image, statistics = marker["image"], marker["statistics"]
            facts: dict[str, Any] = {name: image[name] for name in ("height", "width", "channels", "format")}
            facts |= {name: tuple(statistics[name]) for name in ("mean", "std")}
            facts |= {name: tuple(image[name]) for name in ("subtract", "divide_by") if name in image}
            return cls(classes=tuple(marker["classes"]), splits=_slices_by_split(marker), **facts)
        except KeyError as error:
            raise DataError(f"the manifest lacks {error}; it was damaged or written by something else") from None

    def of_group(self, group: int) -> Self:
        """The same, but the training split has the slices of one group of workers only.

        Raises UsageError if there is no such group.
        """
        groups = sorted({each.group for each in self.splits.get("train", ()) if each.group is not None})
        if group not in groups:
            known = f"these slices have the groups 0 to {groups[-1]}" if groups else "these slices have no groups"
            raise UsageError(f"--group {group}: {known}; cut some with: ringslice shard --groups N")
        own = tuple(each for each in self.splits["train"] if each.group == group)
        return replace(self, splits={**self.splits, "train": own})


def _slices_by_split(marker: Mapping[str, Any]) -> dict[str, tuple[Slice, ...]]:
    found: dict[str, list[Slice]] = {split: [] for split in marker["splits"]}
    for split, each, first_example, first_block in located_slices(marker):
        facts = (each["name"], each["records"], each["blocks"], each["bytes"], each["sha256"])
        found[split].append(Slice(*facts, first_example, first_block, each.get("group")))
    return {split: tuple(slices) for split, slices in found.items()}


def build_manifest(
    run: Run,
    identity: Mapping[str, Any],
    normalized: Mapping[str, Any],
    slices: Sequence[tuple[str, str, int]],
    *,
    statistics: PixelSums,
    plan: Mapping[str, Any],
    history: Mapping[str, pa.Table],
) -> dict[str, Any]:
    """Check every slice of ``slices`` (split, name, examples), write the tables beside them, return the manifest.

    ``plan`` are the manifest's lineage, known and left_out; ``history`` the tables departed, contents and groups.

    Raises DataError if a slice is missing or has another number of examples.
    """
    folder = run.folder
    facts = [_checked_facts(folder, split, name, records) for split, name, records in slices]
    names = [name for _, name, _ in slices]
    tables: dict[str, Iterable[pa.Table]] = {
        "examples": (parquet_tables.read_table(work_table(folder, "slices", name)) for name in names),
        "blocks": (parquet_tables.read_table(work_table(folder, "blocks", name)) for name in names),
        "class_counts": [class_counts(facts)],
        **{name: [table] for name, table in history.items()},
    }
    return with_checksum(
        {
            "format": SLICES_FORMAT,
            **identity,
            "classes": normalized["classes"],
            "image": image_of(normalized),
            "splits": splits_of(facts, len(normalized["classes"]), identity["config"]),
            "statistics": statistics.to_json(),
            **plan,
            "tables": {name: _write(run, name, parts) for name, parts in tables.items()},
        }
    )


def image_of(normalized: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest records of the images, from the marker of the normalised ones."""
    config = NormalizeConfig.from_json(normalized["config"])
    image: dict[str, Any] = {
        "height": None if config.sizes_differ else config.height,
        "width": None if config.sizes_differ else config.width,
        "channels": config.channels,
        "format": config.format.upper(),
    }
    if config.format in FLOATS:
        image["subtract"], image["divide_by"] = map(list, config.scaling)
    return image


def splits_of(facts: Sequence[Mapping[str, Any]], classes: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest records of each split: its slices and their totals. ``facts`` are of all slices, by split."""
    by_split = groupby(facts, itemgetter("split"))
    return {split: _split(list(own), split, classes, config) for split, own in by_split}


def _checked_facts(folder: Place, split: str, name: str, records: int) -> dict[str, Any]:
    place = work_table(folder, "slices", name)
    require(place.exists(), f"slice {name} is missing though the job ended; run again")
    facts = parquet_tables.read_facts(place)
    require(facts["records"] == records, f"slice {name} has {facts['records']} examples, {records} were planned")
    info = (folder / f"{name}.tfrecord").info()
    require(
        info.size == facts["bytes"],
        f"{info.path} has {info.size} bytes, {facts['bytes']} were written; run again with --overwrite",
    )
    require((folder / f"{name}.idx").exists(), f"the index of slice {name} is missing; run again with --overwrite")
    return facts


def _split(own: Sequence[Mapping[str, Any]], split: str, classes: int, config: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("name", "records", "blocks", "bytes", "sha256")
    slices = [{name: each[name] for name in kept} for each in own]
    by_label: Counter[str] = Counter()
    for each in own:
        by_label.update(each["by_label"])
    totals: dict[str, Any] = {
        "records": sum(each["records"] for each in own),
        "bytes": sum(each["bytes"] for each in own),
        "by_class": [by_label[str(label)] for label in range(classes)],
        "slices": slices,
    }
    if split == "train" and config["groups"] > 1:
        for number, each in enumerate(slices):
            each["group"], each["worker"] = worker_of(number, config["workers"], config["groups"])
        totals["groups"] = [
            _group([each for each in slices if each["group"] == group]) for group in range(config["groups"])
        ]
    return totals


def _group(slices: list[dict[str, Any]]) -> dict[str, Any]:
    workers: Counter[int] = Counter()
    for each in slices:
        workers[each["worker"]] += each["records"]
    return {
        "records": sum(each["records"] for each in slices),
        "bytes": sum(each["bytes"] for each in slices),
        "workers": [{"records": workers[worker]} for worker in sorted(workers)],
    }


def class_counts(facts: Iterable[Mapping[str, Any]]) -> pa.Table:
    """`schemas.CLASS_COUNTS` of slices, from their facts."""
    rows = [
        {"slice": each["name"], "split": each["split"], "label": int(label), "records": count}
        for each in facts
        for label, count in each["by_label"].items()
    ]
    return parquet_tables.table_of(schemas.CLASS_COUNTS, rows)


def _write(run: Run, name: str, parts: Iterable[pa.Table]) -> dict[str, Any]:
    file = table_file(name)
    output, rows = parquet_tables.write_tables(run.folder / file, run.staging, TABLES[name], parts)
    return {"file": file, "rows": rows, "sha256": output.sha256}
