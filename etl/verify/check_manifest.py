"""The manifest against what it can be computed from again: its configuration, the normalised images, their marker."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.errors import RingsliceError
from etl.images.config import FLOATS, NormalizeConfig
from etl.partition.config import ShardConfig, SplitRequest, parse_split, resolve_slices
from etl.partition.pixel_statistics import PixelSums
from etl.partition.shares import worker_of
from etl.slices.manifest import slices_of
from etl.slices.writer import slice_names
from etl.verify.findings import MANIFEST, Finding

Manifest = Mapping[str, Any]
MANIFEST_FILE = "manifest.json"


def fault(line: str) -> Finding:
    """A finding about the manifest."""
    return Finding(MANIFEST, MANIFEST_FILE, line)


def total_faults(manifest: Manifest) -> Iterator[Finding]:
    """Where totals are not those of the slices that they are told of."""
    blocks = records = 0
    for split, told in manifest["splits"].items():
        for name in ("records", "bytes"):
            total = sum(each[name] for each in told["slices"])
            if told[name] != total:
                yield _contradiction(f"the split {split} has {told[name]} {name}, its slices have {total}")
        if sum(told["by_class"]) != told["records"] or len(told["by_class"]) != len(manifest["classes"]):
            yield _contradiction(f"the examples by class of the split {split} are not its {told['records']} examples")
        records += told["records"]
        blocks += sum(each["blocks"] for each in told["slices"])
    for table, rows in (("examples", records), ("blocks", blocks)):
        if manifest["tables"][table]["rows"] != rows:
            line = f"{table}.parquet has {manifest['tables'][table]['rows']} rows, there are {rows} {table}"
            yield _contradiction(line)
    for table, told in manifest["tables"].items():
        if told["file"] != f"{table}.parquet":
            yield _contradiction(f"the table {table} is {table}.parquet, not {told['file']}")


def _contradiction(line: str) -> Finding:
    return fault(f"manifest.json contradicts itself: {line}")


def config_of(manifest: Manifest) -> ShardConfig | None:
    """The configuration; None where it is none that ``shard`` takes."""
    try:
        return ShardConfig.from_json(manifest["config"])
    except (RingsliceError, ValueError, ZeroDivisionError):
        return None


def config_faults(manifest: Manifest) -> Iterator[Finding]:
    """Where the slices are not those that the configuration gives."""
    config = config_of(manifest)
    if config is None:
        yield _contradiction("its configuration is none that shard takes")
        return
    if config.split is not None and not _is_whole(config.split):
        yield _contradiction(f"the shares {_text(config.split)} of its configuration are not parts of one whole")
    there = [(split, each["name"]) for split, each in slices_of(manifest)]
    if there != slice_names(config.slices, config.workers, config.groups):
        yield _contradiction(f"it names {len(there)} slices that are not those of its configuration")
        return
    yield from _group_faults(manifest, config)
    records = {split: told["records"] for split, told in manifest["splits"].items()}
    try:
        if resolve_slices(records, 1, config.workers, config.slices["train"], 1) != config.slices:
            yield _contradiction(f"{config.slices} are not the slices for {records} examples, {config.workers} workers")
    except (RingsliceError, KeyError, ZeroDivisionError):
        yield _contradiction(f"{records} examples cannot be dealt to {config.slices} slices")


def _group_faults(manifest: Manifest, config: ShardConfig) -> Iterator[Finding]:
    """Groups of workers: which slices are whose, and how many examples."""
    slices, groups = manifest["splits"]["train"]["slices"], manifest["splits"]["train"].get("groups")
    due: list[tuple[int | None, int | None]] = [(None, None)] * len(slices)
    if config.groups > 1:
        due = [worker_of(number, config.workers, config.groups) for number in range(len(slices))]
    if [(each.get("group"), each.get("worker")) for each in slices] != due:
        yield _contradiction("groups and workers of its slices are not those of its configuration")
    elif config.groups == 1 and groups is not None:
        yield _contradiction("it tells of groups of workers, its configuration of none")
    elif config.groups > 1 and groups != [_sums(slices, group) for group in range(config.groups)]:
        yield _contradiction("groups of workers have not the examples of their slices")
    for split, told in manifest["splits"].items():
        strange = "groups" in told or any("group" in each or "worker" in each for each in told["slices"])
        if split != "train" and strange:
            yield _contradiction(f"it tells of groups of workers for {split}")


def _sums(slices: Sequence[Mapping[str, Any]], group: int) -> dict[str, Any]:
    own = [each for each in slices if each["group"] == group]
    workers = sorted({each["worker"] for each in own})
    records = [sum(each["records"] for each in own if each["worker"] == worker) for worker in workers]
    return {
        "records": sum(records),
        "bytes": sum(each["bytes"] for each in own),
        "workers": [{"records": number} for number in records],
    }


def _is_whole(split: SplitRequest) -> bool:
    try:
        return parse_split(_text(split)) == split
    except ValueError:
        return False


def _text(split: SplitRequest) -> str:
    return ",".join(f"{name}={'rest' if share is None else share}" for name, share in split.items())


def source_faults(manifest: Manifest, dataset: Mapping[str, Any]) -> Iterator[Finding]:
    """Where classes and the images' format are not those of the normalised images."""
    if manifest["classes"] != dataset["classes"]:
        yield fault("the classes of the manifest are not those of the normalised images")
    if manifest["image"] != image_told(dataset):
        line = f"the manifest tells of images {manifest['image']}, the normalised ones are {image_told(dataset)}"
        yield fault(line)


def image_told(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest has to say of images of this configuration."""
    config = NormalizeConfig.from_json(dataset["config"])
    size = {"height": config.height, "width": config.width}
    floats = zip(("subtract", "divide_by"), map(list, config.scaling), strict=True)
    return {
        **(dict.fromkeys(size) if config.sizes_differ else size),
        "channels": config.channels,
        "format": config.format.upper(),
        **(dict(floats) if config.format in FLOATS else {}),
    }


def statistics_faults(manifest: Manifest, pixels: Sequence[int], left_out: Mapping[str, int]) -> Iterator[Finding]:
    """Whether the statistics and the counts of what was left out are those of the examples and of the good images.

    ``pixels`` are the sums over the training images: pixels, then sums and squares by channel.
    """
    channels = (len(pixels) - 1) // 2
    sums = PixelSums(pixels[0], list(pixels[1 : channels + 1]), list(pixels[channels + 1 :])) if pixels else None
    if sums is None or sums.to_json() != manifest["statistics"]:
        yield fault("the statistics of the manifest are not those of the training images")
    if dict(left_out) != manifest["left_out"]:
        line = f"{dict(left_out)} good images were left out, the manifest tells of {manifest['left_out']}"
        yield fault(line)
