"""Build the manifest of a set of slices from the finished slices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.images.config import FLOATS, NormalizeConfig
from etl.partition.pixel_statistics import PixelSums
from etl.partition.shares import worker_of
from etl.slices.manifest import TABLES, table_file
from etl.slices.writer import blocks_place, facts_place
from etl.stages.layout import SLICES_FORMAT
from etl.stages.run import Run
from etl.stages.stage import require
from etl.storage.json_files import with_checksum
from etl.storage.place import Place


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
        "examples": (parquet_tables.read_table(facts_place(folder, name)) for name in names),
        "blocks": (parquet_tables.read_table(blocks_place(folder, name)) for name in names),
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
    """What a manifest records of each split: its slices and their totals. ``facts`` are those of all slices."""
    splits = dict.fromkeys(each["split"] for each in facts)
    return {
        split: _split([each for each in facts if each["split"] == split], split, classes, config) for split in splits
    }


def _checked_facts(folder: Place, split: str, name: str, records: int) -> dict[str, Any]:
    place = facts_place(folder, name)
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
    totals: dict[str, Any] = {
        "records": sum(each["records"] for each in own),
        "bytes": sum(each["bytes"] for each in own),
        "by_class": _by_class(own, classes),
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


def _by_class(facts: Sequence[Mapping[str, Any]], classes: int) -> list[int]:
    total: Counter[str] = Counter()
    for each in facts:
        total.update(each["by_label"])
    return [total[str(label)] for label in range(classes)]


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
