"""The samples, medians and claims of `benchmarks/reader.py`."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from lib.results import Result

Names = tuple[str, str, str]  # workload, way, variant
Figures = tuple[float, float, float]  # MB/s, examples/s, CPU-s/GB

HEADER = f"{'workload':10} {'way':21} {'variant':18} {'MB/s':>6} {'examples/s':>11} {'CPU-s/GB':>9}"


@dataclass(frozen=True)
class Sample:
    """One timed pass; ``variant`` is the readable name of its settings."""

    workload: str
    way: str
    variant: str
    examples: int
    size_bytes: float
    wall_s: float
    cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / self.wall_s / 1e6

    @property
    def examples_per_s(self) -> float:
        return self.examples / self.wall_s

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.size_bytes * 1e9

    @property
    def names(self) -> Names:
        return self.workload, self.way, self.variant

    @property
    def figures(self) -> Figures:
        return self.mb_per_s, self.examples_per_s, self.cpu_s_per_gb

    def __str__(self) -> str:
        return _row(self.names, self.figures)


def _row(names: Names, figures: Figures) -> str:
    workload, way, variant = names
    mb_per_s, examples_per_s, cpu_s_per_gb = figures
    return f"{workload:10} {way:21} {variant:18} {mb_per_s:6.0f} {examples_per_s:11,.0f} {cpu_s_per_gb:9.2f}"


def variant_name(variant: Mapping[str, Any]) -> str:
    """``8 at once, 8 MiB``."""
    buffer = variant.get("buffer_bytes")
    parts = (f"{variant['at_once']} at once" if "at_once" in variant else "", f"{buffer >> 20} MiB" if buffer else "")
    return ", ".join(filter(None, parts)) or "default"


@dataclass(frozen=True)
class Claim:
    """``ours`` reads at least ``least`` times the examples/s of ``peer``; the best variant of each is compared."""

    workload: str
    ours: str
    peer: str
    least: float


def print_medians(samples: Iterable[Sample], claims: Iterable[Claim]) -> list[Result]:
    """Print the table of medians; return a result for each claim if both of its ways were measured."""
    found: dict[Names, list[Figures]] = {}
    for sample in samples:
        found.setdefault(sample.names, []).append(sample.figures)
    click.echo(f"\nMedians\n{HEADER}  MB/s of each")
    best: dict[tuple[str, str], float] = {}
    for names, own in found.items():
        mb_per_s, examples_per_s, cpu_s_per_gb = (statistics.median(figure) for figure in zip(*own, strict=True))
        best[names[:2]] = max(examples_per_s, best.get(names[:2], 0.0))
        each = " ".join(f"{figures[0]:.0f}" for figures in own)
        click.echo(f"{_row(names, (mb_per_s, examples_per_s, cpu_s_per_gb))}  {each}")
    results = []
    for claim in claims:
        ours, peer = best.get((claim.workload, claim.ours)), best.get((claim.workload, claim.peer))
        if ours and peer:
            title = f"reader, {claim.workload}: {claim.ours}"
            results.append(Result(title, "examples/s", ours, claim.peer, peer, ours / peer, least=claim.least))
    return results
