#!/usr/bin/env python3
"""What it costs in accuracy that an epoch's examples do not fill its last step.

    make demo
    python benchmarks/remainders.py --data data/digits

Two ranks of batch 32 train the recipe of the digits for 6 epochs, on 1,024 examples and so many more: with every
example, and with --drop-last, each with several seeds. The accuracies are those on the test split, means over seeds.
"""

import shutil
import statistics
import tempfile
from pathlib import Path

import click

from lib.command import COUNT, benchmark, leave_out
from lib.failure import Failure
from lib.processes import describe_machine, run_ranks
from lib.results import Result, print_results

RANKS, EPOCHS, WHOLE = 2, 6, 1_024
REMAINDERS = (1, 2, 3, 5, 8, 13, 21, 32, 43, 52, 61, 63)
VERSIONS = ("tensorflow-cpu", "keras", "horovod", "numpy")
SHORT = {"remainders": [1, 32], "seeds": 1}
LEAST = 0.995  # of the accuracy with --drop-last


@benchmark(__file__, __doc__, SHORT)
@click.option("--data", default="data/digits", show_default=True, help="The root that make demo leaves.")
@click.option(
    "--remainder", "remainders", type=click.IntRange(min=0), multiple=True, default=REMAINDERS, help="May be repeated."
)
@click.option("--seeds", type=COUNT, default=3, show_default=True, help="Trainings of each kind.")
def main(data: str, remainders: tuple[int, ...], seeds: int) -> list[Result]:
    if not (Path(data) / "slices").is_dir():
        leave_out(Failure("--data", data, "it has no slices", "Run make demo, or give the root of the digits"))
        return []
    describe_machine(VERSIONS)
    jobs = [(WHOLE + each, seed, drop) for each in remainders for seed in range(seeds) for drop in (0, 1)]
    found = train_all(data, jobs)
    click.echo(f"\n{'examples':>8} {'all':>7} {'--drop-last':>12} {'difference':>11}")
    results = []
    for remainder in remainders:
        total = WHOLE + remainder
        every, whole = (statistics.mean(found[total, seed, drop] for seed in range(seeds)) for drop in (0, 1))
        click.echo(f"{total:8,} {every:7.4f} {whole:12.4f} {every - whole:+11.4f}")
        results.append(Result(f"remainder {remainder}", "accuracy", every, "drop-last", whole, every / whole, LEAST))
    print_results(results)
    return results


def train_all(data: str, jobs: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], float]:
    """The accuracy of each job, by total, seed and whether the rest is dropped."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        shutil.copytree(data, root, ignore=shutil.ignore_patterns("runs", "raw"))
        told = run_ranks(RANKS, "remainders.py", root, EPOCHS, *(":".join(map(str, job)) for job in jobs))
    accuracies = {each["job"]: float(each["accuracy"]) for each in told}
    return {job: accuracies[":".join(map(str, job))] for job in jobs}


if __name__ == "__main__":
    main()
