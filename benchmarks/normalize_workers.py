#!/usr/bin/env python3
"""What a second worker process adds, and what memory the whole tree of processes takes, for more and more images.

    python benchmarks/normalize_workers.py

- speed: `normalize -r local`, whose tasks share all cores, against as many independent runs, each of its own dataset
  and pinned to a core, side by side; images per second of wall time, start and end of everything included. Packs are
  small and many, so that no core has one more than another for long.
- memory: the proportional set sizes (proc(5), smaps_rollup) of `normalize -r local` with all its descendants, sampled
  ten times a second, for the images once and ten times. Ingest's, too.
"""

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from photographs import make_photographs

LEAST_SPEED = 0.95
SAMPLE_INTERVAL_S = 0.1
PACK_SIZE = "16MB"
SETTINGS = ("--size", "256", "--fit", "shorter", "--overwrite")


class TreePeak:
    """The largest sum, so far, of what a process and all its descendants take, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.size_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE_INTERVAL_S):
            self.size_bytes = max(self.size_bytes, sum(map(_size, _tree(self._pid))))

    @classmethod
    @contextmanager
    def watching(cls, pid: int) -> Iterator["TreePeak"]:
        """Sample while the block runs."""
        peak = cls(pid)
        peak._thread.start()
        try:
            yield peak
        finally:
            peak._stopped.set()
            peak._thread.join()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:  # ended meanwhile
        return
    for child in children.split():
        yield from _tree(int(child))


def _size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _source(folder: Path, photographs: Sequence[Path], times: int) -> Path:
    """The photographs so many times, as links under other names, for a key comes once."""
    for number in range(times):
        for path in photographs:
            link = folder / path.parent.name / f"{number:04d}-{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                os.link(path, link)
    return folder


def _ringslice(*words: object) -> list[str]:
    return ["ringslice", *map(str, words)]


def _run(words: Sequence[str]) -> tuple[float, int]:
    """Seconds, and bytes at the peak, of a command with all its processes."""
    started = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    with TreePeak.watching(process.pid) as peak:
        status = process.wait()
    if status:
        raise SystemExit(f"{' '.join(words)} ended with status {status}")
    return time.monotonic() - started, peak.size_bytes


def _rate_side_by_side(roots: Sequence[Path], images: int) -> float:
    """Images per second of runs that are pinned to a core each, started together: the sum of their own rates."""
    started = time.monotonic()
    seconds: dict[Path, float] = {}

    def run(root: Path, core: int) -> None:
        words = ["taskset", "--cpu-list", str(core), *_ringslice("normalize", root, "-r", "inline", *SETTINGS)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        seconds[root] = time.monotonic() - started

    threads = [threading.Thread(target=run, args=(root, core)) for core, root in enumerate(roots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(seconds) < len(roots):
        raise SystemExit("a run failed, see above")
    return sum(images / each for each in seconds.values())


def measure_speed(folder: Path, photographs: Sequence[Path], times: int, repeats: int) -> None:
    """Print the rates of both ways, round by round, and the median of their ratios."""
    cores = sorted(os.sched_getaffinity(0))
    images = len(photographs) * times
    roots = [folder / f"own-{core}" for core in cores]
    for root in (*roots, folder / "shared"):
        of = times * (len(cores) if root.name == "shared" else 1)
        source = _source(folder / f"source-{of}", photographs, of)
        words = _ringslice("ingest", source, root, "--pack-size", PACK_SIZE)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    ratios = []
    for _ in range(repeats):
        seconds, _ = _run(_ringslice("normalize", folder / "shared", "-r", "local", *SETTINGS))
        together, apart = images * len(cores) / seconds, _rate_side_by_side(roots, images)
        ratios.append(together / apart)
        click.echo(f"one job {together:7.1f} images/s, {len(cores)} runs apart {apart:7.1f}: {ratios[-1]:.3f}")
    ratio = statistics.median(ratios)
    verdict = "holds" if ratio >= LEAST_SPEED else "DOES NOT HOLD"
    click.echo(f"one job to runs apart: {ratio:.3f}, at least {LEAST_SPEED} claimed: {verdict}")


def measure_memory(folder: Path, photographs: Sequence[Path], times: Sequence[int]) -> None:
    """Print the peaks of ingest and of normalize, by the number of images."""
    for each in times:
        source, root = _source(folder / f"source-{each}", photographs, each), folder / f"memory-{each}"
        _, ingest = _run(_ringslice("ingest", source, root, "--overwrite"))
        _, normalize = _run(_ringslice("normalize", root, "-r", "local", *SETTINGS))
        click.echo(
            f"{len(photographs) * each:7,} images: peak of ingest {ingest / 1e6:.0f} MB,"
            f" of normalize with all its processes {normalize / 1e6:.0f} MB"
        )


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--folder", type=Path, help="Where photographs and datasets go, and stay; default: a temporary one.")
@click.option("--photographs", default=500, show_default=True, help="How many of about 500x400 pixels.")
@click.option("--times", default=10, show_default=True, help="How often they are normalised by one process.")
@click.option("--repeats", default=3, show_default=True, help="Rounds of the comparison of speed.")
def main(folder: Path | None, photographs: int, times: int, repeats: int) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).absolute()
        files = make_photographs(place, photographs, 0)["usual"]
        measure_speed(place, files, times, repeats)
        measure_memory(place, files, (2, 20))


if __name__ == "__main__":
    main()
