#!/usr/bin/env python3
"""The cost of a checkpoint: seconds to write and to load it, and its effect on the trainer's images per second.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --root hdfs://127.0.0.1:8020/tmp/checkpoint
    python benchmarks/checkpoint.py --training data/flowers --model cnn

Weights are seeded noise of float32, in arrays of 4 MB. The ways, taken in turns within one process:

- ringslice: a whole checkpoint: SHA-256, a name for the attempt, sync, rename, marker; loading checks every byte.
- safetensors: the library's `save` to bytes, a plain copy of them to a file, sync, without SHA-256; its `load`.
- synced: a plain copy of the same bytes by pyarrow's stream, and sync (on HDFS there is nothing to sync).
- copy: without the sync. For loading: the bytes of the file, and nothing else.

"pause" is the longest time in which another Python thread, which wakes up every millisecond, could not run: a
checkpoint in the background can delay the trainer's step by so much.

With `--training` each round trains an epoch twice, with a checkpoint every `--checkpoint-steps` and without.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
import numpy as np
from safetensors.numpy import load, save

from etl.storage.place import Place, open_place
from etl.values import parse_bytes
from lib.command import COUNT, SIZE, benchmark
from lib.hdfs import check_hdfs
from lib.memory import Background
from lib.processes import REPOSITORY, command_failure, describe_machine, environment, with_repository
from lib.results import Result, compare, print_results, print_samples
from lib.rounds import rotated, take_turns
from train.checkpoints.safetensors_file import PIECE_BYTES, Arrays, pieces
from train.checkpoints.store import open_checkpoint, write

OURS, LIBRARY, SYNCED, COPY = "ringslice", "safetensors", "synced", "copy"
WITH, WITHOUT = "checkpoints", "none"
ARRAY_FLOATS = 1_000_000
WAKE_S = 0.001
GROUP = "model"
VERSIONS = ("safetensors", "numpy", "pyarrow")
SHORT = {"size": "40MB", "repeats": 3}
COMPARED = (("write", "seconds", SYNCED), ("write", "pause", LIBRARY), ("load", "seconds", COPY))  # work, figure, peer


@dataclass
class Samples:
    """The seconds, and the longest pause in seconds, of each round."""

    seconds: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)


Found = dict[tuple[str, str], Samples]


class Ways:
    """The ways to measure on one root. Each writes the file that the same way loads."""

    def __init__(self, folder: Place, arrays: Arrays) -> None:
        self.folder, self._arrays = folder.make_folder(), arrays
        self._attempts = (folder / "attempts").make_folder()
        self._data = b"".join(pieces(arrays))
        self.by_work: dict[str, dict[str, Callable[[], object]]] = {
            "write": {
                OURS: lambda: write(folder, self._attempts, 1, {GROUP: arrays}, {}),
                LIBRARY: lambda: self._copy(LIBRARY, save(arrays), synced=True),
                SYNCED: lambda: self._copy(SYNCED, self._data, synced=True),
                COPY: lambda: self._copy(COPY, self._data, synced=False),
            },
            "load": {
                OURS: lambda: open_checkpoint(folder, 1).read(GROUP),
                LIBRARY: lambda: load((folder / LIBRARY).read_bytes()),
                COPY: lambda: (folder / COPY).read_bytes(),
            },
        }

    def clear(self) -> None:
        """Delete what the previous round wrote, and wait for the disk."""
        for info in self.folder.children():
            if info.base_name != self._attempts.name:
                (self.folder / info.base_name).delete()
        os.sync()

    def _copy(self, name: str, data: bytes, synced: bool) -> None:
        path = (self.folder / name).path
        with self.folder.filesystem.open_new(path) as stream:
            for begin in range(0, len(data), PIECE_BYTES):
                stream.write(data[begin : begin + PIECE_BYTES])
        if synced:
            self.folder.filesystem.sync(path)


class LongestPause(Background):
    """A thread that wakes up every millisecond; ``longest_s`` is the longest time in which it could not."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.perf_counter()
            time.sleep(WAKE_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - WAKE_S)


def take_samples(ways: Ways, repeats: int) -> Found:
    """Take the ways in turns; the first round is not counted."""
    found: Found = {(work, way): Samples() for work, own in ways.by_work.items() for way in own}
    for number in range(repeats + 1):
        ways.clear()
        for work, own in ways.by_work.items():
            for way in rotated(own, number):
                with LongestPause() as pause:
                    began = time.perf_counter()
                    own[way]()
                    seconds = time.perf_counter() - began
                if number:
                    found[work, way].seconds.append(seconds)
                    found[work, way].pause.append(pause.longest_s)
    return found


