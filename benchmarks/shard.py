#!/usr/bin/env python3
"""What `shard` costs, against a plain loop in memory and against copying the same bytes, all in one run.

    python benchmarks/shard.py --folder /dev/shm/shard
    python benchmarks/shard.py --folder /mnt/disk/shard --hdfs hdfs://127.0.0.1:8020/tmp/shard

Records are seeded noise of 116x116 pixels, 40 KB each. The ways, taken in turns:

- loop: one process reads all records into memory, shuffles them, and writes as many slices with the same work: each CRC
  checked, framing, SHA-256, an index, the files synced (nothing to do on tmpfs). It cannot grow beyond memory.
- local: `ringslice shard -r local`.
- hadoop: `ringslice shard -r hadoop`, where `--hdfs` names a folder of a single-node cluster on this machine
  ($HADOOP_CONF_DIR, as `python -m tests.hadoop up` prints it).
- copy: `hadoop fs -cp` of the parts.

Processor time is that of the command with all its children and, on Hadoop, that of all containers (the NodeManager's
`cutime` and `cstime`: application master, JVMs and Python); that of the DataNode and the NodeManager themselves stands
beside it and is in no other figure. Memory is the resident set, sampled 20 times a second: of a task's Python, on
Hadoop of its whole container.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from usage import Usage, find_daemons, measure

from etl.formats.records import frame, index_bytes, read_records
from etl.normalized.parts import records_place
from etl.storage.place import open_place
from etl.values import parse_bytes

SIDE = 116
PIXEL_BYTES = SIDE * SIDE * 3
CLASSES = 10
CHUNK_IMAGES = 1000
WORKERS = 8
NAME = "benchmark"
HADOOP = "hadoop"
WAYS = ("loop", "local", HADOOP, "copy")  # the last two on HDFS
KINDS = {"--mapper": "mapper", "--reducer": "reducer", "--loop": "loop", "-r": "driver"}
VERSIONS = ("mrjob", "numpy", "pyarrow", "hdfs-native", "crc32c", "protobuf")


def make_dataset(folder: Path, images: int) -> Path:
    """A root with so many normalised images of noise; the same number, the same bytes."""
    root, source = folder / f"root-{images}", folder / f"source-{images}"
    if (root / "normalized" / "dataset.json").exists():
        return root
    source.mkdir(parents=True)
    generator = np.random.default_rng(0)
    with (source / "noise-images-idx4-ubyte").open("wb") as file:
        file.write(bytes([0, 0, 8, 4]) + struct.pack(">4I", images, SIDE, SIDE, 3))
        for first in range(0, images, CHUNK_IMAGES):
            file.write(generator.bytes(min(CHUNK_IMAGES, images - first) * PIXEL_BYTES))
    labels = (np.arange(images) % CLASSES).astype(np.uint8)
    (source / "noise-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", images) + labels.tobytes())
    for words in (["ingest", source, root], ["normalize", root, "--format", "raw"]):
        subprocess.run(["ringslice", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(source)
    return root


def plain_loop(root: Path, target: Path, slices: int) -> None:
    """Read all records into memory, shuffle them, and write them as so many slices with an index each."""
    normalized = open_place(str(root / "normalized"))
    examples = []
    for part in json.loads((root / "normalized" / "dataset.json").read_bytes())["parts"]:
        place = records_place(normalized, part["part"])
        with place.open_stream() as stream:
            examples += [record.data for record in read_records(stream, str(place))]
    random.Random(0).shuffle(examples)
    target.mkdir()
    facts = []
    for number in range(slices):
        digest, offsets, sizes, offset = hashlib.sha256(), [], [], 0
        with (target / f"{number:05d}.tfrecord").open("wb", buffering=1 << 20) as file:
            for data in examples[number::slices]:
                record, _ = frame(data)
                file.write(record)
                digest.update(record)
                offsets.append(offset)
                sizes.append(len(record))
                offset += len(record)
            file.flush()
            os.fsync(file.fileno())
        (target / f"{number:05d}.idx").write_bytes(index_bytes(offsets, sizes))
        facts.append(digest.hexdigest())
    (target / "manifest.json").write_text(json.dumps(facts))


class Ways:
    """The ways to measure for one dataset: each call leaves nothing behind."""

    def __init__(self, root: Path, hdfs: str | None) -> None:
        self._root = root
        self._hdfs = f"{hdfs}/{root.name}" if hdfs else None
        manifest = json.loads((root / "normalized" / "dataset.json").read_bytes())
        self.size_bytes = sum(part["bytes"] for part in manifest["parts"])
        self.digests: dict[str, list[str]] = {}
        if self._hdfs:
            _hadoop("-rm", "-r", "-f", "-skipTrash", self._hdfs)
            _hadoop("-mkdir", "-p", f"{self._hdfs}/raw")
            _hadoop("-put", root / "normalized", f"{self._hdfs}/normalized")
            _hadoop("-put", root / "raw" / "dataset.json", f"{self._hdfs}/raw/dataset.json")

    def names(self) -> list[str]:
        return list(WAYS if self._hdfs else WAYS[:2])

    def run(self, way: str) -> Usage:
        return getattr(self, f"_{way}")()

    def _loop(self) -> Usage:
        target = self._root / "loop"
        script = [sys.executable, __file__, "--loop", str(self._root), "--folder", str(target)]
        usage = measure(script, KINDS, str(self._root))
        shutil.rmtree(target)
        return usage

    def _local(self) -> Usage:
        return self._shard(str(self._root), "local")

    def _hadoop(self) -> Usage:
        assert self._hdfs is not None
        return self._shard(self._hdfs, HADOOP)

    def _shard(self, root: str, runner: str) -> Usage:
        words = ["ringslice", "shard", root, "-r", runner, "--name", NAME, "--workers", WORKERS]
        usage = measure(words, KINDS, root)
        slices = open_place(root) / "slices" / NAME
        self.digests[runner] = list(_digests((slices / "manifest.json").read_json()))
        slices.delete()
        return usage

    def _copy(self) -> Usage:
        target = f"{self._hdfs}/copy"
        usage = measure(["hadoop", "fs", "-cp", f"{self._hdfs}/normalized/parts", target], KINDS, self._hdfs or "")
        _hadoop("-rm", "-r", "-skipTrash", target)
        return usage


def _digests(value: Any) -> Iterator[str]:
    """Every SHA-256 of a slice in a manifest."""
    for slices in (split["slices"] for split in value["splits"].values()):
        yield from (each["sha256"] for each in slices)


def _hadoop(*words: object) -> None:
    subprocess.run(["hadoop", "fs", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


Samples = dict[tuple[str, int], list[Usage]]


def take_samples(datasets: Sequence[Ways], wanted: Sequence[str], repeats: int) -> Samples:
    """Take the ways in turns; each sample is told when it is there."""
    samples: Samples = {}
    if HADOOP in wanted and HADOOP in datasets[0].names():
        datasets[0].run(HADOOP)  # sends the tasks' Python to the cluster, and has it unpacked, once
    for _ in range(repeats):
        for ways in datasets:
            for way in [each for each in ways.names() if each in wanted]:
                usage = ways.run(way)
                samples.setdefault((way, ways.size_bytes), []).append(usage)
                tell_sample(way, ways.size_bytes / 1e6, usage)
    for ways in datasets:
        if len(ways.digests) > 1:
            assert ways.digests["local"] == ways.digests[HADOOP], "the runners' slices differ"
            click.echo(f"{ways.size_bytes / 1e6:.0f} MB: the same SHA-256 of every slice by both runners")
    return samples


def tell_sample(way: str, megabytes: float, usage: Usage) -> None:
    peaks = ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in sorted(usage.peaks.items()))
    click.echo(
        f"{way:7} {megabytes:6.0f} MB  wall {usage.wall_s:6.1f} s  CPU {usage.processor_s:6.1f} s"
        f" (own {usage.own_s:.1f}, containers {usage.containers_s:.1f}; daemons {usage.daemons_s:.1f})  {peaks}"
    )


def tell_medians(samples: Samples) -> None:
    """The table, and what the claims are about."""
    click.echo(f"\n{'way':7} {'MB':>6} {'wall s':>7} {'MB/s':>6} {'CPU s':>7} {'CPU-s/MB':>9} {'of the loop':>11}")
    walls = {key: statistics.median(usage.wall_s for usage in usages) for key, usages in samples.items()}
    cpus = {key: statistics.median(usage.processor_s for usage in usages) for key, usages in samples.items()}
    for (way, size), wall in walls.items():
        megabytes = size / 1e6
        ratio = f"{walls['loop', size] / wall:.2f}" if way in ("loop", "local") else "-"
        speeds = f"{megabytes:6.0f} {wall:7.1f} {megabytes / wall:6.0f}"
        click.echo(f"{way:7} {speeds} {cpus[way, size]:7.1f} {cpus[way, size] / megabytes:9.4f} {ratio:>11}")
    sizes = sorted({size for _, size in samples})
    if len(sizes) > 1:
        tell_growth(samples, cpus, (sizes[0], sizes[-1]))


def tell_growth(samples: Samples, cpus: dict[tuple[str, int], float], sizes: tuple[int, int]) -> None:
    """What each way costs for every further MB between two sizes, and what memory it takes at both."""
    small, large = sizes
    click.echo(f"\nfrom {small / 1e6:.0f} to {large / 1e6:.0f} MB ({large / small:.1f} times the data):")
    for way in dict.fromkeys(way for way, _ in samples):
        marginal = (cpus[way, large] - cpus[way, small]) / (large - small) * 1e6
        peaks = [
            f"{kind} {' -> '.join(f'{peak(samples[way, size], kind):.0f}' for size in sizes)}"
            for kind in sorted({kind for usage in samples[way, large] for kind in usage.peaks})
        ]
        click.echo(
            f"{way:7} {marginal:.4f} CPU-s/MB marginal, {cpus[way, large] / cpus[way, small]:.1f} times the CPU time;"
            f" peak MB: {', '.join(peaks) or '-'}"
        )


def peak(usages: Sequence[Usage], kind: str) -> float:
    """The largest of one kind of process, in MB."""
    return max(usage.peaks.get(kind, 0) for usage in usages) / 1e6


def tell_versions(folder: Path) -> None:
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], check=True, capture_output=True, text=True).stdout.strip()
    click.echo(f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores; local files on {kind}")


def images_of(sizes: Iterable[str]) -> list[int]:
    return [round(parse_bytes(size) / PIXEL_BYTES) for size in sizes]


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--folder", type=Path, help="Where the datasets go, and stay; default: a temporary one.")
@click.option("--size", "sizes", multiple=True, default=("0.3GB", "1.6GB"), show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Samples of each way and size.")
@click.option("--way", "wanted", multiple=True, type=click.Choice(WAYS), help="Only these ways.")
@click.option("--hdfs", help="A folder on the cluster, as a URI.")
@click.option("--loop", "loop_root", type=Path, hidden=True)
def main(  # noqa: PLR0917
    folder: Path | None, sizes: Sequence[str], repeats: int, wanted: Sequence[str], hdfs: str | None, loop_root: Path
) -> None:
    if loop_root:
        assert folder is not None
        plain_loop(loop_root, folder, slices=WORKERS + 2)
        return
    if hdfs and len(find_daemons()) < 2:
        raise click.UsageError("--hdfs: no DataNode and NodeManager of $HADOOP_CONF_DIR run on this machine")
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):  # as a user's shell has it
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as temporary:
        here = (folder or Path(temporary)).absolute()
        here.mkdir(parents=True, exist_ok=True)
        tell_versions(here)
        datasets = [Ways(make_dataset(here, images), hdfs) for images in images_of(sizes)]
        samples = take_samples(datasets, [way for way in WAYS if way in (wanted or WAYS)], repeats)
    tell_medians(samples)


if __name__ == "__main__":
    main()
