#!/usr/bin/env python3
"""Processor seconds of a nightly `ingest` that finds one new image in a large source.

    python benchmarks/renewal.py --images 200000 --packs 2000

Writes a folder of so many small files in 100 classes, ingests it in so many packs, and then, once per round, adds one
file and runs `ringslice ingest` again. The peer lists the source in Python: os.scandir and a stat of every file.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from lib.command import COUNT, benchmark
from lib.processes import call, describe_machine, environment, with_repository
from lib.results import Result, compare, print_results
from lib.rounds import take_turns
from lib.usage import measure

SHORT = {"images": 20_000, "packs": 200, "times": 2}
VERSIONS = ("pyarrow", "numpy")
CLASSES, IMAGE_BYTES = 100, 100


def write_source(folder: Path, images: int) -> None:
    for label in range(CLASSES):
        (folder / f"class-{label:03d}").mkdir(parents=True)
    for number in range(images):
        add_image(folder, number)


def add_image(folder: Path, number: int) -> None:
    path = folder / f"class-{number % CLASSES:03d}" / f"image-{number:09d}.jpg"
    path.write_bytes(number.to_bytes(IMAGE_BYTES))


def list_files(folder: str) -> Iterator[float]:
    """Yield the processor seconds of a scan of all files."""
    busy = time.process_time()
    for above, _, _ in os.walk(folder):
        with os.scandir(above) as entries:
            for entry in entries:
                entry.stat()
    yield time.process_time() - busy


@benchmark(__file__, __doc__, SHORT)
@click.option("--images", type=COUNT, default=200_000, show_default=True, help="Number of images.")
@click.option("--packs", type=COUNT, default=2_000, show_default=True, help="About how many packs.")
@click.option("--times", type=COUNT, default=3, show_default=True, help="Number of rounds.")
def main(images: int, packs: int, times: int) -> list[Result]:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="ringslice-") as name:
        source, root = Path(name) / "source", Path(name) / "root"
        write_source(source, images)
        added = iter(range(images, images + times))

        def ingest() -> float:
            pack_size = str(images * IMAGE_BYTES // packs)
            words = ["ringslice", "ingest", source, root, "--pack-size", pack_size]
            return measure(words, {}, name, with_repository(environment())).own_s

        def renew() -> float:
            add_image(source, next(added))
            return ingest()

        click.echo(f"{describe_machine(VERSIONS)}; {images} images; first ingest: {ingest():.1f} CPU-s")
        samples = take_turns(
            {"renewal": renew, "list": lambda: float(call("renewal:list_files", str(source))[0])}, times
        )
    for way, own in samples.items():
        click.echo(f"{way}: {own}")
    claim = f"renewal of one new image among {images:,} in {packs:,} packs"
    results = [compare(claim, "CPU-s", samples["renewal"], "listing the files", samples["list"])]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
