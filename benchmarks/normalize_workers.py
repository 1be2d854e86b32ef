#!/usr/bin/env python3
"""What a second worker process adds to `normalize -r local`.

    python benchmarks/normalize_workers.py

One job, whose tasks share all cores, against as many independent runs side by side, each with its own dataset and
pinned to a core; images per second of wall time, start and end included. Packs are small and many, so that no core has
a pack more than another for long.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from lib.command import COUNT, benchmark
from lib.photographs import make_photographs
from lib.processes import require_program, run_quietly
from lib.results import Result, compare, print_results
from lib.rounds import take_turns

PACK_SIZE = "16MB"
SETTINGS = ("--size", "256", "--fit", "shorter", "--overwrite")
SHORT = {"photographs": 100, "times": 6, "repeats": 2}
ONE, APART = "one job", "runs apart"


def _source(folder: Path, photographs: Sequence[Path], times: int) -> Path:
    """The photographs so many times, as links with other names, because a key must be unique."""
    for number in range(times):
        for path in photographs:
            link = folder / path.parent.name / f"{number:04d}-{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                os.link(path, link)
    return folder


def _rate_side_by_side(roots: Sequence[Path], images: int) -> float:
    """Images per second of runs that are pinned to a core each, started together: the sum of their own rates."""
    started = time.monotonic()

    def rate(core: int, root: Path) -> float:
        run_quietly("taskset", "--cpu-list", core, "ringslice", "normalize", root, "-r", "inline", *SETTINGS)
        return images / (time.monotonic() - started)

    with ThreadPoolExecutor(len(roots)) as pool:
        return sum(pool.map(rate, sorted(os.sched_getaffinity(0)), roots))


def measure_speed(folder: Path, photographs: Sequence[Path], times: int, repeats: int) -> Result:
    """Print the rates of both ways round by round; the result has the median of their ratios."""
    cores = sorted(os.sched_getaffinity(0))
    images = len(photographs) * times
    roots = [folder / f"own-{core}" for core in cores]
    shared = folder / "shared"
    for root in (*roots, shared):
        number = times * (len(cores) if root == shared else 1)
        source = _source(folder / f"source-{number}", photographs, number)
        run_quietly("ringslice", "ingest", source, root, "--pack-size", PACK_SIZE, "--overwrite")

    def together() -> float:
        started = time.monotonic()
        run_quietly("ringslice", "normalize", shared, "-r", "local", *SETTINGS)
        return images * len(cores) / (time.monotonic() - started)

    rates = take_turns({ONE: together, APART: lambda: _rate_side_by_side(roots, images)}, repeats)
    for one, apart in zip(rates[ONE], rates[APART], strict=True):
        click.echo(f"one job {one:7.1f} images/s, {len(cores)} runs apart {apart:7.1f}: {one / apart:.3f}")
    title = f"normalize workers: one job on {len(cores)} cores"
    return compare(title, "images/s", rates[ONE], APART, rates[APART])


@benchmark(__file__, __doc__, SHORT)
@click.option("--folder", type=Path, help="Keep photographs and datasets there; default: a temporary folder.")
@click.option(
    "--photographs", type=COUNT, default=500, show_default=True, help="Number of photographs of about 500x400 pixels."
)
@click.option("--times", type=COUNT, default=10, show_default=True, help="How often one process normalises them.")
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Rounds of the comparison of speed.")
def main(folder: Path | None, photographs: int, times: int, repeats: int) -> list[Result]:
    """See the module."""
    require_program("taskset", "Install it: apt-get install util-linux")
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).absolute()
        files = make_photographs(place, photographs, 0)["usual"]
        results = [measure_speed(place, files, times, repeats)]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
