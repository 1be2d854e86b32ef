#!/usr/bin/env python3
"""Wall seconds, processor time and peak memory of what drivers do about all images, each in a fresh process.

    python benchmarks/planning.py --parts 10000 --classes 1000 --slices 100000 --images 1000000

Plans the shares of made-up parts that all contain every class and the source's splits, the worst case; then, from the
rows of so many made-up images, the splits of a first night and of a second one that keeps them (half a percent of the
images are gone, one percent are new). Loads the manifest of so many slices. Joins so many examples with as many good
images, as `verify` does with what its tasks publish. The peer of the second night is the first, that of the manifest
`json.loads` of the same bytes.
"""

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.options.click_command import option_values
from etl.options.stage_options import SHARD_OPTIONS
from etl.partition.config import SPLIT_NAMES, parse_split
from etl.slices.history import FIRST, ParentSlices, find_parent
from etl.slices.manifest import Manifest, read_manifest
from etl.slices.plan import Plan, make_plan
from etl.slices.writer import slice_names
from etl.stages.layout import NORMALIZED_FORMAT, PARTS, SLICES_FORMAT, normalized_stage, slices_stage
from etl.storage.place import json_bytes, open_place, with_checksum
from etl.verify.join import RETIRED_KEYS, LineResult, Reconciler, read_rows
from etl.verify.target import LINE_IMAGES
from lib.command import COUNT, benchmark
from lib.memory import own_memory
from lib.processes import call, describe_machine
from lib.results import Result, compare, print_results
from lib.rounds import take_turns
from mapreduce.verify import BUCKET_EXAMPLES

SHORT = {"parts": 2_000, "slices": 20_000, "images": 100_000, "times": 3}
VERSIONS = ("numpy",)
SPLIT = parse_split("train=0.8,validation=0.1,test=0.1")
PART_ROWS = 2_000
CLASSES_OF_IMAGES = 100
NEW, GONE = 100, 200  # of so many images one is new on the second night, and one gone
COLUMNS = schemas.ROWS.field("columns").type
SLICES_OF_EXAMPLES = 1_000


def write_normalized(folder: Path, parts: int, classes: int) -> None:
    """The marker of a dataset with so many parts, each with examples of every class."""
    random = np.random.default_rng(0)
    entries = []
    for number in range(parts):
        by_label = random.integers(1, 200, classes)
        records = int(by_label.sum())
        facts = {"part": f"pack-{number:05d}", "records": records, "bytes": 40_000 * records}
        tested = by_label // 10
        examples = {"train": (by_label - tested).tolist(), "test": tested.tolist()}
        entries.append({**facts, "examples": examples})
    _write_marker(folder, classes, entries)


def _write_marker(root: Path, classes: int, entries: list[dict[str, Any]]) -> None:
    """A marker of ``normalized`` and its table of these parts, of which the rest is made up."""
    folder = open_place(str(root)) / "normalized"
    hashes = dict.fromkeys(("pack_sha256", "list_sha256", "sha256", "rows_sha256"), "0" * 64)
    made_up = hashes | {"removed": 0, "rejects": {"count": 0, "by_reason": {}}}
    staging = (folder / "staging").make_folder()
    table = PARTS.publish(folder, staging, [made_up | {"input": each["records"]} | each for each in entries])
    names = [str(label) for label in range(classes)]
    marker = {"format": NORMALIZED_FORMAT, "classes": names, "removed": None, "parts": table}
    (root / "normalized/dataset.json").write_bytes(json_bytes(marker))


