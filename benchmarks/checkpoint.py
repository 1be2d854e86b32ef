#!/usr/bin/env python3
"""What a checkpoint costs: seconds to write and to load it, and what is left of the trainer's images per second.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --root hdfs://127.0.0.1:8020/tmp/checkpoint
    python benchmarks/checkpoint.py --training data/flowers --model cnn

Weights are seeded noise of float32, in arrays of 4 MB. The ways, taken in turns within one process:

- ringslice: all that a checkpoint takes: SHA-256, an attempt's name, sync, rename, marker; loading checks every byte.
- safetensors: the library's `save` to bytes, a plain copy of them to a file, sync, and no SHA-256; its `load` back.
- synced: a plain copy of the same bytes by pyarrow's stream, and sync (HDFS has nothing to sync).
- copy: without the sync. For loading: the file's bytes, and nothing done with them.

"pause" is the longest time that a Python thread beside it, which wakes up every millisecond, was kept from running: so
long may the trainer's step be stopped by a checkpoint in the background.

With `--training` each round trains an epoch twice, with a checkpoint every `--checkpoint-steps` and without.
"""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load, save

from etl.storage.place import Place, open_place
from etl.values import parse_bytes
from train.checkpoints.safetensors_file import PIECE_BYTES, Arrays, pieces
from train.checkpoints.store import open_checkpoint, write

HERE = Path(__file__).resolve().parent
OURS, LIBRARY, SYNCED, COPY = "ringslice", "safetensors", "synced", "copy"
WITH, WITHOUT = "checkpoints", "none"
ARRAY_FLOATS = 1_000_000
WAKE_S = 0.001
GROUP = "model"
VERSIONS = ("safetensors", "numpy", "pyarrow")


@dataclass(frozen=True)
class Claim:
    """Ours takes at most ``most`` times what ``peer`` takes: seconds, or the longest pause."""

    work: str
    figure: str
    peer: str
    most: float


CLAIMS = (
    Claim("write", "seconds", SYNCED, 4.0),
    Claim("write", "pause", LIBRARY, 0.25),
    Claim("load", "seconds", COPY, 2.5),
)


@dataclass
class Samples:
    """The seconds, and the longest pause beside them in seconds, of each round."""

    seconds: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)


Found = dict[tuple[str, str], Samples]


class Ways:
    """The ways to measure on one root. Each leaves the file that the same way loads."""

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
        """Delete what the round before wrote, and have it gone from the disk's queue."""
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


class Beside(threading.Thread):
    """A thread that wakes up every millisecond, and knows the longest time that it could not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            began = time.perf_counter()
            time.sleep(WAKE_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began - WAKE_S)

    def end(self) -> float:
        self._stopping.set()
        self.join()
        return self.longest_s


def take_samples(ways: Ways, repeats: int) -> Found:
    """Take the ways in turns, another one first in each round; the first round is not counted."""
    found: Found = {(work, way): Samples() for work, own in ways.by_work.items() for way in own}
    for number in range(repeats + 1):
        ways.clear()
        for work, own in ways.by_work.items():
            names = list(own)
            first = number % len(names)
            for way in names[first:] + names[:first]:
                beside = Beside()
                beside.start()
                began = time.perf_counter()
                own[way]()
                seconds = time.perf_counter() - began
                pause = beside.end()
                if number:
                    found[work, way].seconds.append(seconds)
                    found[work, way].pause.append(pause)
    return found


def tell_samples(root: str, size_bytes: int, found: Found) -> None:
    """The table of medians, and for each claim the median of ratios round by round, for other work slows all."""
    table = Table(title=f"{root}: {size_bytes / 1e6:.0f} MB", title_justify="left")
    for column in ("", "way", "s", "least", "most", "MB/s", "pause ms"):
        table.add_column(column, justify="left" if column in ("", "way") else "right")
    for (work, way), samples in found.items():
        median = statistics.median(samples.seconds)
        figures = [f"{each:.3f}" for each in (median, min(samples.seconds), max(samples.seconds))]
        pause = f"{statistics.median(samples.pause) * 1000:.0f}"
        table.add_row(work, way, *figures, f"{size_bytes / median / 1e6:,.0f}", pause)
    Console().print(table)
    for claim in CLAIMS:
        ours, peer = (getattr(found[claim.work, way], claim.figure) for way in (OURS, claim.peer))
        ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
        verdict = "holds" if ratio <= claim.most else "DOES NOT HOLD"
        words = f"{claim.work}: {ratio:.2f} times the {claim.figure} of {claim.peer}"
        click.echo(f"{words}, at most {claim.most:g} claimed: {verdict}")


@contextmanager
def folder_on(root: str) -> Iterator[Place]:
    """A folder of this process's own on a root; deleted afterwards."""
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
    words = [sys.executable, HERE.parent / "train" / "main.py", "--data", data, "--model", model, "--epochs", "1"]
    path = {"PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [*words, "--run", run, "--json", *options], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | path
    )
    (open_place(data) / "runs" / run).delete()
    return float(json.loads(done.stdout.splitlines()[-1])["images_per_s"])


def compare_training(data: str, model: str, steps: int, repeats: int) -> None:
    """Train with checkpoints and without, in turns; tell the medians and the ratio of each round's two."""
    ways = {WITH: ("--checkpoint-steps", str(steps)), WITHOUT: ()}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(repeats):
        for way in sorted(ways, reverse=bool(number % 2)):
            rates[way].append(train_once(data, model, f"checkpoint-benchmark-{os.getpid()}", *ways[way]))
    table = Table(title=f"{data}: {model}, an epoch, a checkpoint every {steps} steps", title_justify="left")
    for column in ("way", "images/s", "least", "most"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way, own in rates.items():
        table.add_row(way, *(f"{each:,.0f}" for each in (statistics.median(own), min(own), max(own))))
    Console().print(table)
    ratio = statistics.median(a / b for a, b in zip(rates[WITH], rates[WITHOUT], strict=True))
    click.echo(f"training: {ratio:.3f} of the images per second without checkpoints")


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--root", "roots", multiple=True, help="Write there, a path or a URI; default: a temporary folder.")
@click.option("--size", default="100MB", show_default=True, help="Of the weights.")
@click.option("--repeats", default=7, show_default=True, help="Rounds of all ways, in turns.")
@click.option("--training", help="Train on this root instead, with checkpoints and without.")
@click.option("--model", default="cnn", show_default=True, help="What is trained.")
@click.option("--checkpoint-steps", default=50, show_default=True, help="How often the one leaves a checkpoint.")
def main(  # noqa: PLR0917
    roots: Sequence[str], size: str, repeats: int, training: str | None, model: str, checkpoint_steps: int
) -> None:
    """See the module."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    click.echo(f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores")
    if training:
        compare_training(training, model, checkpoint_steps, repeats)
        return
    arrays = make_arrays(parse_bytes(size))
    with tempfile.TemporaryDirectory() as temporary:
        for root in roots or [temporary]:
            with folder_on(root) as folder:
                tell_samples(
                    root, sum(each.nbytes for each in arrays.values()), take_samples(Ways(folder, arrays), repeats)
                )


if __name__ == "__main__":
    main()