def judge(root: str, size_bytes: int, found: Found) -> list[Result]:
    """Print the table of medians; return a result for each of `COMPARED`."""
    by_way = {f"{work} {way}": samples for (work, way), samples in found.items()}
    more = {
        "MB/s": {way: f"{size_bytes / statistics.median(each.seconds) / 1e6:,.0f}" for way, each in by_way.items()},
        "pause ms": {way: f"{statistics.median(each.pause) * 1000:.0f}" for way, each in by_way.items()},
    }
    seconds = {way: each.seconds for way, each in by_way.items()}
    print_samples(f"{root}: {size_bytes / 1e6:.0f} MB", "s", seconds, more)
    results = []
    for work, figure, peer in COMPARED:
        ours, theirs = (getattr(found[work, way], figure) for way in (OURS, peer))
        results.append(compare(f"checkpoint, {work}: {figure}", "s", ours, peer, theirs))
    return results


@contextmanager
def make_folder_on(root: str) -> Iterator[Place]:
    """A new folder on a root; deleted afterwards."""
    folder = open_place(root) / f"checkpoint-benchmark-{os.getpid()}"
    try:
        yield folder
    finally:
        folder.delete()


def make_arrays(size_bytes: int) -> Arrays:
    """So many bytes of noise as float32, by name."""
    generator = np.random.default_rng(0)
    number = max(1, size_bytes // (4 * ARRAY_FLOATS))
    return {f"{each:04d}-kernel": generator.random(ARRAY_FLOATS, np.float32) for each in range(number)}


def train_once(data: str, model: str, run: str, *options: str) -> float:
    """Train an epoch in a process of its own; its images per second."""
    words = [sys.executable, str(REPOSITORY / "train" / "main.py"), "--data", data, "--model", model, "--epochs", "1"]
    words += ["--run", run, "--json", *options]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=with_repository(environment()))
    if done.returncode:
        raise command_failure(words, done.returncode)
    (open_place(data) / "runs" / run).delete()
    return float(json.loads(done.stdout.splitlines()[-1])["images_per_s"])


def compare_training(data: str, model: str, steps: int, repeats: int) -> list[Result]:
    """Train with checkpoints and without, in turns; print the medians."""
    run = f"checkpoint-benchmark-{os.getpid()}"
    ways = {
        WITH: lambda: train_once(data, model, run, "--checkpoint-steps", str(steps)),
        WITHOUT: lambda: train_once(data, model, run),
    }
    rates = take_turns(ways, repeats)
    print_samples(f"{data}: {model}, an epoch, a checkpoint every {steps} steps", "images/s", rates)
    title = f"training with a checkpoint every {steps} steps"
    return [compare(title, "images/s", rates[WITH], "without", rates[WITHOUT])]


def compare_ways(roots: Sequence[str], arrays: Arrays, repeats: int) -> list[Result]:
    """Write and load in all ways on each root."""
    size_bytes = sum(each.nbytes for each in arrays.values())
    results = []
    for root in roots:
        with make_folder_on(root) as folder:
            results += judge(root, size_bytes, take_samples(Ways(folder, arrays), repeats))
    return results


@benchmark(__file__, __doc__, SHORT)
@click.option("--root", "roots", multiple=True, help="Write there, a path or a URI; default: a temporary folder.")
@click.option("--size", type=SIZE, default="100MB", show_default=True, help="Size of the weights.")
@click.option("--repeats", type=COUNT, default=7, show_default=True, help="Rounds of all ways, in turns.")
@click.option("--training", help="Train on this root instead, with checkpoints and without.")
@click.option("--model", default="cnn", show_default=True, help="The model that is trained.")
@click.option("--checkpoint-steps", type=COUNT, default=50, show_default=True, help="Steps between two checkpoints.")
def main(  # noqa: PLR0917
    roots: Sequence[str], size: str, repeats: int, training: str | None, model: str, checkpoint_steps: int
) -> list[Result]:
    """See the module."""
    for root in roots:
        if "://" in root:
            check_hdfs("--root", root, needs_command=False)
    click.echo(describe_machine(VERSIONS))
    if training:
        results = compare_training(training, model, checkpoint_steps, repeats)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            results = compare_ways(roots or [temporary], make_arrays(parse_bytes(size)), repeats)
    print_results(results)
    return results


if __name__ == "__main__":
    main()
