#!/usr/bin/env python3
"""The cost of `shard`, against a plain loop in memory and against copying the same bytes, all in one run.

    python benchmarks/shard.py --folder /dev/shm/shard
    python benchmarks/shard.py --folder /mnt/disk/shard --hdfs hdfs://127.0.0.1:8020/tmp/shard

Records are seeded noise of 116x116 pixels, 40 KB each. The ways, taken in turns:

- loop: one process reads all records into memory, shuffles them, and writes as many slices with the same work: each CRC
  checked, framing, SHA-256, an index, the files synced (nothing to do on tmpfs). It is limited by memory.
- local: `ringslice shard -r local`.
- hadoop: `ringslice shard -r hadoop`, if `--hdfs` names a folder of a single-node cluster on this machine
  ($HADOOP_CONF_DIR, as `python -m tests.hadoop up` prints it).
- copy: `hadoop fs -cp` of the parts.

Processor time is that of the command with all its children and, on Hadoop, that of all containers (`cutime` and
`cstime` of the NodeManager: application master, JVMs and Python), without that of the daemons themselves. Memory is the
resident set, sampled 20 times a second: of a task's Python, on Hadoop of its whole container.
"""

import hashlib
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from etl.formats.records import frame, index_bytes, read_records
from etl.hadoop.site_config import hadoop_command
from etl.normalized.parts import records_place
from etl.stages.layout import normalized_stage
from etl.storage.place import open_place
from etl.values import parse_bytes
from lib.command import COUNT, SIZE, benchmark
from lib.failure import Failure
from lib.hdfs import check_hdfs, delete_folder, hadoop_fs
from lib.noise import make_normalized
from lib.processes import child_words, describe_machine, environment, with_repository
from lib.results import Result, compare, print_results
from lib.usage import Usage, find_node_manager, measure

SIDE = 116
PIXEL_BYTES = SIDE * SIDE * 3
WORKERS = 8
NAME = "benchmark"
HADOOP = "hadoop"
WAYS = ("loop", "local", HADOOP, "copy")  # the last two on HDFS
LOOP = "shard:plain_loop"
KINDS = {"--mapper": "mapper", "--reducer": "reducer", LOOP: "loop", "-r": "driver"}
SHORT = {"sizes": ["80MB"], "repeats": 2}
VERSIONS = ("mrjob", "numpy", "pyarrow", "hdfs-native", "crc32c", "protobuf")


def plain_loop(root_path: str, target_path: str, slices: int) -> Iterator[str]:
    """Read all records, shuffle them, and write them as so many slices with an index each; yield their SHA-256."""
    root, target = Path(root_path), Path(target_path)
    normalized = open_place(str(root / "normalized"))
    examples = []
    for part in normalized_stage(open_place(root_path)).read_generation().entries:
        place = records_place(normalized, part["part"])
        with place.open_stream() as stream:
            examples += [record.data for record in read_records(stream, str(place))]
    random.Random(0).shuffle(examples)
    target.mkdir()
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
        yield digest.hexdigest()


class Ways:
    """The ways to measure for one dataset; each call deletes what it wrote."""

    def __init__(self, root: Path, hdfs: str | None) -> None:
        self._root = root
        self._hdfs = f"{hdfs}/{root.name}" if hdfs else None
        entries = normalized_stage(open_place(str(root))).read_generation().entries
        self.size_bytes = sum(entries.column("bytes"))
        if self._hdfs:
            delete_folder(self._hdfs)
            hadoop_fs("-mkdir", "-p", f"{self._hdfs}/raw")
            hadoop_fs("-put", root / "normalized", f"{self._hdfs}/normalized")
            hadoop_fs("-put", root / "raw" / "dataset.json", f"{self._hdfs}/raw/dataset.json")

    def names(self) -> list[str]:
        return list(WAYS if self._hdfs else WAYS[:2])

    def run(self, way: str) -> Usage:
        return getattr(self, f"_{way}")()

    def _loop(self) -> Usage:
        target = self._root / "loop"
        words = child_words(LOOP, str(self._root), str(target), WORKERS + 2)
        usage = measure(words, KINDS, str(self._root), with_repository(environment()))
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
        (open_place(root) / "slices" / NAME).delete()
        return usage

    def _copy(self) -> Usage:
        target = f"{self._hdfs}/copy"
        usage = measure(
            [hadoop_command(), "fs", "-cp", f"{self._hdfs}/normalized/parts", target], KINDS, self._hdfs or ""
        )
        delete_folder(target)
        return usage


Samples = dict[tuple[str, int], list[Usage]]


def take_samples(datasets: Sequence[Ways], wanted: Sequence[str], repeats: int) -> Samples:
    """Take the ways in turns; each sample is printed at once."""
    samples: Samples = {}
    if HADOOP in wanted and HADOOP in datasets[0].names():
        datasets[0].run(HADOOP)  # uploads the Python of the tasks to the cluster, once
    for _ in range(repeats):
        for ways in datasets:
            for way in [each for each in ways.names() if each in wanted]:
                usage = ways.run(way)
                samples.setdefault((way, ways.size_bytes), []).append(usage)
                print_sample(way, ways.size_bytes / 1e6, usage)
    return samples


