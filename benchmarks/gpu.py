#!/usr/bin/env python3
"""How fast ResNet-50 trains on one GPU: by input and by precision, with the waits for input and the memory.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --precision bfloat16 --batch 512 --folder /tmp/gpu

Inputs are one batch that stays on the device (synthetic), pictures from slices (slices: JPEGs of 256 pixels, the
centre), and the same cut at random, resized and mirrored (augmented). Precisions are float32 (with TensorFloat-32),
bfloat16, and bfloat16 compiled (by XLA; by torch.compile). Each precision is a process of its own.

The steps are the trainer's on one rank: TensorFlow's, or PyTorch's if TensorFlow is not installed. It takes up to
8 minutes.

A figure is the median of five windows. Waiting is the part of the time in which the process waited for a batch.
"""

import dataclasses
import importlib.metadata
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from etl.values import parse_bytes
from lib import reader_data
from lib.command import COUNT, SECONDS, SIZE, benchmark, leave_out
from lib.failure import Failure
from lib.processes import call, describe_machine
from lib.results import Result, compare, print_results, print_samples
from lib.ways.gpu import DEVICES, FRAMEWORKS, GPU, INPUTS, PRECISIONS, SYNTHETIC, Job

PACKAGES = ("tensorflow", "tensorflow-cpu", "torch", "horovod", "numpy")
SLICES = 8
SHORT = {"size": "40MB", "batch": 64, "seconds": 2.0}
MIB = 1 << 20

Samples = Mapping[str, Mapping[str, Any]]  # what `lib.ways.gpu` measured, by input


@dataclass(frozen=True)
class Options:
    """The values of the command line."""

    framework: str | None
    device: str
    inputs: Sequence[str]
    precisions: Sequence[str]
    batch: int
    side: int
    size: str
    seconds: float
    folder: Path | None

    def job(self, framework: str, slices: str, precision: str) -> Job:
        """What the process of one precision does."""
        inputs = list(self.inputs or INPUTS)
        return Job(framework, self.device, slices, inputs, precision, self.batch, self.side, self.seconds)


def make_slices(folder: Path, size: str) -> str:
    """Slices of so many bytes, made if they do not exist; the folder of their manifest."""
    root = folder / f"pictures-{size}"
    reader_data.make_photographs(root, parse_bytes(size), SLICES)
    return f"{root}/slices/{reader_data.NAME}"


def choose_framework(wanted: str | None) -> str:
    """The wanted one, or the first that is installed. Raises Failure."""
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    found = next((name for name in installed if wanted in (None, name)), None)
    if found is None:
        fix = "Install it: make install GPU=1, or pip install torch"
        raise Failure("framework", wanted or " or ".join(FRAMEWORKS), "not installed here", fix)
    return found


def check_device(device: str, devices: Path = Path("/dev")) -> None:
    """Raise Failure unless the driver has made a device file for a GPU, or none is asked for."""
    if device == GPU and not any(devices.glob("nvidia[0-9]*")):
        fix = "Run it on a machine with a GPU, or give --device cpu to try the benchmark itself"
        raise Failure("GPU", f"{devices}/nvidia0", "this machine has none", fix)


def installed_versions() -> list[str]:
    """Those of `PACKAGES` that are installed."""
    installed = {each.name.replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in PACKAGES if name in installed]


def measure_precision(job: Job) -> tuple[str, Samples]:
    """Run the job in a process of its own; the device, and the samples."""
    began = time.monotonic()
    of_machine, *samples = call("lib.ways.gpu:run", dataclasses.asdict(job))
    title = f"{of_machine['device']}, {of_machine['cores']} cores: {job.framework}, {job.precision}, batch {job.batch}"
    return f"{title}, {time.monotonic() - began:.0f} s", {each["input"]: each for each in samples}


def print_precision(title: str, samples: Samples) -> None:
    """Print the table of one precision."""
    rates = {name: each["rates"] for name, each in samples.items()}
    waiting = {name: f"{each['waiting']:.0%}" for name, each in samples.items()}
    memory = {name: f"{each['bytes'] / MIB:,.0f} MiB" if each["bytes"] else "-" for name, each in samples.items()}
    print_samples(title, "images/s", rates, more={"waiting": waiting, "memory": memory})


def judge(precision: str, samples: Samples) -> list[Result]:
    """A result for each input, beside the synthetic one if that was measured."""
    results = []
    for name, each in samples.items():
        claim = f"gpu, {precision}: {name}"
        others = samples[SYNTHETIC]["rates"] if SYNTHETIC in samples and name != SYNTHETIC else None
        if others:
            results.append(compare(claim, "images/s", each["rates"], SYNTHETIC, others))
        else:
            results.append(Result(claim, "images/s", statistics.median(each["rates"])))
    return results


@benchmark(__file__, __doc__, SHORT)
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="Default: TensorFlow, if it is installed.")
@click.option("--device", type=click.Choice(DEVICES), default=GPU, show_default=True, help="cpu: to try the script.")
@click.option("--input", "inputs", multiple=True, type=click.Choice(INPUTS), help="Only this one; may be repeated.")
@click.option("--precision", "precisions", multiple=True, type=click.Choice(PRECISIONS), help="Likewise.")
@click.option("--batch", type=COUNT, default=256, show_default=True, help="Pictures of a step.")
@click.option("--side", type=COUNT, default=224, show_default=True, help="Side of the pictures in pixels.")
@click.option(
    "--size", type=SIZE, default="400MB", show_default=True, help="Bytes of the slices, of about 40 KB a picture."
)
@click.option("--seconds", type=SECONDS, default=15.0, show_default=True, help="Length of each measurement.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the slices there; default: a temporary folder.")
def main(**values: Any) -> list[Result]:
    """See the module."""
    options = Options(**values)
    try:
        check_device(options.device)
        framework = choose_framework(options.framework)
    except Failure as missing:
        leave_out(missing)
        return []
    click.echo(describe_machine(installed_versions()))
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as temporary:
        slices = make_slices((options.folder or Path(temporary)).absolute(), options.size)
        for precision in options.precisions or PRECISIONS:
            title, samples = measure_precision(options.job(framework, slices, precision))
            print_precision(title, samples)
            results += judge(precision, samples)
    print_results(results)
    return results


if __name__ == "__main__":
    main()
