#!/usr/bin/env python3
"""How fast the trainer trains: its loop, its ring, and its input, each against a peer, in turns.

    python benchmarks/trainer.py --data data/fashion
    python benchmarks/trainer.py --part input --input hdfs://127.0.0.1:8020/datasets/fashion

Each sample is a process of its own, started by the command that a user gives. Three parts:

- loop: one rank, which reads slices and decodes them, against Keras' `fit` of the same model, with the same batch,
  optimizer, cores and threads, on the decoded pictures in memory; without XLA, and with what Keras chooses (auto).
- ring: `horovodrun -np 2`, each rank on its half of the cores, against two runs of one rank on such a half each, side
  by side, that know nothing of each other; their images per second are summed.
- input: a consumer that takes each batch for a fixed time, such that it takes 80 percent of the pictures per second
  that `ringslice read-bench` finds on --input (it sleeps, as for an accelerator that is busy): on the pictures from
  there, against one batch that is there already.

A figure is the median of the epochs after the first; a ratio is the median of those of the rounds.
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from trainer_ways import Job

from etl.storage.place import Place, default_data_place, open_place
from train.parallel.startup import cores_of
from train.runs.folder import Dataset, find_dataset

HERE = Path(__file__).resolve().parent
TRAIN = HERE.parent / "train" / "main.py"
PATH = {"PYTHONPATH": str(HERE.parent), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
LOOP, RING, INPUT = PARTS = ("loop", "ring", "input")
VERSIONS = ("tensorflow-cpu", "keras", "horovod", "pyarrow", "numpy")
RANKS = 2
LR = 0.02
MEASURED_S = 10.0  # each of an input

Rates = dict[str, float]  # images per second of one round, by way


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained by all ways."""

    dataset: Dataset
    model: str
    batch: int
    epochs: int

    @property
    def words(self) -> list[str]:
        """The trainer and its options, but for the run."""
        given = {"--data": self.dataset.root, "--name": self.dataset.name, "--model": self.model, "--batch": self.batch}
        options = given | {"--epochs": self.epochs, "--lr": LR}
        return [str(TRAIN), *(str(word) for option in options.items() for word in option)]


def measure_loop(training: Training) -> Rates:
    """One rank, and `fit` without XLA and as Keras chooses."""
    job = Job("fit", training.dataset.folder.uri, training.model, training.batch, training.epochs, LR)
    rates = {"ringslice": side_by_side(training, [[sys.executable, *training.words]])}
    for name, jit in (("fit", False), ("fit, jit auto", "auto")):
        rates[name] = steady(run_job(dataclasses.replace(job, jit=jit)))
    return rates


def measure_ring(training: Training) -> Rates:
    """Two ranks, and two runs of one rank that share nothing but the machine."""
    cores = sorted(os.sched_getaffinity(0))
    copies = []
    for copy in range(RANKS):
        own = ",".join(str(core) for core in cores_of(cores, copy, RANKS))
        copies.append(["taskset", "--cpu-list", own, sys.executable, *training.words])
    return {
        "ring": side_by_side(training, [["horovodrun", "-np", str(RANKS), *training.words]]),
        "copies": side_by_side(training, copies),
    }


def measure_input(dataset: Dataset) -> Rates:
    """A consumer of most of what there is, on the input and on nothing; and what there is."""
    return dict(run_job(Job("input", dataset.folder.uri, seconds=MEASURED_S)))


def side_by_side(training: Training, commands: Sequence[Sequence[str]]) -> float:
    """Start these trainings at once, each as a run of its own, which is deleted; the sum of their images per second."""
    runs = open_place(training.dataset.root) / "runs"
    places = [runs / f"benchmark-{os.getpid()}-{number}" for number in range(len(commands))]
    running: list[subprocess.Popen[str]] = []
    try:
        for words, place in zip(commands, places, strict=True):
            running.append(start([*words, "--run", place.name], stdout=subprocess.DEVNULL))
        for each in running:
            finish(each)
        return sum(steady(epoch_rates(place)) for place in places)
    finally:
        for each in running:  # where one failed
            each.terminate()
            each.wait()
        for place in places:
            place.delete()


