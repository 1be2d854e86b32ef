"""What was measured for each claim, its table and its JSON."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from lib.failure import Failure

WIDTH = 140


@dataclass(frozen=True)
class Result:
    """One measured claim: ``ours`` in ``unit``, beside ``theirs`` of ``peer`` if there is one."""

    claim: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        line = f"{self.claim}: {format_figure(self.ours)} {self.unit}"
        if self.theirs is not None:
            line += f", {self.peer} {format_figure(self.theirs)}"
        if self.ratio is not None:
            line += f": ratio {self.ratio:.3f}"
        return line


def compare(claim: str, unit: str, ours: Sequence[float], peer: str, theirs: Sequence[float]) -> Result:
    """Medians, and the median of the ratios round by round, because other work on the machine slows a whole round.

    There is no ratio where a round of the peer took no time that the clock could tell.
    """
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) if all(theirs) else None
    return Result(claim, unit, statistics.median(ours), peer, statistics.median(theirs), ratio)


def print_results(results: Iterable[Result]) -> None:
    for result in results:
        click.echo(str(result))


def print_samples(
    title: str,
    unit: str,
    samples: Mapping[str, Sequence[float]],
    more: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Print the median, least and most of each way; ``more`` has further columns, by title and way."""
    more = more or {}
    click.echo(title)
    table = make_table("way", [unit, "least", "most", *more])
    for way, own in samples.items():
        figures = (format_figure(each) for each in (statistics.median(own), min(own), max(own)))
        table.add_row(way, *figures, *(column[way] for column in more.values()))
    print_table(table)


def make_table(first: str, others: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right")
    return table


def print_table(table: Table) -> None:
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)


def format_figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def check_report(path: Path) -> None:
    """Raises Failure if no report can be written to ``path``. Leaves nothing there, and a file that is there alone."""
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failure("--json", path, reason, "Give a file in a folder that is there and can be written to") from None


def write_report(path: Path, results: Sequence[Result], left_out: Sequence[str]) -> None:
    content = {"results": [dataclasses.asdict(result) for result in results], "left_out": list(left_out)}
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_report(path: Path) -> tuple[list[Result], list[str]]:
    """The results and the lines about what was left out."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    return [Result(**each) for each in content["results"]], content["left_out"]
