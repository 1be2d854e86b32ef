#!/usr/bin/env python3
"""Whether the reader keeps within its memory: the peak of each of many epochs, at several numbers of slices at once.

    python benchmarks/reader_memory.py
    python benchmarks/reader_memory.py --hdfs hdfs://127.0.0.1:8020/tmp/memory

Each number of slices has a process of its own that reads epoch after epoch into `tf.data` batches of serialized
examples. What it takes beyond what it took once all was imported, connected, and a few empty batches were made is to be
within 10 percent of the budget, and no more in the last epochs than in the first. The kernel keeps each epoch's peak
(VmHWM, set back in between), so none is missed; that the process starts no other one is checked.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import reader_data

from etl.storage.place import open_place
from etl.values import parse_bytes, positives

SLICES = 40
BATCH = 256
TOLERANCE = 1.1
COMPARED = 10  # epochs at either end, for growth


def read_epochs(folder: str, at_once: int, budget_bytes: int, epochs: int) -> None:
    """In a process of its own: print the megabytes at the beginning, then the peak of each epoch."""
    import tensorflow as tf
    from our_reader import OurReader

    from train.reader.config import Reading

    open_place(folder).info()  # connects
    for _ in tf.data.Dataset.from_tensors(tf.fill((BATCH,), "")).repeat(8).prefetch(2):
        pass
    print(_status_mb("VmRSS"), flush=True)
    reader = OurReader(folder, BATCH, Reading(lanes=at_once, budget_bytes=budget_bytes))
    for epoch in range(epochs):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): sets VmHWM back
        reader.serialized([epoch])
        children = "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
        assert not children, f"processes that are not measured: {children}"
        print(_status_mb("VmHWM"), flush=True)


def _status_mb(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def measure(folder: str, at_once: int, budget_bytes: int, epochs: int) -> None:
    """Tell the peaks of one number of slices at once, and whether they are within the budget."""
    peaks = list(_peaks(folder, at_once, budget_bytes, epochs))
    first, last = max(peaks[:COMPARED]), max(peaks[-COMPARED:])
    word = "held" if max(peaks) <= budget_bytes / 1e6 * TOLERANCE else "exceeded"
    click.echo(
        f"{at_once:3} at once: peak {max(peaks):.0f} MB of {budget_bytes / 1e6:.0f}, {word};"
        f" first epochs {first:.0f}, last {last:.0f}; each: {' '.join(f'{peak:.0f}' for peak in peaks)}"
    )


def _peaks(folder: str, at_once: int, budget_bytes: int, epochs: int) -> Iterator[float]:
    """Megabytes beyond those at the beginning, by epoch."""
    words = [sys.executable, __file__, json.dumps([folder, at_once, budget_bytes, epochs])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        base, *peaks = (float(line) for line in child.stdout)
    if child.returncode:
        raise SystemExit(f"reading {at_once} slices at once failed")
    return (peak - base for peak in peaks)


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--folder", type=Path, help="Where the slices go, and stay; default: a temporary one.")
@click.option("--hdfs", help="A folder on HDFS to read them from, as a URI.")
@click.option("--size", default="640MB", show_default=True, help=f"Size of the {SLICES} slices.")
@click.option("--budget", default="256MB", show_default=True, help="The reader's memory.")
@click.option("--slices-at-once", "at_once", default="1,8,32", show_default=True)
@click.option("--epochs", default=100, show_default=True)
def main(  # noqa: PLR0917
    folder: Path | None, hdfs: str | None, size: str, budget: str, at_once: str, epochs: int
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as temporary:
        root = (folder or Path(temporary)).absolute() / f"memory-{size}"
        reader_data.make_photographs(root, parse_bytes(size), SLICES)
        if hdfs:
            reader_data.put(root, f"{hdfs}/{root.name}")
        slices = f"{f'{hdfs}/{root.name}' if hdfs else root}/slices/{reader_data.NAME}"
        for number in positives(at_once):
            measure(slices, number, parse_bytes(budget), epochs)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        read_epochs(*json.loads(sys.argv[1]))
    else:
        main()
