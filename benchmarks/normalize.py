#!/usr/bin/env python3
"""Images per second of processor time: ringslice and its peers, in turns, each pass in a process and thread of its own.

    make img2dataset
    python benchmarks/normalize.py

Photographs become JPEGs of quality 95, 256 pixels on the shorter side. Ringslice does everything that a part needs:
SHA-256, checks, sums of pixels, example, CRC, write, table of rows. The peers decode, resize and encode, in memory:
Pillow (LANCZOS), OpenCV and img2dataset (INTER_AREA). The floor is what ringslice decodes, resizes and encodes with,
and nothing else; floor_area is the same with OpenCV's antialiasing resizer (INTER_AREA).

- usual: 500 photographs of about 500x400 pixels.
- large: 40 of 12 megapixels, which ringslice and the floor decode at a fraction.
"""

import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from lib.command import COUNT, benchmark, leave_out
from lib.failure import Failure
from lib.peers import IMG2DATASET
from lib.photographs import LARGE, USUAL, ingested, make_photographs
from lib.processes import call, describe_machine
from lib.results import Result, compare, print_results, print_samples
from lib.rounds import take_turns
from lib.ways.normalize import WAYS

OURS = "ringslice"
PEER = IMG2DATASET.target
VERSIONS = ("simplejpeg", "opencv-python-headless", "pillow", "numpy")
QUIET = {"NO_ALBUMENTATIONS_UPDATE": "1"}
SHORT = {"usual": 100, "large": 6, "repeats": 2}


PEERS = {"usual": (PEER, "floor", "opencv", "pillow"), "large": (PEER, "opencv")}  # of ringslice, by workload


def pass_seconds(name: str, root: Path, source: Path, peer: Path) -> float:
    """Processor time of a pass over all photographs in one way, after one that is not counted."""
    words = ("lib.ways.normalize:measure_pass", name, str(root), str(source))
    return float(call(*words, python=peer if name == PEER else None, variables=QUIET)[0])


def measure(files: list[Path], names: Sequence[str], root: Path, repeats: int, peer: Path) -> dict[str, list[float]]:
    """Images per CPU-second of each round, by way."""
    images, source = len(files), files[0].parent.parent
    seconds = take_turns({name: partial(pass_seconds, name, root, source, peer) for name in names}, repeats)
    rates = {name: [images / each for each in own] for name, own in seconds.items()}
    size = sum(path.stat().st_size for path in files) / images / 1000
    per_image = {name: f"{1000 / statistics.median(own):.2f}" for name, own in rates.items()}
    title = f"{source.name}: {images} of {size:,.0f} KB on average, {repeats} passes"
    print_samples(title, "images/CPU-s", rates, {"ms/image": per_image})
    return rates


def compare_rates(workload: str, rates: dict[str, list[float]]) -> list[Result]:
    """A result for each peer that was measured, if ringslice was."""
    peers = [peer for peer in PEERS[workload] if {peer, OURS} <= rates.keys()]
    return [compare(f"normalize, {workload}", "images/CPU-s", rates[OURS], peer, rates[peer]) for peer in peers]


@benchmark(__file__, __doc__, SHORT)
@click.option("--folder", type=Path, help="Keep the photographs there; default: a temporary folder.")
@click.option(
    "--usual",
    type=click.IntRange(min=0),
    default=USUAL,
    show_default=True,
    help="Number of photographs of about 500x400 pixels.",
)
@click.option(
    "--large",
    type=click.IntRange(min=0),
    default=LARGE,
    show_default=True,
    help="Number of photographs of 12 megapixels.",
)
@click.option("--repeats", type=COUNT, default=5, show_default=True, help="Passes of each way, in turns.")
@click.option("--way", "names", multiple=True, type=click.Choice(list(WAYS)), help="Only these; may be repeated.")
@click.option("--peer-python", type=Path, default=IMG2DATASET.python, help="The Python that has img2dataset.")
def main(  # noqa: PLR0917
    folder: Path | None, usual: int, large: int, repeats: int, names: Sequence[str], peer_python: Path
) -> list[Result]:
    """See the module."""
    chosen = [name for name in WAYS if not names or name in names]
    if PEER in chosen:
        try:
            IMG2DATASET.versions(peer_python)
        except Failure as missing:
            leave_out(missing)
            chosen.remove(PEER)
    click.echo(describe_machine(VERSIONS))
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).absolute()
        for workload, files in make_photographs(place, usual, large).items():
            if files:
                root = ingested(place / f"dataset-{workload}-{len(files)}", files)
                results += compare_rates(workload, measure(files, chosen, root, repeats, peer_python))
    print_results(results)
    return results


if __name__ == "__main__":
    main()
