#!/usr/bin/env python3
"""Images per second of processor time: ours against its peers, in turns, each way in a process and thread of its own.

    make img2dataset
    python benchmarks/normalize.py

Photographs become JPEGs of quality 95, 256 pixels on the shorter side. Ours does everything that a part takes: SHA-256,
checks, sums of pixels, example, CRC, write, table of rows. The peers decode, resize and encode, in memory: Pillow
(LANCZOS), OpenCV and img2dataset (INTER_AREA). The floor is what ours decodes, resizes and encodes with, alone;
floor_area the same with OpenCV's own antialiasing resizer (INTER_AREA) in the place of ours.

- usual: 500 photographs of about 500x400 pixels.
- large: 40 of 12 megapixels, which ours and the floor decode at a fraction.
"""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from normalize_ways import WAYS
from photographs import LARGE, USUAL, ingested, make_photographs

HERE = Path(__file__).resolve().parent
PEER, PEER_PYTHON = "img2dataset", HERE.parent / ".venvs" / "img2dataset" / "bin" / "python"
OURS = "ringslice"
VERSIONS = ("simplejpeg", "opencv-python-headless", "pillow", "numpy")


@dataclass(frozen=True)
class Claim:
    """Ours is to have at least ``least`` times the images per CPU-second that ``peer`` has."""

    workload: str
    peer: str
    least: float


CLAIMS = (
    Claim("usual", PEER, 1.2),
    Claim("usual", "floor", 0.85),
    Claim("large", PEER, 3.0),
)


class Way:
    """A process that makes a pass over a dataset when it is told to."""

    def __init__(self, name: str, root: Path, source: Path, python: Path) -> None:
        self.name = name
        words = [python, HERE / "normalize_ways.py", name, root, source]
        paths = {"PYTHONPATH": str(HERE.parent), "NO_ALBUMENTATIONS_UPDATE": "1"}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | paths
        )

    def measure(self) -> float:
        """The processor time of a pass, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        told = self._process.stdout.readline()
        if not told:
            raise SystemExit(f"{self.name} failed, see above")
        return float(told)

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def running(names: Sequence[str], root: Path, source: Path, peer: Path) -> Iterator[list[Way]]:
    """One process for each way, warmed up by a pass that is not counted."""
    with ExitStack() as stack:
        ways = []
        for name in names:
            ways.append(Way(name, root, source, peer if name == PEER else Path(sys.executable)))
            stack.callback(ways[-1].end)
            ways[-1].measure()
        yield ways


def measure(files: list[Path], names: Sequence[str], root: Path, repeats: int, peer: Path) -> dict[str, list[float]]:
    """Images per CPU-second of each round, by way; prints their medians with the least and the most."""
    images = len(files)
    found: dict[str, list[float]] = {name: [] for name in names}
    with running(names, root, files[0].parent.parent, peer) as ways:
        for _ in range(repeats):
            for way in ways:
                found[way.name].append(images / way.measure())
    size = sum(path.stat().st_size for path in files) / images / 1000
    click.echo(f"\n{files[0].parent.parent.name}: {images} of {size:,.0f} KB on average, {repeats} passes")
    click.echo(f"{'way':12} {'images/CPU-s':>12} {'least':>8} {'most':>8} {'ms/image':>9}")
    for name, rates in found.items():
        median = statistics.median(rates)
        click.echo(f"{name:12} {median:12.1f} {min(rates):8.1f} {max(rates):8.1f} {1000 / median:9.2f}")
    return found


def tell_claims(workload: str, rates: dict[str, list[float]]) -> None:
    """A line for each claim whose ways were measured: the median of ratios round by round, for other work slows all."""
    for claim in CLAIMS:
        if claim.workload == workload and {claim.peer, OURS} <= rates.keys():
            ratio = statistics.median(a / b for a, b in zip(rates[OURS], rates[claim.peer], strict=True))
            verdict = "holds" if ratio >= claim.least else "DOES NOT HOLD"
            click.echo(f"{OURS} to {claim.peer}: {ratio:.2f}, at least {claim.least:g} claimed: {verdict}")


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--folder", type=Path, help="Where the photographs go, and stay; default: a temporary one.")
@click.option("--usual", default=USUAL, show_default=True, help="How many of about 500x400 pixels.")
@click.option("--large", default=LARGE, show_default=True, help="How many of 12 megapixels.")
@click.option("--repeats", default=5, show_default=True, help="Passes of each way, in turns.")
@click.option("--way", "names", multiple=True, type=click.Choice(list(WAYS)), help="Only these; may be repeated.")
@click.option("--peer-python", type=Path, default=PEER_PYTHON, help="The Python that has img2dataset.")
def main(  # noqa: PLR0917
    folder: Path | None, usual: int, large: int, repeats: int, names: Sequence[str], peer_python: Path
) -> None:
    """See the module."""
    chosen = [name for name in WAYS if not names or name in names]
    if PEER in chosen and not peer_python.exists():
        raise click.UsageError("img2dataset is missing; run: make img2dataset")
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    click.echo(f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)).absolute()
        for workload, files in make_photographs(place, usual, large).items():
            if files:
                root = ingested(place / f"dataset-{workload}-{len(files)}", files)
                tell_claims(workload, measure(files, chosen, root, repeats, peer_python))


if __name__ == "__main__":
    main()