def print_sample(way: str, megabytes: float, usage: Usage) -> None:
    peaks = ", ".join(f"{kind} {size / 1e6:.0f} MB" for kind, size in sorted(usage.peaks.items()))
    click.echo(
        f"{way:7} {megabytes:6.0f} MB  wall {usage.wall_s:6.1f} s  CPU {usage.processor_s:6.1f} s"
        f" (own {usage.own_s:.1f}, containers {usage.containers_s:.1f})  {peaks}"
    )


def print_medians(samples: Samples) -> None:
    """Print the table of medians, and the growth between the smallest and the largest size."""
    click.echo(f"\n{'way':7} {'MB':>6} {'wall s':>7} {'MB/s':>6} {'CPU s':>7} {'CPU-s/MB':>9} {'of the loop':>11}")
    walls = {key: statistics.median(usage.wall_s for usage in usages) for key, usages in samples.items()}
    cpus = {key: statistics.median(usage.processor_s for usage in usages) for key, usages in samples.items()}
    for (way, size), wall in walls.items():
        megabytes = size / 1e6
        ratio = f"{walls['loop', size] / wall:.2f}" if way in ("loop", "local") and ("loop", size) in walls else "-"
        speeds = f"{megabytes:6.0f} {wall:7.1f} {megabytes / wall:6.0f}"
        click.echo(f"{way:7} {speeds} {cpus[way, size]:7.1f} {cpus[way, size] / megabytes:9.4f} {ratio:>11}")
    sizes = sorted({size for _, size in samples})
    if len(sizes) > 1:
        print_growth(samples, cpus, (sizes[0], sizes[-1]))


def print_growth(samples: Samples, cpus: dict[tuple[str, int], float], sizes: tuple[int, int]) -> None:
    """Print what each way costs for every further MB between two sizes."""
    small, large = sizes
    click.echo(f"\nfrom {small / 1e6:.0f} to {large / 1e6:.0f} MB ({large / small:.1f} times the data):")
    for way in dict.fromkeys(way for way, _ in samples):
        marginal = (cpus[way, large] - cpus[way, small]) / (large - small) * 1e6
        click.echo(f"{way:7} {marginal:.4f} CPU-s for a further MB")


def judge(samples: Samples) -> list[Result]:
    """The speed of shard by either runner, beside the loop and the copy."""
    results = []
    for size in sorted({size for _, size in samples}):
        own = {way: usages for (way, each), usages in samples.items() if each == size}
        rates = {way: [size / 1e6 / usage.wall_s for usage in usages] for way, usages in own.items()}
        for ours, peer in (("local", "loop"), (HADOOP, "copy")):
            if {ours, peer} <= rates.keys():
                title = f"shard of {size / 1e6:,.0f} MB, {ours}"
                results.append(compare(title, "MB/s", rates[ours], peer, rates[peer]))
    return results


def filesystem_of(folder: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", folder], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def images_of(sizes: Iterable[str]) -> list[int]:
    return [max(1, round(parse_bytes(size) / PIXEL_BYTES)) for size in sizes]


@benchmark(__file__, __doc__, SHORT)
@click.option("--folder", type=Path, help="Keep the datasets there; default: a temporary folder.")
@click.option(
    "--size", "sizes", type=SIZE, multiple=True, default=("0.3GB", "1.6GB"), show_default=True, help="May be repeated."
)
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Samples of each way and size.")
@click.option("--way", "wanted", multiple=True, type=click.Choice(WAYS), help="Only these ways.")
@click.option("--hdfs", help="A folder on the cluster, as a URI.")
def main(
    folder: Path | None, sizes: Sequence[str], repeats: int, wanted: Sequence[str], hdfs: str | None
) -> list[Result]:
    """See the module."""
    if hdfs:
        check_hdfs("--hdfs", hdfs)
        if find_node_manager() is None:
            reason = "no NodeManager of $HADOOP_CONF_DIR runs on this machine"
            raise Failure("--hdfs", hdfs, reason, "Start them: make hadoop-up")
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):  # not set in a user's shell
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as temporary:
        here = (folder or Path(temporary)).absolute()
        here.mkdir(parents=True, exist_ok=True)
        click.echo(f"{describe_machine(VERSIONS)}; local files on {filesystem_of(here)}")
        datasets = [Ways(make_normalized(here, images, SIDE), hdfs) for images in images_of(sizes)]
        samples = take_samples(datasets, [way for way in WAYS if way in (wanted or WAYS)], repeats)
    print_medians(samples)
    results = judge(samples)
    print_results(results)
    return results


if __name__ == "__main__":
    main()
