"""What markers say, against what lies beside them and against what was counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.normalized.live_rows import live_facts
from etl.normalized.parts import pack_of
from etl.partition.config import SPLIT_NAMES
from etl.slices.manifest import CLASS_COUNTS_FILE, slices_of
from etl.stages.stage import RUN_FILE, WORK_FOLDER, Stage
from etl.verify.check_part import NOT_OF_THE_LIST, NOT_OF_THE_ROWS, facts_digest
from etl.verify.findings import MANIFEST, STRAY, TABLE, Finding

DATASET, RAW_DATASET = "dataset.json", "raw/dataset.json"

Part = Mapping[str, Any]


def dataset_faults(dataset: Mapping[str, Any], counted: Mapping[str, int]) -> Iterator[Finding]:
    """Where the marker of the normalised images contradicts itself, or what was ``counted``: good images, rejects."""
    for part in dataset["parts"]:
        if part["input"] != part["records"] + part["rejects"]["count"]:
            said = f"{part['input']} images are not {part['records']} good + {part['rejects']['count']} rejects"
            yield _dataset_fault(f"{part['part']}: {said}")
    told = dataset["counts"]
    for name, what in (("good", "good images"), ("rejects", "rejects")):
        if told[name] != counted.get(name, 0):
            yield _dataset_fault(f"normalized tells of {told[name]} {what}, its parts have {counted.get(name, 0)}")
    if told["input"] != told["good"] + told["rejects"]:
        yield _dataset_fault(f"{told['input']} images are not {told['good']} good + {told['rejects']} rejects")
    yield from _count_faults(dataset)


def _count_faults(dataset: Mapping[str, Any]) -> Iterator[Finding]:
    """Where its counts are not those of its parts."""
    told, live, reasons = dataset["counts"], [live_facts(part) for part in dataset["parts"]], Counter[str]()
    by_class = np.zeros(len(dataset["classes"]), dtype=np.int64)
    for part, facts in zip(dataset["parts"], live, strict=True):
        reasons.update(facts["rejects"]["by_reason"])
        if any(len(counts) > len(by_class) for counts in facts["examples"].values()):
            yield _dataset_fault(f"{part['part']}: it has more classes than there are")
            return
        for counts in facts["examples"].values():
            by_class[: len(counts)] += np.asarray(counts, dtype=np.int64)
    due = {"rejects_by_reason": reasons, "bytes": sum(each["bytes"] for each in live), "by_class": by_class.tolist()}
    for name, value in due.items():
        if told[name] != value:
            yield _dataset_fault(f"the {name} of normalized are not those of its parts")


def told_faults(
    dataset: Mapping[str, Any], raw: Mapping[str, Any] | None, told: Mapping[str, list[str | None]]
) -> Iterator[Finding]:
    """Where the markers say other things of parts and packs than their tables, as tasks ``told`` by their digests."""
    for part in dataset["parts"]:
        there = told.get(f"part {part['part']}")
        due = [facts_digest(part, NOT_OF_THE_ROWS), facts_digest(part["live"]) if "live" in part else None]
        if there is not None and there != due:
            yield _dataset_fault(f"what normalized says of {part['part']} is not what its table of rows says")
    for pack in raw["packs"] if raw is not None else ():
        there = told.get(f"pack {pack['name']}")
        if there is not None and there != [facts_digest(pack, NOT_OF_THE_LIST)]:
            yield _raw_fault(f"what raw says of {pack['name']} is not what its list says")


def raw_faults(raw: Mapping[str, Any], dataset: Mapping[str, Any], live: Mapping[str, int] | None) -> Iterator[Finding]:
    """Where the marker of the packs contradicts itself, or what tasks counted of ``live`` images; None in doubt."""
    if live is not None:
        due = {
            "images": live.get("images", 0),
            "bytes": live.get("bytes", 0),
            "by_class": [live.get(f"class {label}", 0) for label in range(len(raw["classes"]))],
            "by_split": {name: live[f"split {name}"] for name in SPLIT_NAMES if f"split {name}" in live},
        }
        for name in (name for name, value in due.items() if raw["counts"][name] != value):
            yield _raw_fault(f"raw tells of other {name} than its packs have")
    for name in ("classes", "removed"):
        if raw[name] != dataset[name]:
            yield _raw_fault(f"the {name} of raw are not those of normalized")
    numbers = [int(pack["name"].removeprefix("pack-")) for pack in raw["packs"]]
    if raw["next_pack"] <= max(numbers, default=-1) or (not raw["parent"] and raw["next_pack"] != len(numbers)):
        yield _raw_fault(f"the next pack is not number {raw['next_pack']}")
    in_place = raw["config"]["in_place"]
    if any(("file" in pack) != in_place for pack in raw["packs"]) or (raw["config"]["pack_bytes"] is None) != in_place:
        yield _raw_fault("packs are not where the configuration has them")
    if (raw["kind"] == "idx") != (raw["pixels"] is not None):
        yield _raw_fault(f"a source of the kind {raw['kind']} tells of pixels {raw['pixels']}")
    if removed := raw["removed"]:
        rows = sum(pack["removed"] for pack in raw["packs"])
        if removed["file"] != f"removed/{removed['sha256'][:16]}.parquet" or removed["rows"] != rows:
            yield _raw_fault(f"its packs have {rows} removed images, {removed['file']} has {removed['rows']}")


def _raw_fault(line: str) -> Finding:
    return Finding(MANIFEST, RAW_DATASET, line)


def pack_faults(dataset: Mapping[str, Any], raw: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Where the parts are not those of the packs that they were made of: ``raw`` is that marker, None if it is gone."""
    if raw is None:
        yield _dataset_fault("normalized was made from packs that raw neither has nor had")
        return
    parts = {pack_of(part): part for part in dataset["parts"]}
    if len(parts) != len(dataset["parts"]):
        yield _dataset_fault("normalized has two parts of one pack")
    for pack in raw["packs"]:
        part = parts.pop(pack["name"], None)
        if part is None:
            yield _dataset_fault(f"{pack['name']} of raw has no part")
        elif _made_of(part) != (pack["sha256"], pack["list_sha256"], pack["images"], pack["removed"]):
            yield _dataset_fault(
                f"{part['part']}: {part['input']} images, {part['removed']} of them removed, are not the"
                f" {pack['images']} of {pack['name']}, {pack['removed']} removed, or it is another pack"
            )
    yield from (_dataset_fault(f"{part['part']} was made of a pack that raw does not name") for part in parts.values())
    live = sum(pack["images"] - pack["removed"] for pack in raw["packs"])
    if live != dataset["counts"]["input"]:
        yield _dataset_fault(f"normalized tells of {dataset['counts']['input']} images, raw has {live}")


