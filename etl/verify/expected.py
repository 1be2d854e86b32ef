"""The markers of slices, normalised images and packs, computed again by the functions that write them, and compared."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from etl.errors import DataError, RingsliceError
from etl.formats import parquet_tables
from etl.normalized.live_rows import count_live_images
from etl.normalized.parts import pack_of
from etl.partition.config import SPLIT_NAMES, ShardConfig
from etl.partition.pixel_statistics import PixelSums
from etl.slices.lineage import FIRST, ParentSlices
from etl.slices.manifest import slices_of, table_file
from etl.slices.manifest_builder import class_counts, image_of, splits_of
from etl.slices.plan import Plan
from etl.slices.writer import slice_names
from etl.stages.names import RUN_FILE, WORK_FOLDER
from etl.stages.stage import Stage
from etl.storage.place import Place
from etl.verify.compare import differences, table_difference
from etl.verify.findings import DATASET, MANIFEST, MANIFEST_FILE, RAW_DATASET, STRAY, TABLE, Finding

MAX_LINES = 10  # differences of one marker that are named

Marker = Mapping[str, Any]
Facts = Mapping[str, Any]  # of a slice, as `etl.slices.writer.SliceScan` gives them


def fault(line: str, marker: str = MANIFEST_FILE) -> Finding:
    """A finding about a marker."""
    return Finding(MANIFEST, marker, f"{marker}: {line}")


def _compare(expected: Marker, recorded: Marker, marker: str) -> Iterator[Finding]:
    return (fault(line, marker) for line in islice(differences(expected, recorded), MAX_LINES))


def manifest_findings(
    manifest: Marker,
    facts: Sequence[Facts] | None,
    dataset: Marker | None,
    plan: Plan | None,
    earlier: ParentSlices | None,
) -> Iterator[Finding]:
    """The manifest against ``facts`` of its slices, the normalised images and the plan, as far as these are known."""
    try:
        config = ShardConfig.from_json(manifest["config"])
    except (RingsliceError, TypeError, ValueError, ZeroDivisionError) as error:
        yield fault(f"config is not one that shard takes ({error})")
        return
    names = [(split, each["name"]) for split, each in slices_of(manifest)]
    if names != slice_names(config.slices, config.workers, config.groups):
        yield fault(f"it names {len(names)} slices that are not those of its config")
        return
    expected = {**manifest, "lineage": lineage_of(manifest, earlier)}
    rows = {}
    if facts is not None:
        expected["splits"] = splits_of(facts, len(manifest["classes"]), manifest["config"])
        rows["examples"], rows["blocks"] = (sum(each[name] for each in facts) for name in ("records", "blocks"))
        rows["class_counts"] = sum(len(each["by_label"]) for each in facts)
    if dataset is not None:
        expected |= {"classes": dataset["classes"], "image": image_of(dataset)}
    if plan is not None:
        # a list of removed keys may repeat some that were removed before
        own = {"removed_keys": manifest["config"]["removed_keys"]} if config.splits_from else {}
        expected |= {"config": plan.config.to_json() | own, "known": plan.known, "left_out": plan.left_out}
        rows |= {name: table.num_rows for name, table in plan.history.items()}
    expected["tables"] = {
        name: {"file": table_file(name), "rows": rows.get(name, table["rows"]), "sha256": table["sha256"]}
        for name, table in manifest["tables"].items()
    }
    yield from _compare(expected, manifest, MANIFEST_FILE)
    if facts is not None:
        yield from _imbalances(manifest, facts, config)


def lineage_of(manifest: Marker, earlier: ParentSlices | None) -> dict[str, Any] | None:
    """The lineage that a manifest should have; an experiment, or slices that `erase` rebuilt, have none."""
    recorded, parent = manifest["lineage"], manifest["config"]["splits_from"]
    if recorded is None or earlier is not None:
        return earlier.next_lineage if recorded and earlier else None
    ancestors = [parent, *recorded["ancestors"][1:]]
    return {"number": len(ancestors) + 1, "ancestors": ancestors} if parent else FIRST


def _imbalances(manifest: Marker, facts: Sequence[Facts], config: ShardConfig) -> Iterator[Finding]:
    """Splits whose slices differ by more than one example, or, if stratified, by more than one of a class."""
    labels = range(len(manifest["classes"]) if config.partition == "stratified" else 0)
    for split in manifest["splits"]:
        own = [each for each in facts if each["split"] == split]
        for label in [None, *map(str, labels)]:
            counts = [each["records"] if label is None else each["by_label"].get(label, 0) for each in own]
            if max(counts) - min(counts) > 1:
                of_class = "" if label is None else f" of class {manifest['classes'][int(label)]}"
                line = f"slices of {split} have {min(counts)} to {max(counts)} examples{of_class}"
                yield fault(f"the slices are not balanced: {line}")


def memory_findings(folder: Place, manifest: Marker, plan: Plan) -> Iterator[Finding]:
    """The tables of what is remembered, against those of the ``plan``."""
    for name, table in plan.history.items():
        file = manifest["tables"][name]["file"]
        try:
            same = parquet_tables.read_table(folder / file).equals(table)
        except (DataError, FileNotFoundError, pa.ArrowException):  # found by its SHA-256
            continue
        if not same:
            yield fault(f"{file} is not what the config gives")


def class_count_findings(folder: Place, facts: Sequence[Facts]) -> Iterator[Finding]:
    """The table of class counts, against the facts of all slices."""
    place = folder / table_file("class_counts")
    try:
        line = table_difference(class_counts(facts), parquet_tables.read_table(place))
    except (DataError, FileNotFoundError, pa.ArrowException) as error:
        line = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
    if line:
        yield Finding(TABLE, table_file("class_counts"), f"{table_file('class_counts')}: {line}")


def statistics_findings(manifest: Marker, sums: PixelSums, left_out: Mapping[str, int]) -> Iterator[Finding]:
    """The statistics of the training images, and the counts of what was left out."""
    due = {"statistics": sums.to_json() if sums.pixels else None, "left_out": left_out}
    yield from _compare({**manifest, **due}, manifest, MANIFEST_FILE)


def dataset_findings(dataset: Marker, raw: Marker | None) -> Iterator[Finding]:
    """The marker of the normalised images, against what it records of its parts, and against that of their packs."""
    if raw is None:
        yield fault("its packs are of no generation of raw", DATASET)
        return
    expected: dict[str, Any] = {name: raw[name] for name in ("classes", "removed")}
    try:
        expected["counts"] = count_live_images(dataset["parts"], len(dataset["classes"]))
    except ValueError:
        yield fault("a part has more classes than there are", DATASET)
    yield from _compare({**dataset, **expected}, dataset, DATASET)
    lines = differences(*_packs(raw, dataset), "packs of its parts")
    yield from (fault(line, DATASET) for line in islice(lines, MAX_LINES))


def _packs(raw: Marker, dataset: Marker) -> tuple[list[str], list[str]]:
    return [pack["name"] for pack in raw["packs"]], [pack_of(part) for part in dataset["parts"]]


def raw_findings(raw: Marker, dataset: Marker, live: Mapping[str, int] | None) -> Iterator[Finding]:
    """The marker of the packs, against the counts of their ``live`` images; None if a list is damaged."""
    counts: dict[str, Any] = {}
    if live is not None and len(set(map(tuple, _packs(raw, dataset)))) == 1:
        counts = {
            "images": live.get("images", 0),
            "bytes": live.get("bytes", 0),
            "by_class": [live.get(f"class {label}", 0) for label in range(len(raw["classes"]))],
            "by_split": {name: live[f"split {name}"] for name in SPLIT_NAMES if f"split {name}" in live},
        }
    in_place, size = any("file" in pack for pack in raw["packs"]), raw["config"]["pack_bytes"]
    config = raw["config"] | {"in_place": in_place, "pack_bytes": None if in_place else size or "a size"}
    yield from _compare({**raw, "config": config, "counts": raw["counts"] | counts}, raw, RAW_DATASET)
    numbers = [int(pack["name"].removeprefix("pack-")) for pack in raw["packs"]]
    if raw["next_pack"] <= max(numbers, default=-1) or (not raw["parent"] and raw["next_pack"] != len(numbers)):
        yield fault(f"the next pack is not number {raw['next_pack']}", RAW_DATASET)


def stray_findings(stage: Stage, manifest: Marker) -> Iterator[Finding]:
    """Files in the folder of these slices that nothing names."""
    named = {stage.marker_name, RUN_FILE, *(table["file"] for table in manifest["tables"].values())}
    named |= {f"{each['name']}.{ending}" for _, each in slices_of(manifest) for ending in ("tfrecord", "idx")}
    above = len(stage.folder.path.rstrip("/")) + 1
    for info in stage.folder.children(recursive=True):
        name = info.path[above:]
        if info.is_file and name not in named and not name.startswith(f"{WORK_FOLDER}/"):
            yield Finding(STRAY, name, f"{stage.folder / name} is not named by the manifest; remove it")