def start(words: Sequence[str], stdout: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(words, env=os.environ | PATH, stdout=stdout, stderr=subprocess.PIPE, text=True)


def finish(running: "subprocess.Popen[str]") -> str:
    """What it printed. Ends the benchmark where it failed."""
    told, errors = running.communicate()
    if running.returncode:
        raise SystemExit(f"{running.args} failed:\n{errors}")
    return told


def run_job(job: Job) -> Any:
    """What a way of `trainer_ways` tells."""
    words = [sys.executable, str(HERE / "trainer_ways.py"), json.dumps(dataclasses.asdict(job))]
    return json.loads(finish(start(words, stdout=subprocess.PIPE)).splitlines()[-1])


def epoch_rates(run: Place) -> list[float]:
    return [epoch["images_per_s"] for epoch in json.loads((run / "result.json").read_bytes())["epochs"]]


def steady(rates: Sequence[float]) -> float:
    """The median without the first epoch, in which graphs are made and files come to the page cache."""
    return statistics.median(rates[1:])


def take_rounds(measure: Callable[[], Rates], part: str, rounds: int) -> list[Rates]:
    """Measure again and again, telling each round."""
    found = []
    for number in range(1, rounds + 1):
        rates = measure()
        told = ", ".join(f"{way} {rate:,.0f}" for way, rate in rates.items())
        click.echo(f"{part}, round {number}: {told} images/s")
        found.append(rates)
    return found


def tell(title: str, rounds: Sequence[Rates]) -> None:
    """The table of medians, and the first way's ratios to the others, round by round, for other work slows all."""
    click.echo(title)
    table = Table()
    for column in ("way", "images/s", "least", "most"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way in rounds[0]:
        own = [rates[way] for rates in rounds]
        table.add_row(way, *(f"{each:,.0f}" for each in (statistics.median(own), min(own), max(own))))
    Console().print(table)
    ours, *peers = rounds[0]
    for peer in peers:
        ratios = [rates[ours] / rates[peer] for rates in rounds]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        click.echo(f"{ours}: {statistics.median(ratios):.3f} of the images per second of {peer} ({spread})")


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this one; may be repeated.")
@click.option("--data", default=default_data_place, help="A root on this machine, for loop and ring; default: ./data.")
@click.option("--input", "uri", help="A root anywhere, for input; default: that of --data.")
@click.option("--model", default="cnn", show_default=True, help="What is trained.")
@click.option("--batch", default=64, show_default=True, help="Of each rank.")
@click.option("--epochs", type=click.IntRange(2), default=4, show_default=True, help="Of each sample; one is not used.")
@click.option("--rounds", default=5, show_default=True, help="Samples of each way, in turns.")
def main(  # noqa: PLR0917
    parts: Sequence[str],
    data: str,
    uri: str | None,
    model: str,
    batch: int,
    epochs: int,
    rounds: int,
) -> None:
    """See the module."""
    click.echo(f"Python {platform.python_version()}, {versions()}; {len(os.sched_getaffinity(0))} cores")
    dataset = find_dataset(data, None)
    source = find_dataset(uri, None) if uri else dataset
    training = Training(dataset, model, batch, epochs)
    trained = f"{dataset.folder}: {model}, a batch of {batch}"
    measures: dict[str, tuple[str, Callable[[], Rates]]] = {
        LOOP: (f"{trained}, one rank", lambda: measure_loop(training)),
        RING: (f"{trained}, {RANKS} ranks", lambda: measure_ring(training)),
        INPUT: (f"{source.folder}: a consumer", lambda: measure_input(source)),
    }
    for part in parts or PARTS:
        title, measure = measures[part]
        tell(title, take_rounds(measure, part, rounds))


def versions() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)


if __name__ == "__main__":
    main()