def _made_of(part: Part) -> tuple[str, str, int, int]:
    return part["pack_sha256"], part["list_sha256"], part["input"], part["removed"]


def _dataset_fault(line: str) -> Finding:
    return Finding(MANIFEST, DATASET, line)


Manifest = Mapping[str, Any]


def stray_files(stage: Stage, manifest: Manifest) -> Iterator[Finding]:
    """Files in the folder of these slices that nothing names."""
    named = {stage.marker_name, RUN_FILE, *(table["file"] for table in manifest["tables"].values())}
    named |= {f"{each['name']}.{ending}" for _, each in slices_of(manifest) for ending in ("tfrecord", "idx")}
    above = len(stage.folder.path.rstrip("/")) + 1
    for info in stage.folder.children(recursive=True):
        name = info.path[above:]
        if info.is_file and name not in named and not name.startswith(f"{WORK_FOLDER}/"):
            yield Finding(STRAY, name, f"{stage.folder / name} is not named by the manifest; remove it")


def class_faults(manifest: Manifest, by_class: Mapping[str, Counter[int]]) -> Iterator[Finding]:
    """Splits that have other numbers of examples by class than ``by_class``, what was counted."""
    for split, told in manifest["splits"].items():
        counted = [by_class.get(split, Counter[int]())[label] for label in range(len(told["by_class"]))]
        if counted != told["by_class"]:
            line = f"the examples by class of the split {split} are not those of the manifest"
            yield Finding(MANIFEST, "manifest.json", line)


def class_count_faults(stage: Stage, counted: Iterator[pa.Table], told: int) -> Iterator[Finding]:
    """Whether the table of class counts has the rows ``counted``, which come in its order, and no more.

    ``told`` is their number as the manifest has it.
    """
    first, place = 0, stage.folder / CLASS_COUNTS_FILE
    try:
        total = sum(table.num_rows for table in parquet_tables.iterate_groups(place, ["records"]))
        for table in counted:
            if not parquet_tables.read_range(place, first, first + table.num_rows).equals(table):
                raise DataError(f"{place} does not tell what the slices hold")
            first += table.num_rows
        if first != total:
            raise DataError(f"{place} has {total} rows, the slices have {first} classes")
        if first != told:
            yield Finding(MANIFEST, "manifest.json", f"{place} has {total} rows, the manifest tells of {told}")
    except (DataError, FileNotFoundError) as error:
        line = f"{place} is missing" if isinstance(error, FileNotFoundError) else str(error)
        yield Finding(TABLE, CLASS_COUNTS_FILE, line)


def balance_faults(manifest: Manifest, counted: Iterable[pa.Table]) -> Iterator[Finding]:
    """Splits whose slices differ by more than one example, or, where stratified, by more than one of a class.

    ``counted`` are rows of the table of class counts.
    """
    for split, told in manifest["splits"].items():
        sizes = [each["records"] for each in told["slices"]]
        if max(sizes) - min(sizes) > 1:
            yield _imbalance(f"slices of {split} have {min(sizes)} to {max(sizes)} examples")
    if manifest["config"]["partition"] != "stratified":
        return
    extremes: dict[tuple[str, int], tuple[int, int, int]] = {}
    for table in counted:
        by_class = table.group_by(["split", "label"]).aggregate([("records", how) for how in ("min", "max", "count")])
        for row in by_class.to_pylist():
            least, most, number = extremes.get((row["split"], row["label"]), (row["records_min"], 0, 0))
            extremes[row["split"], row["label"]] = (
                min(least, row["records_min"]),
                max(most, row["records_max"]),
                number + row["records_count"],
            )
    for (split, label), (least, most, number) in sorted(extremes.items()):
        everywhere = number == len(manifest["splits"][split]["slices"])
        if most - (least if everywhere else 0) > 1:
            name = manifest["classes"][label]
            yield _imbalance(f"slices of {split} have {least if everywhere else 0} to {most} examples of class {name}")


def _imbalance(what: str) -> Finding:
    return Finding(MANIFEST, "manifest.json", f"the slices are not balanced: {what}")