def write_images(folder: Path, images: int) -> None:
    """A first and a second night of so many images: rows of parts, and the slices of the first night."""
    later = [number for number in range(images + images // NEW) if number % GONE]
    for night, numbers in (("first", list(range(images))), ("second", later)):
        entries = []
        for part, start in enumerate(range(0, len(numbers), PART_ROWS)):
            own = numbers[start : start + PART_ROWS]
            name = f"part-{part:06d}"
            entries.append({"part": name, "records": len(own), "bytes": 40_000 * len(own), "examples": {}})
            path = folder / night / "normalized/parts" / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(parquet_tables.table_bytes(_rows(own)))
        _write_marker(folder / night, CLASSES_OF_IMAGES, entries)
    _write_slices(folder / "first")


def _rows(numbers: list[int]) -> pa.Table:
    columns = {
        "key": pa.array([f"class-{number % CLASSES_OF_IMAGES:03d}/image-{number:09d}.jpg" for number in numbers]),
        "sha256": pa.array([hashlib.sha256(number.to_bytes(8)).digest() for number in numbers], pa.binary(32)),
        "label": pa.array([number % CLASSES_OF_IMAGES for number in numbers], pa.int32()),
        "split": pa.nulls(len(numbers), pa.string()),
        "columns": pa.nulls(len(numbers), COLUMNS),
    }
    return pa.table(columns)


def _write_slices(root: Path) -> None:
    """The slices that a plan of the first night would give, but for their files: manifest and tables."""
    made = _plan_night(root, None)
    assert made.assignment is not None
    folder = root / "slices/first"
    folder.mkdir(parents=True)
    rows = [
        parquet_tables.read_table(open_place(str(root / "normalized/parts" / f"{part['part']}.parquet")))
        .select(["key", "sha256"])
        .append_column("split", pa.array([SPLIT_NAMES[number] for number in numbers.tolist()]))
        for part, numbers in zip(made.normalized.entries, made.assignment.splits, strict=True)
    ]
    tables = {}
    for name, table in {"examples": pa.concat_tables(rows), **made.history}.items():
        data = parquet_tables.table_bytes(table)
        (folder / f"{name}.parquet").write_bytes(data)
        tables[name] = {"file": f"{name}.parquet", "rows": len(table), "sha256": hashlib.sha256(data).hexdigest()}
    marker = {"format": SLICES_FORMAT, "config": vars(made.config), "lineage": FIRST, "tables": tables}
    (folder / "manifest.json").write_bytes(json_bytes(with_checksum(marker)))


def _plan_night(root: Path, parent: ParentSlices | None) -> Plan:
    normalized = normalized_stage(open_place(str(root))).read_generation()
    values = option_values(SHARD_OPTIONS)
    return make_plan(open_place(str(root)), {**values, "split": SPLIT}, normalized, parent)


def first_night(folder: Path) -> int:
    return len(_plan_night(folder / "first", None))


def second_night(folder: Path) -> int:
    own = slices_stage(open_place(str(folder / "second")), "own")
    return len(_plan_night(folder / "second", find_parent(own.folder, str(folder / "first/slices/first"), own)))


def write_manifest(folder: Path, slices: int) -> None:
    """The manifest of so many slices, as `shard` writes it."""
    counts = {"train": slices * 8 // 10, "validation": slices // 10, "test": slices // 10}
    splits: dict[str, Any] = {name: {"records": 0, "bytes": 0, "by_class": [0] * 1000, "slices": []} for name in counts}
    for split, name in slice_names(counts):
        facts = {"name": name, "records": 5_000, "blocks": 200, "bytes": 200_000_000, "sha256": "0" * 64}
        splits[split]["slices"].append(facts)
    statistics_ = {"mean": [0.0] * 3, "std": [1.0] * 3}
    image = {"height": 224, "width": 224, "channels": 3, "format": "JPEG"}
    content = {"format": SLICES_FORMAT, "classes": [str(label) for label in range(1000)], "image": image}
    path = folder / "slices/default/manifest.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(json_bytes(with_checksum({**content, "splits": splits, "statistics": statistics_})))


def write_results(folder: Path, examples: int) -> None:
    """What the tasks of a verification of so many examples publish: a line of slices and a line of parts in turns."""
    results, buckets = open_place(str(folder / "results")).make_folder(), -(-examples // BUCKET_EXAMPLES)
    for line, start in enumerate(range(0, examples, LINE_IMAGES)):
        numbers = list(range(start, min(start + LINE_IMAGES, examples)))
        rows = _rows(numbers).drop_columns(["split", "columns"])
        sums = pa.array([[1_000_000] * 3] * len(numbers), pa.list_(pa.int64()))
        part = pa.array([f"pack-{number // PART_ROWS:05d}" for number in numbers])
        in_slices, in_parts = LineResult(), LineResult()
        for name in ("width", "height", "crc32c"):
            rows = rows.append_column(name, pa.array([224] * len(numbers), pa.int32()))
        rows = rows.append_column("split", pa.repeat("train", len(numbers)))
        rows = rows.append_column("number", pa.array([number % SLICES_OF_EXAMPLES for number in numbers], pa.int64()))
        for name, column in (("source", part), ("part", part), ("sums", sums), ("squares", sums)):
            rows = rows.append_column(name, column)
        rows = rows.append_column("planned", rows["number"]).append_column("group", pa.nulls(len(rows), pa.string()))
        in_slices.keep("found", rows)
        in_slices.keep("contents", rows)
        in_parts.keep("good", rows)
        for number, result in enumerate((in_slices, in_parts)):
            result.publish(results, results, 2 * line + number, buckets)


def join(folder: Path) -> int:
    """All that the driver of a verification does with them."""
    results = open_place(str(folder / "results"))
    lines = len(list((folder / "results").glob("line-*")))
    read = {line: LineResult.read_published(results, line) for line in range(lines)}
    buckets = len(read[0].bounds["found"]) - 1
    reconciler = Reconciler([str(number) for number in range(SLICES_OF_EXAMPLES)])
    for bucket in range(buckets):
        found, good = (read_rows(results, read, name, bucket) for name in ("found", "good"))
        reconciler.check_keys(found, good, RETIRED_KEYS.empty_table())
    duplicates = sum(
        len(reconciler.check_contents(read_rows(results, read, "contents", bucket))) for bucket in range(buckets)
    )
    assert not reconciler.findings.counts
    return duplicates


def plan(folder: Path) -> int:
    normalized = normalized_stage(open_place(str(folder))).read_generation()
    values = option_values(SHARD_OPTIONS)
    made = make_plan(open_place(str(folder)), {**values, "split": "source"}, normalized, None)
    return sum(len(json.dumps(line)) for line in made)


def load(folder: Path) -> int:
    manifest = Manifest.from_json(read_manifest(slices_stage(open_place(str(folder)), "default")))
    return sum(len(slices) for slices in manifest.splits.values())


def parse(folder: Path) -> int:
    return len(json.loads((folder / "slices/default/manifest.json").read_bytes())["splits"])


WORK: dict[str, Callable[[Path], int]] = {
    "plan": plan,
    "first night": first_night,
    "second night": second_night,
    "load the manifest": load,
    "json.loads of the same bytes": parse,
    "join of verify": join,
}


def work_here(name: str, folder: str) -> Iterator[dict[str, float]]:
    """Do one piece of work in this process and yield its figures."""
    started, busy = time.perf_counter(), time.process_time()
    WORK[name](Path(folder))
    seconds = {"seconds": round(time.perf_counter() - started, 3), "cpu": round(time.process_time() - busy, 3)}
    yield {**seconds, "peak_mb": round(own_memory("VmHWM") / 1e6)}


@benchmark(__file__, __doc__, SHORT)
@click.option("--parts", type=COUNT, default=10_000, show_default=True, help="Number of parts.")
@click.option("--classes", type=COUNT, default=1_000, show_default=True, help="Number of classes of each part.")
@click.option("--images", type=COUNT, default=1_000_000, show_default=True, help="Number of images of a night.")
@click.option("--slices", type=COUNT, default=100_000, show_default=True, help="Number of slices of the manifest.")
@click.option("--times", type=COUNT, default=5, show_default=True, help="How often each is measured, in turns.")
def main(parts: int, classes: int, images: int, slices: int, times: int) -> list[Result]:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="ringslice-") as name:
        folder = Path(name)
        write_normalized(folder, parts, classes)
        write_manifest(folder, slices)
        write_images(folder, images)
        write_results(folder, images)
        files = [*folder.glob("normalized/tables/*"), *folder.rglob("slices/*/*")]
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
        click.echo(f"{describe_machine(VERSIONS)}; {parts} parts x {classes} classes, {slices} slices, bytes: {sizes}")
        ways = {work: lambda work=work: call("planning:work_here", work, name)[0] for work in WORK}
        samples: dict[str, list[dict[str, float]]] = take_turns(ways, times)
    for work, own in samples.items():
        click.echo(f"{work}: {own}")
        medians = {figure: statistics.median(each[figure] for each in own) for figure in own[0]}
        click.echo(f"{work}: medians {medians}")
    planned, first, second, loaded, parsed, joined = ([each["cpu"] for each in samples[work]] for work in WORK)
    results = [
        Result(f"planning of {parts:,} parts x {classes:,} classes", "CPU-s", statistics.median(planned)),
        compare(f"splits of {images:,} images, kept", "CPU-s", second, "the first night", first),
        compare(f"manifest of {slices:,} slices", "CPU-s to load", loaded, "json.loads", parsed),
        Result(f"verify's join of {images:,} examples", "CPU-s", statistics.median(joined)),
    ]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
