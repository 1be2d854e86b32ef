"""What `benchmarks/reader.py` prints: samples as they come, then medians, then what was claimed against what came."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

Names = tuple[str, str, str]  # workload, way, variant
Figures = tuple[float, float, float]  # MB/s, examples/s, CPU-s/GB

HEADER = f"{'workload':10} {'way':21} {'variant':18} {'MB/s':>6} {'examples/s':>11} {'CPU-s/GB':>9}"


@dataclass(frozen=True)
class Sample:
    """One timed pass: ``variant`` is how it was done, as people read it."""

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

    def told(self) -> str:
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
    """In a workload, ours is to have at least ``least`` of a peer's examples/s; of each the best variant counts."""

    workload: str
    ours: str
    peer: str
    least: float


def tell_medians(samples: Iterable[Sample], claims: Iterable[Claim]) -> None:
    """The table of medians, and a line for each claim whose ways were both measured."""
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
    click.echo()
    for claim in claims:
        keys = (claim.workload, claim.ours), (claim.workload, claim.peer)
        if all(key in best for key in keys):
            ratio = best[keys[0]] / best[keys[1]]
            word = "met" if ratio >= claim.least else "missed"
            click.echo(f"{claim.workload}: {claim.ours} / {claim.peer} = {ratio:.2f}, goal {claim.least}: {word}")
