"""The markers of slices, normalised images and packs, computed again by the functions that write them, and compared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from etl.errors import DataError, RingsliceError
from etl.formats import parquet_tables
from etl.normalized.erased import erased_config
from etl.normalized.parts import count_live_images, pack_of
from etl.partition.config import SPLIT_NAMES, ShardConfig
from etl.partition.pixel_statistics import PixelSums
from etl.slices.history import FIRST, ParentSlices
from etl.slices.manifest import class_counts, image_of, slices_of, splits_of, table_file
from etl.slices.plan import Plan
from etl.slices.writer import slice_names
from etl.stages.layout import normalized_stage
from etl.stages.marker import Generation
from etl.stages.names import RUN_FILE, WORK_FOLDER
from etl.stages.stage import Stage
from etl.verify.findings import (
    DATASET,
    MANIFEST_FILE,
    RAW_DATASET,
    Finding,
    What,
    differences,
    marker_fault,
    table_difference,
)
from etl.verify.target import Target

MAX_LINES = 10  # differences of one marker that are named

Marker = Mapping[str, Any]
Facts = Mapping[str, Any]  # of a slice, as `etl.slices.writer.SliceScan` gives them


def marker_findings(
    target: Target, plan: Plan | None, facts: Sequence[Facts] | None, live: Mapping[str, int] | None
) -> Iterator[Finding]:
    """Files that nothing names, and where markers and tables are not what they can be computed from.

    ``facts`` of the slices and counts of ``live`` images are None if something of them is damaged.
    """
    folder, manifest, dataset = target.slices.folder, target.manifest, target.dataset
    yield from _stray_files(target.slices, manifest)
    yield from _manifest_findings(target, plan, facts)
    tables = dict(plan.history) if plan else {}
    if facts is not None:
        tables["class_counts"] = class_counts(facts)
    for name, table in tables.items():
        with suppress(DataError, FileNotFoundError, pa.ArrowException):  # found by its SHA-256
            if line := table_difference(table, parquet_tables.read_table(folder / table_file(name))):
                line = f"{table_file(name)}: {line}"
                yield Finding(What.TABLE, table_file(name), line) if name == "class_counts" else marker_fault(line)
    if dataset is not None:
        yield from _dataset_findings(dataset, target)
    elif not target.damaged and erased_config(target.root, manifest["input"]) is None:
        yield marker_fault(
            f"its normalised images are none that {normalized_stage(target.root).folder} has or had: were the slices"
            " copied from another root?"
        )
    yield from target.damaged
    if target.raw is not None and dataset is not None:
        yield from _raw_findings(target.raw, dataset, live)


def _compare(expected: Marker, recorded: Marker, marker: str = MANIFEST_FILE) -> Iterator[Finding]:
    return (marker_fault(line, marker) for line in islice(differences(expected, recorded), MAX_LINES))


def _manifest_findings(target: Target, plan: Plan | None, facts: Sequence[Facts] | None) -> Iterator[Finding]:
    """The manifest against ``facts`` of its slices, the normalised images and the plan, as far as these are known."""
    manifest, dataset = target.manifest, target.dataset
    try:
        config = ShardConfig(**manifest["config"])
    except (RingsliceError, TypeError) as error:
        yield marker_fault(f"config is not one that shard takes ({error})")
        return
    names = [(split, each["name"]) for split, each in slices_of(manifest)]
    if names != slice_names(config.slices, config.workers, config.groups):
        yield marker_fault(f"it names {len(names)} slices that are not those of its config")
        return
    expected = {**manifest, "lineage": _lineage_of(manifest, target.parent)}
    rows = {}
    if facts is not None:
        expected["splits"] = splits_of(facts, len(manifest["classes"]), manifest["config"])
        rows["examples"], rows["blocks"] = (sum(each[name] for each in facts) for name in ("records", "blocks"))
        rows["class_counts"] = sum(len(each["by_label"]) for each in facts)
    if dataset is not None:
        expected |= {"classes": dataset.marker["classes"], "image": image_of(dataset.marker)}
    if plan is not None:
        # a list of removed keys may repeat some that were removed before
        own = {"removed_keys": manifest["config"]["removed_keys"]} if config.splits_from else {}
        expected |= {"config": vars(plan.config) | own, "known": plan.known, "left_out": plan.left_out}
        rows |= {name: table.num_rows for name, table in plan.history.items()}
    expected["tables"] = {
        name: {"file": table_file(name), "rows": rows.get(name, table["rows"]), "sha256": table["sha256"]}
        for name, table in manifest["tables"].items()
    }
    yield from _compare(expected, manifest)
    if facts is not None:
        yield from _imbalances(manifest, facts, config)


def _lineage_of(manifest: Marker, parent: ParentSlices | None) -> dict[str, Any] | None:
    """The lineage that a manifest should have; an experiment has none."""
    recorded, splits_from = manifest["lineage"], manifest["config"]["splits_from"]
    if parent is not None:
        return parent.next_lineage
    if splits_from is None:
        return FIRST if recorded else None
    ancestors = [splits_from, *(recorded["ancestors"][1:] if recorded else ())]
    return {"number": len(ancestors) + 1, "ancestors": ancestors}


def _imbalances(manifest: Marker, facts: Sequence[Facts], config: ShardConfig) -> Iterator[Finding]:
    """Splits whose slices differ by more than one example, or, if stratified, by more than one of a class."""
    labels = range(len(manifest["classes"]) if config.is_stratified else 0)
    for split in manifest["splits"]:
        own = [each for each in facts if each["split"] == split]
        for label in [None, *map(str, labels)]:
            counts = [each["records"] if label is None else each["by_label"].get(label, 0) for each in own]
            if max(counts) - min(counts) > 1:
                of_class = "" if label is None else f" of class {manifest['classes'][int(label)]}"
                line = f"slices of {split} have {min(counts)} to {max(counts)} examples{of_class}"
                yield marker_fault(f"the slices are not balanced: {line}")


def statistics_findings(manifest: Marker, sums: PixelSums, left_out: Mapping[str, int]) -> Iterator[Finding]:
    """The statistics of the training images, and the counts of what was left out."""
    due = {"statistics": sums.to_json() if sums.pixels else None, "left_out": left_out}
    yield from _compare({**manifest, **due}, manifest)


def _dataset_findings(dataset: Generation, target: Target) -> Iterator[Finding]:
    """The marker of the normalised images, against the entries of its parts, and against that of their packs."""
    raw, marker = target.raw, dataset.marker
    if raw is None:
        if not target.damaged:
            yield marker_fault("its packs are of no generation of raw", DATASET)
        return
    expected: dict[str, Any] = {name: raw.marker[name] for name in ("classes", "removed")}
    try:
        expected["counts"] = count_live_images(dataset.entries, len(marker["classes"]))
    except ValueError:
        yield marker_fault("a part has more classes than there are", DATASET)
    yield from _compare({**marker, **expected}, marker, DATASET)
    lines = differences(*_packs(raw, dataset), "packs of its parts")
    yield from (marker_fault(line, DATASET) for line in islice(lines, MAX_LINES))


def _packs(raw: Generation, dataset: Generation) -> tuple[list[str], list[str]]:
    return list(raw.entries.column("name")), [pack_of(part) for part in dataset.entries]


def _raw_findings(generation: Generation, dataset: Generation, live: Mapping[str, int] | None) -> Iterator[Finding]:
    """The marker of the packs, against the counts of their ``live`` images; None if a list is damaged."""
    raw, counts = generation.marker, dict[str, Any]()
    if live is not None and len(set(map(tuple, _packs(generation, dataset)))) == 1:
        counts = {
            "images": live.get("images", 0),
            "bytes": live.get("bytes", 0),
            "by_class": [live.get(f"label {label}", 0) for label in range(len(raw["classes"]))],
            "by_split": {name: live[f"split {name}"] for name in SPLIT_NAMES if f"split {name}" in live},
        }
    in_place, size = any(file is not None for file in generation.entries.column("file")), raw["config"]["pack_bytes"]
    config = raw["config"] | {"in_place": in_place, "pack_bytes": None if in_place else size or "a size"}
    yield from _compare({**raw, "config": config, "counts": raw["counts"] | counts}, raw, RAW_DATASET)
    if (raw["kind"] == "idx") != (raw["pixels"] is not None):
        yield marker_fault(f"a source of the kind {raw['kind']} has the pixels {raw['pixels']}", RAW_DATASET)
    numbers = [int(name.removeprefix("pack-")) for name in generation.entries.column("name")]
    if raw["next_pack"] <= max(numbers, default=-1) or (not raw["parent"] and raw["next_pack"] != len(numbers)):
        yield marker_fault(f"the next pack is not number {raw['next_pack']}", RAW_DATASET)


def _stray_files(stage: Stage, manifest: Marker) -> Iterator[Finding]:
    """Files in the folder of these slices that nothing names."""
    named = {stage.marker_name, RUN_FILE, *(table["file"] for table in manifest["tables"].values())}
    named |= {f"{each['name']}.{ending}" for _, each in slices_of(manifest) for ending in ("tfrecord", "idx")}
    above = len(stage.folder.path.rstrip("/")) + 1
    for info in stage.folder.children(recursive=True):
        name = info.path[above:]
        if info.is_file and name not in named and not name.startswith(f"{WORK_FOLDER}/"):
            yield Finding(What.STRAY, name, f"{stage.folder / name} is not named by the manifest; remove it")
