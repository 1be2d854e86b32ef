#!/usr/bin/env python3
"""How fast PyTorch gets pictures from slices, from files (ImageFolder), and from slices by the package tfrecord.

    python benchmarks/torch_input.py
    python benchmarks/torch_input.py --workers 16

JPEGs of 256 pixels (30 to 50 KB) are cut at random to 224 pixels, resized and mirrored, in batches of 64, by as many
processes of a DataLoader as there are cores. ImageFolder and tfrecord decode with Pillow and cut with torchvision. The
ways take turns, each in a process of its own; a figure is the median of their turns. The Python that runs it needs
torch, torchvision and tfrecord.
"""

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from etl.values import parse_bytes
from lib import reader_data
from lib.command import COUNT, SECONDS, SIZE, benchmark, leave_out
from lib.failure import Failure
from lib.processes import call, describe_machine
from lib.results import Result, compare, print_results, print_samples
from lib.ways.torch_input import RINGSLICE, WAYS, extract

PACKAGES = ("torch", "torchvision", "tfrecord", "pillow", "opencv-python-headless", "simplejpeg")
SLICES = 16
SHORT = {"size": "40MB", "repeats": 1, "seconds": 3.0}


@benchmark(__file__, __doc__, SHORT)
@click.option("--workers", type=COUNT, default=len(os.sched_getaffinity(0)), show_default="the cores")
@click.option("--size", type=SIZE, default="200MB", show_default=True, help="Bytes of the slices.")
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Length of each measurement at most.")
@click.option("--repeats", type=COUNT, default=5, show_default=True, help="Turns of each way.")
def main(workers: int, size: str, seconds: float, repeats: int) -> list[Result]:
    """See the module."""
    if missing := [name for name in ("torch", "torchvision", "tfrecord") if not importlib.util.find_spec(name)]:
        leave_out(Failure("package", missing[0], "not installed here", f"Install it: pip install {missing[0]}"))
        return []
    click.echo(describe_machine(PACKAGES))
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        reader_data.make_photographs(root / "data", parse_bytes(size), SLICES)
        slices = root / "data/slices" / reader_data.NAME
        extract(slices, root / "files")
        job: dict[str, Any] = {"root": str(root / "data"), "slices": str(slices), "files": str(root / "files")}
        job |= {"batch": 64, "side": 224, "workers": workers, "seconds": seconds}
        for _ in range(repeats):
            for way in WAYS:
                rates[way] += [each["rate"] for each in call("lib.ways.torch_input:run", job | {"way": way})]
    print_samples(f"{workers} workers", "images/s", rates)
    ours = rates[RINGSLICE]
    results = [compare("torch input", "images/s", ours, way, rates[way]) for way in WAYS if way != RINGSLICE]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
