#!/usr/bin/env python3
"""Peak memory of the reader in each of many epochs, by number of slices read at once.

    python benchmarks/reader_memory.py
    python benchmarks/reader_memory.py --hdfs hdfs://127.0.0.1:8020/tmp/memory

Each number of slices has a process of its own that reads epoch after epoch into `tf.data` batches of serialized
examples. Its memory is counted beyond what it takes after imports, connecting, and a few empty batches. The kernel
reports the peak of each epoch (VmHWM, reset in between), so that no peak is missed; that the process starts no other
process is checked.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from etl.storage.place import open_place
from etl.values import parse_bytes, parse_counts
from lib import reader_data
from lib.command import COUNT, NUMBERS, SIZE, benchmark
from lib.hdfs import check_hdfs
from lib.memory import children_of, own_memory
from lib.processes import call
from lib.results import Result, print_results

SLICES = 40
BATCH = 256
COMPARED = 10  # epochs at either end, for growth
SHORT = {"size": "320MB", "at_once": "1,8", "epochs": 8}


def read_epochs(folder: str, at_once: int, budget_bytes: int, epochs: int) -> Iterator[float]:
    """In a process of its own: yield the megabytes at the beginning, then the peak of each epoch."""
    import tensorflow as tf

    from lib.ways.our_reader import OurReader
    from train.reader.config import ReaderOptions

    open_place(folder).info()  # connects
    for _ in tf.data.Dataset.from_tensors(tf.fill((BATCH,), "")).repeat(8).prefetch(2):
        pass
    yield own_memory("VmRSS") / 1e6
    reader = OurReader(folder, BATCH, ReaderOptions(lanes=at_once, budget_bytes=budget_bytes))
    for epoch in range(epochs):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
        reader.serialized([epoch])
        children = children_of("self")
        assert not children, f"processes that are not measured: {children}"
        yield own_memory("VmHWM") / 1e6


def measure(folder: str, at_once: int, budget_bytes: int, epochs: int) -> Result:
    """Print the peaks of one number of slices at once."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    base, *totals = call("reader_memory:read_epochs", folder, at_once, budget_bytes, epochs, variables=variables)
    peaks = [each - base for each in totals]
    first, last = max(peaks[:COMPARED]), max(peaks[-COMPARED:])
    budget = budget_bytes / 1e6
    click.echo(
        f"{at_once:3} at once: peak {max(peaks):.0f} MB of {budget:.0f};"
        f" first epochs {first:.0f}, last {last:.0f}; each: {' '.join(f'{peak:.0f}' for peak in peaks)}"
    )
    title = f"reader memory, slices at once: {at_once}"
    return Result(title, "MB", max(peaks), "budget", budget, max(peaks) / budget)


@benchmark(__file__, __doc__, SHORT)
@click.option("--folder", type=Path, help="Keep the slices there; default: a temporary folder.")
@click.option("--hdfs", help="A folder on HDFS to read them from, as a URI.")
@click.option("--size", type=SIZE, default="640MB", show_default=True, help=f"Size of the {SLICES} slices.")
@click.option("--budget", type=SIZE, default="256MB", show_default=True, help="The memory of the reader.")
@click.option(
    "--slices-at-once",
    "at_once",
    type=NUMBERS,
    default="1,8,32",
    show_default=True,
    help="Numbers of slices to compare.",
)
@click.option("--epochs", type=COUNT, default=100, show_default=True, help="Epochs of each number.")
def main(  # noqa: PLR0917
    folder: Path | None, hdfs: str | None, size: str, budget: str, at_once: str, epochs: int
) -> list[Result]:
    """See the module."""
    if hdfs:
        check_hdfs("--hdfs", hdfs)
    with tempfile.TemporaryDirectory() as temporary:
        root = (folder or Path(temporary)).absolute() / f"memory-{size}"
        reader_data.make_photographs(root, parse_bytes(size), SLICES)
        place = f"{hdfs}/{root.name}" if hdfs else str(root)
        if hdfs:
            reader_data.put(root, place)
        slices = f"{place}/slices/{reader_data.NAME}"
        results = [measure(slices, number, parse_bytes(budget), epochs) for number in parse_counts(at_once)]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
