#!/usr/bin/env python3
"""Peak memory of a mapper and of a reducer, and processor time, for a set of images once and ten times.

    python benchmarks/task_memory.py /usr/share/datasets/fashion-mnist
    python benchmarks/task_memory.py /usr/share/datasets/fashion-mnist --root hdfs://namenode:8020/tmp/memory -r hadoop

The claim: memory does not depend on the size of the data. Memory is the resident set of a task with all its processes
(in a YARN container including the JVM), sampled 20 times a second; processor time is that of the stage's command with
all its children (with -r hadoop without its containers). SOURCE is a folder with IDX files; without it,
images of noise are made.
"""

import gzip
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from etl.values import parse_counts
from lib.command import COUNT, NUMBERS, benchmark
from lib.failure import Failure
from lib.hdfs import check_hdfs
from lib.noise import write_noise
from lib.processes import run_quietly
from lib.results import Result, make_table, print_results, print_table
from lib.usage import Usage, measure

KINDS = {"--mapper": "mapper", "--reducer": "reducer"}
SIDE = 28
SHORT = {"noise": 10_000, "times": "1,4"}

Found = Mapping[tuple[str, int], Usage]


def multiply(source: Path, times: int, target: Path) -> Path:
    """Write IDX files that contain the images and labels of ``source`` so many times, each with a key of its own."""
    target.mkdir()
    for path in sorted(source.glob("*-ubyte*")):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        dimensions = data[3]
        header = 4 + 4 * dimensions
        shape = np.frombuffer(data[4:header], dtype=">u4").copy()
        shape[0] *= times
        (target / path.name.removesuffix(".gz")).write_bytes(data[:4] + shape.tobytes() + data[header:] * times)
    return target


def take_samples(source: Path, root: str, folder: Path, times: Sequence[int], runner: str) -> Found:
    """The usage of each stage for the images of ``source`` so many times."""
    found = {}
    for number in times:
        images = multiply(source, number, folder / f"source-{number}")
        target = f"{root}/root-{number}"
        run_quietly("ringslice", "ingest", images, target)
        for stage in ("normalize", "shard"):
            found[stage, number] = measure(["ringslice", stage, target, "-r", runner], KINDS, target)
    return found


def print_usage(found: Found, times: Sequence[int]) -> None:
    table = make_table("stage", ("times", "mapper MB", "reducer MB", "CPU s", "CPU ratio"))
    for (stage, number), usage in found.items():
        ratio = usage.own_s / found[stage, times[0]].own_s
        peaks = [f"{usage.peaks[kind] / 1e6:.0f}" if kind in usage.peaks else "-" for kind in KINDS.values()]
        table.add_row(stage, str(number), *peaks, f"{usage.own_s:.1f}", f"{ratio:.2f}")
    print_table(table)


def judge(found: Found, times: Sequence[int]) -> list[Result]:
    """The peak of each kind of task for the most data, beside that for the least."""
    results = []
    for stage, kind in (("normalize", "mapper"), ("shard", "mapper"), ("shard", "reducer")):
        least, most = (found[stage, number].peaks.get(kind) for number in (times[0], times[-1]))
        if least and most:
            title = f"task memory, images x{times[-1]}: {kind} of {stage}"
            results.append(Result(title, "MB", most / 1e6, f"images x{times[0]}", least / 1e6, most / least))
    return results


@benchmark(__file__, __doc__, SHORT)
@click.argument("source", type=Path, required=False)
@click.option(
    "--noise", type=COUNT, default=70_000, show_default=True, help="Number of images of noise, without SOURCE."
)
@click.option("--root", help="Keep the datasets there, a path or a URI; default: a temporary folder.")
@click.option("--times", type=NUMBERS, default="1,10", show_default=True, help="How often the images.")
@click.option("-r", "--runner", default="local", show_default=True, help="The runner of the stages.")
def main(source: Path | None, noise: int, root: str | None, times: str, runner: str) -> list[Result]:
    """See the module."""
    if source and not any(source.glob("*-ubyte*")):
        fix = "Give a folder with IDX files, or none to use noise"
        raise Failure("SOURCE", source, "it has no *-ubyte files", fix)
    if root and "://" in root:
        check_hdfs("--root", root, needs_command=False)
    numbers = parse_counts(times)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = source or write_noise(folder / "noise", noise, SIDE, channels=1)
        found = take_samples(images, root or temporary, folder, numbers, runner)
    print_usage(found, numbers)
    results = judge(found, numbers)
    print_results(results)
    return results


if __name__ == "__main__":
    main()
