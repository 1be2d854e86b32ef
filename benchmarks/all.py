#!/usr/bin/env python3
"""Run the benchmarks one after the other in their short form, and print one table.

    python benchmarks/all.py
    python benchmarks/all.py planning shard --verbose
    python benchmarks/all.py --hdfs hdfs://127.0.0.1:8020/tmp/benchmarks

Each runs in a process of its own and is ended after its time limit. Figures of the short form are rough, because the
start of processes is most of it: run a benchmark alone, without --short, to judge a claim. Peers that are not installed
are left out, with a line that names the command to install them. Exit status: 0 if all have run, 1 if one failed or ran
out of time.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from lib.command import keep_lines
from lib.hdfs import check_hdfs
from lib.processes import BENCHMARKS, describe_machine, environment
from lib.results import Result, check_report, format_figure, make_table, print_table, read_report, write_report

VERSIONS = ("tensorflow-cpu", "horovod", "pyarrow", "numpy")


@dataclass(frozen=True)
class Benchmark:
    """A script, its time limit, whether it can keep data in a folder, and its option for a folder on HDFS."""

    name: str
    limit_s: float
    has_folder: bool = True
    hdfs_option: str | None = None

    def command(self, report: Path, folder: Path, hdfs: str | None) -> list[str]:
        words = [sys.executable, str(BENCHMARKS / f"{self.name}.py"), "--short", "--json", str(report)]
        words += ["--folder", str(folder)] if self.has_folder else []
        return words + ([self.hdfs_option, f"{hdfs}/{self.name}"] if hdfs and self.hdfs_option else [])


ALL = (
    Benchmark("planning", 60, has_folder=False),
    Benchmark("renewal", 60, has_folder=False),
    Benchmark("normalize", 120),
    Benchmark("normalize_workers", 180),
    Benchmark("shard", 90, hdfs_option="--hdfs"),
    Benchmark("task_memory", 120, has_folder=False),
    Benchmark("reader", 240, hdfs_option="--hdfs"),
    Benchmark("reader_memory", 90, hdfs_option="--hdfs"),
    Benchmark("checkpoint", 60, has_folder=False, hdfs_option="--root"),
    Benchmark("trainer", 240, has_folder=False),
    Benchmark("overlap", 90, has_folder=False),
    Benchmark("network", 180, has_folder=False),
    Benchmark("gpu", 240),
    Benchmark("torch_input", 120, has_folder=False),
)
NAMES = [each.name for each in ALL]
HDFS_FACTOR = 5  # of the time limit


@dataclass
class Outcome:
    """What one benchmark reported: results, what it left out, or the line with which it failed."""

    name: str
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def state(self) -> str:
        if self.failure:
            return "failed"
        return "done" if self.results else "left out"


def run(each: Benchmark, folder: Path, hdfs: str | None, verbose: bool) -> Outcome:
    """Run one benchmark within its time limit."""
    report, log = folder / f"{each.name}.json", folder / f"{each.name}.log"
    limit_s = each.limit_s * (HDFS_FACTOR if hdfs and each.hdfs_option else 1)
    outcome = Outcome(each.name)
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            each.command(report, folder, hdfs),
            env=environment() | {"TMPDIR": str(folder)},  # deleted even if the benchmark is killed
            stdout=None if verbose else subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
            outcome.failure = _last_line(log) or f"status {status}" if status else ""
        except subprocess.TimeoutExpired:
            fix = f"Run it alone: python benchmarks/{each.name}.py --short"
            outcome.failure = f"benchmarks/{each.name}.py: time: more than {limit_s:.0f} s (its limit). {fix}."
        finally:
            _end_session(process)
    outcome.seconds = time.monotonic() - began
    if not outcome.failure:
        outcome.results, outcome.left_out = read_report(report)
    return outcome


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """End the process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the table; below it a line for each part that was left out or failed."""
    table = make_table("claim", ("ours", "peer", "ratio", "seconds"))
    for outcome in outcomes:
        seconds = f"{outcome.seconds:.0f}"
        for result in outcome.results or [Result(outcome.name, "", 0.0)]:
            table.add_row(*(_cells(result) if outcome.results else (outcome.name, outcome.state, "", "")), seconds)
            seconds = ""
    print_table(table)
    for outcome in outcomes:
        for line in outcome.left_out:
            click.echo(f"left out of {outcome.name}.py: {line}")
        if outcome.failure:
            click.echo(f"failed: {outcome.failure}")


def _cells(result: Result) -> tuple[str, ...]:
    peer = f"{result.peer}: {format_figure(result.theirs)}" if result.theirs is not None else ""
    ratio = f"{result.ratio:.2f}" if result.ratio is not None else ""
    return result.claim, f"{format_figure(result.ours)} {result.unit}", peer, ratio


def choose(names: Iterable[str]) -> list[Benchmark]:
    wanted = set(names)
    return [each for each in ALL if not wanted or each.name in wanted]


@click.command(help=keep_lines(__doc__ or ""), context_settings={"max_content_width": 120})
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--hdfs", metavar="URI", help="A folder on HDFS: measure there what can be measured there, too.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write the results there, too.")
@click.option("--verbose", is_flag=True, help="Show what each benchmark prints.")
def main(names: Sequence[str], hdfs: str | None, path: Path | None, verbose: bool) -> None:
    """See the module."""
    if path:
        check_report(path)
    if hdfs:
        check_hdfs("--hdfs", hdfs)
    click.echo(f"{describe_machine(VERSIONS)}; short form, rough figures")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the benchmark at work, too
    began = time.monotonic()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="ringslice-bench-") as temporary:
        for each in choose(names):
            outcomes.append(run(each, Path(temporary), hdfs, verbose))
            click.echo(f"{each.name}: {outcomes[-1].state}, {outcomes[-1].seconds:.0f} s")
    print_outcomes(outcomes)
    click.echo(f"{time.monotonic() - began:.0f} s in all")
    if path:
        results = [result for outcome in outcomes for result in outcome.results]
        write_report(path, results, [line for outcome in outcomes for line in outcome.left_out])
    if any(outcome.failure for outcome in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
