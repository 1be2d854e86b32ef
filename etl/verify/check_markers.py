"""What a manifest says, against itself, against what lies beside it and against what was counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of
from etl.slices.manifest import CLASS_COUNTS_FILE, slices_of
from etl.stages.stage import RUN_FILE, WORK_FOLDER, Stage
from etl.verify.findings import INPUT, MANIFEST, STRAY, TABLE, Finding

COLUMNS = ["key", "sha256"]
DATASET = "dataset.json"

Part = Mapping[str, Any]


def input_faults(part: Part, images: pa.Table, good: pa.Table, rejects: pa.Table) -> Iterator[Finding]:
    """Whether the ``images`` of a part's pack are its ``good`` ones and its ``rejects``: tables of `COLUMNS`.

    There is one finding at most, which names one image.
    """
    listed, held = dict(_pairs([images])), dict(_pairs([good, rejects]))
    number, name = good.num_rows + rejects.num_rows, part["part"]
    fault = ""
    if lost := next((key for key in listed if key not in held), None):
        fault = f"{lost} is neither"
    elif unknown := next((key for key in held if key not in listed), None):
        fault = f"{unknown} is none of them"
    elif not number == len(held) == images.num_rows:
        fault = f"{_first_double([images]) or _first_double([good, rejects])} is there twice"
    elif other := next((key for key in listed if listed[key] != held[key]), None):
        fault = f"{other} has another SHA-256"
    if fault:
        said = f"{images.num_rows} images of {pack_of(part)} are not {good.num_rows} good + {rejects.num_rows} rejects"
        yield Finding(INPUT, name, f"{name}: the {said}: {fault}")


def _pairs(several: Iterable[pa.Table]) -> Iterator[tuple[str, bytes]]:
    for table in several:
        yield from zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)


def _first_double(several: Iterable[pa.Table]) -> str | None:
    seen = set[str]()
    for key, _ in _pairs(several):
        if key in seen:
            return key
        seen.add(key)
    return None


def no_rejects() -> pa.Table:
    """What `input_faults` takes where a part has none."""
    return schemas.REJECTS.empty_table().select(COLUMNS)


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


def manifest_faults(manifest: Manifest) -> Iterator[Finding]:
    """Where totals are not those of the slices that they are told of."""
    slices = blocks = records = 0
    for split, told in manifest["splits"].items():
        for name in ("records", "bytes"):
            total = sum(each[name] for each in told["slices"])
            if told[name] != total:
                yield _fault(f"the split {split} has {told[name]} {name}, its slices have {total}")
        if sum(told["by_class"]) != told["records"] or len(told["by_class"]) != len(manifest["classes"]):
            yield _fault(f"the examples by class of the split {split} are not its {told['records']} examples")
        slices, records = slices + len(told["slices"]), records + told["records"]
        blocks += sum(each["blocks"] for each in told["slices"])
    if slices != sum(manifest["config"]["slices"].values()):
        yield _fault(f"it names {slices} slices, its configuration {sum(manifest['config']['slices'].values())}")
    for table, rows in (("examples", records), ("blocks", blocks)):
        if manifest["tables"][table]["rows"] != rows:
            yield _fault(f"{table}.parquet has {manifest['tables'][table]['rows']} rows, there are {rows} {table}")


def _fault(line: str) -> Finding:
    return Finding(MANIFEST, "manifest.json", f"manifest.json contradicts itself: {line}")


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


def class_count_faults(stage: Stage, counted: Iterator[pa.Table]) -> Iterator[Finding]:
    """Whether the table of class counts has the rows ``counted``, which come in its order, and no more."""
    first, place = 0, stage.folder / CLASS_COUNTS_FILE
    try:
        total = sum(table.num_rows for table in parquet_tables.iterate_groups(place, ["records"]))
        for table in counted:
            if not parquet_tables.read_range(place, first, first + table.num_rows).equals(table):
                raise DataError(f"{place} does not tell what the slices hold")
            first += table.num_rows
        if first != total:
            raise DataError(f"{place} has {total} rows, the slices have {first} classes")
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


def sum_faults(manifest: Manifest, pixels: list[int], left_out: Mapping[str, int]) -> Iterator[Finding]:
    """Whether the statistics and the counts of what was left out are those of the examples and of the good images."""
    told = manifest["statistics"]
    if pixels != [told["pixels"], *told["sums"], *told["squares"]]:
        line = "the statistics of the manifest are not those of the training images"
        yield Finding(MANIFEST, "manifest.json", line)
    if dict(left_out) != manifest["left_out"]:
        line = f"{dict(left_out)} good images were left out, the manifest tells of {manifest['left_out']}"
        yield Finding(MANIFEST, "manifest.json", line)
