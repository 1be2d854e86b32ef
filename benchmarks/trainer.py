#!/usr/bin/env python3
"""How fast the trainer trains: its loop, its ring, and its input, each against a peer, in turns.

    python benchmarks/trainer.py --data data/fashion
    python benchmarks/trainer.py --part ring --model resnet50 --batch 16 --noise 640 --side 96
    python benchmarks/trainer.py --part input --input hdfs://127.0.0.1:8020/datasets/fashion

Each sample is a process of its own, started by the command that a user gives. Four parts:

- loop: one rank, which reads slices and decodes them, against Keras' `fit` of the same model, with the same batch,
  optimizer, cores and threads, on the decoded pictures in memory; without XLA, and with the choice of Keras (auto).
- ring: `horovodrun -np 2`, each rank on its half of the cores, against two independent runs of one rank on such a half
  each, side by side; their images per second are added up.
- ddp, if --torch is an environment with PyTorch: `torchrun --nproc-per-node 2`, --strategy ddp, against `horovodrun -np
  2`; each rank on its half of the cores.
- input: a consumer that works on each batch for a fixed time, such that it takes 80 percent of the pictures that can be
  read from --input (it sleeps, as for a busy accelerator, and takes one batch ahead): on the pictures from there,
  against one batch in memory.

A figure is the median of the epochs after the first; a ratio is the median of the ratios of the rounds.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from etl.errors import UsageError
from etl.storage.place import Place, default_data_place, open_place
from lib.command import COUNT, SECONDS, benchmark
from lib.failure import Failure
from lib.hdfs import check_hdfs
from lib.noise import make_normalized
from lib.processes import (
    REPOSITORY,
    call,
    command_failure,
    describe_machine,
    environment,
    require_program,
    run_quietly,
    with_repository,
)
from lib.results import Result, compare, format_figure, print_results, print_samples
from lib.ways.trainer import Job
from train.parallel.cores import own_cores, share_cores
from train.runs.folder import Dataset, find_dataset

TRAIN = REPOSITORY / "train" / "main.py"
LOOP, RING, DDP, INPUT = PARTS = ("loop", "ring", "ddp", "input")
VERSIONS = ("tensorflow-cpu", "keras", "horovod", "pyarrow", "numpy")
RANKS = 2
TORCH = REPOSITORY / ".venvs/torch"
LR = 0.02
SHORT = {"noise": 4_000, "epochs": 3, "rounds": 1, "seconds": 2.0}

Rates = dict[str, float]  # images per second of one round, by way


@dataclasses.dataclass(frozen=True)
class Options:
    """The values of the command line."""

    parts: Sequence[str]
    data: str | None
    noise: int
    side: int
    uri: str | None
    model: str
    batch: int
    epochs: int
    rounds: int
    seconds: float
    torch: Path


@dataclasses.dataclass(frozen=True)
class Training:
    """What all ways train."""

    dataset: Dataset
    model: str
    batch: int
    epochs: int

    @property
    def words(self) -> list[str]:
        """The trainer and its options, except for the run."""
        given = {"--data": self.dataset.root, "--name": self.dataset.name, "--model": self.model, "--batch": self.batch}
        options = given | {"--epochs": self.epochs, "--lr": LR}
        return [str(TRAIN), *(str(word) for option in options.items() for word in option)]


def measure_loop(training: Training) -> Rates:
    """One rank; `fit` without XLA; `fit` with the choice of Keras."""
    job = Job("fit", training.dataset.folder.uri, training.model, training.batch, training.epochs, LR)
    rates = {"ringslice": side_by_side(training, [[sys.executable, *training.words]])}
    for name, jit in (("fit", False), ("fit, jit auto", "auto")):
        rates[name] = steady(run_job(dataclasses.replace(job, jit=jit)))
    return rates


def measure_ring(training: Training) -> Rates:
    """Two ranks; two independent runs of one rank."""
    cores = own_cores()
    copies = []
    for copy in range(RANKS):
        own = ",".join(str(core) for core in share_cores(cores, copy, RANKS))
        copies.append(["taskset", "--cpu-list", own, sys.executable, *training.words])
    return {"ring": side_by_side(training, [in_ring(training)]), "copies": side_by_side(training, copies)}


def in_ring(training: Training) -> list[str]:
    return ["horovodrun", "-np", str(RANKS), *training.words]


def measure_ddp(training: Training, environment: Path) -> Rates:
    """Two ranks of PyTorch, whose environment is given; two ranks of Horovod."""
    launcher = [str(environment / "bin/python"), "-m", "torch.distributed.run", "--standalone"]
    ranks = [*launcher, "--nproc-per-node", str(RANKS), "--", *training.words, "--strategy", "ddp"]
    return {"ddp": side_by_side(training, [ranks]), "horovod": side_by_side(training, [in_ring(training)])}


def measure_input(dataset: Dataset, seconds: float) -> Rates:
    """A consumer of most of what can be read, on the input and on one batch; and all that can be read."""
    return dict(run_job(Job("input", dataset.folder.uri, seconds=seconds)))


def side_by_side(training: Training, commands: Sequence[Sequence[str]]) -> float:
    """Start these trainings at once, each with a run that is deleted afterwards; the sum of their images per second."""
    runs = open_place(training.dataset.root) / "runs"
    places = [runs / f"benchmark-{os.getpid()}-{number}" for number in range(len(commands))]
    running: list[subprocess.Popen[str]] = []
    try:
        for words, place in zip(commands, places, strict=True):
            running.append(start([*words, "--run", place.name]))
        for each, words in zip(running, commands, strict=True):
            finish(each, words)
        return sum(steady(epoch_rates(place)) for place in places)
    finally:
        for each in running:  # if one failed
            each.terminate()
            each.wait()
        for place in places:
            place.delete()


def start(words: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words, env=with_repository(environment()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(running: "subprocess.Popen[str]", words: Sequence[str]) -> None:
    """Wait for its end. Raises Failure, and prints its errors, if it failed."""
    _, errors = running.communicate()
    if running.returncode:
        click.echo(errors, err=True)
        raise command_failure(words, running.returncode)


def run_job(job: Job) -> Any:
    """The rates that a way of `lib.ways.trainer` yields."""
    return call("lib.ways.trainer:run", dataclasses.asdict(job))[0]


def epoch_rates(run: Place) -> list[float]:
    return [epoch["images_per_s"] for epoch in json.loads((run / "result.json").read_bytes())["epochs"]]


def steady(rates: Sequence[float]) -> float:
    """The median without the first epoch, in which graphs are traced and files are read into the page cache."""
    return statistics.median(rates[1:])


def find_slices(option: str, root: str) -> Dataset:
    """The newest finished slices of a root. Raises Failure."""
    try:
        return find_dataset(root, None)
    except UsageError as error:
        fix = "Make some: ringslice pipeline SOURCE ROOT, or give --noise 4000 instead of --data"
        raise Failure(option, root, str(error).partition(";")[0], fix) from None


def measure_parts(parts: Sequence[str], options: Options, data: str) -> list[Result]:
    """Take the rounds of each part; its results."""
    dataset = find_slices("--data", data)
    source = find_slices("--input", options.uri) if options.uri else dataset
    training = Training(dataset, options.model, options.batch, options.epochs)
    trained = f"{dataset.folder}: {options.model}, a batch of {options.batch}"
    measures: dict[str, tuple[str, Callable[[], Rates]]] = {
        LOOP: (f"{trained}, one rank", lambda: measure_loop(training)),
        RING: (f"{trained}, {RANKS} ranks", lambda: measure_ring(training)),
        DDP: (f"{trained}, {RANKS} ranks", lambda: measure_ddp(training, options.torch)),
        INPUT: (f"{source.folder}: a consumer", lambda: measure_input(source, options.seconds)),
    }
    results = []
    for part in parts:
        title, measure = measures[part]
        results += judge(part, title, take_rounds(measure, part, options.rounds))
    return results


def take_rounds(measure: Callable[[], Rates], part: str, rounds: int) -> list[Rates]:
    """Measure so many times, and print each round."""
    found = []
    for number in range(1, rounds + 1):
        rates = measure()
        line = ", ".join(f"{way} {format_figure(rate)}" for way, rate in rates.items())
        click.echo(f"{part}, round {number}: {line} images/s")
        found.append(rates)
    return found


def judge(part: str, title: str, rounds: Sequence[Rates]) -> list[Result]:
    """Print the table of medians; a result for each way except the first, which is compared with it."""
    rates = {way: [each[way] for each in rounds] for way in rounds[0]}
    print_samples(title, "images/s", rates)
    ours, *peers = rates
    results = []
    for peer in peers:
        ratios = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
        click.echo(f"{ours} to {peer}: {min(ratios):.3f} to {max(ratios):.3f}")
        results.append(compare(f"trainer, {part}: {ours}", "images/s", rates[ours], peer, rates[peer]))
    return results


def make_noise(folder: Path, images: int, side: int) -> str:
    """A dataset of so many images of noise, square and grey; its root."""
    root = make_normalized(folder, images, side, channels=1)
    run_quietly("ringslice", "shard", root)
    return str(root)


@benchmark(__file__, __doc__, SHORT)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only this one; may be repeated.")
@click.option("--data", help="A root on this machine, for loop and ring; default: ./data.")
@click.option(
    "--noise",
    type=click.IntRange(min=0),
    default=0,
    help="Train on so many made images of noise if --data is not given.",
)
@click.option("--side", type=COUNT, default=28, show_default=True, help="Pixels of a side of these images.")
@click.option("--input", "uri", help="A root anywhere, for input; default: that of --data.")
@click.option("--model", default="cnn", show_default=True, help="The model that is trained.")
@click.option("--batch", type=COUNT, default=64, show_default=True, help="Batch of each rank.")
@click.option("--epochs", type=click.IntRange(2), default=4, show_default=True, help="Epochs; the first is not used.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Samples of each way, in turns.")
@click.option(
    "--torch",
    type=click.Path(path_type=Path),
    default=TORCH,
    show_default=".venvs/torch",
    help="An environment with PyTorch, for ddp.",
)
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Seconds of each consumer of input.")
def main(**values: Any) -> list[Result]:
    """See the module."""
    options = Options(**values)
    has_torch = (options.torch / "bin/python").exists()
    parts = options.parts or [part for part in PARTS if part != DDP or has_torch]
    if DDP in parts and not has_torch:
        raise Failure("--torch", str(options.torch), "no bin/python there", "Make it: make torch")
    if options.uri and "://" in options.uri:
        check_hdfs("--input", options.uri, needs_command=False)
    if RING in parts:
        require_program("taskset", "Install it: apt-get install util-linux")
    if RING in parts or DDP in parts:
        require_program("horovodrun", "Install it: make install")
    click.echo(describe_machine(VERSIONS))
    with tempfile.TemporaryDirectory() as temporary:
        made = make_noise(Path(temporary), options.noise, options.side) if options.noise and not options.data else None
        results = measure_parts(parts, options, made or options.data or default_data_place())
    print_results(results)
    return results


if __name__ == "__main__":
    main()
