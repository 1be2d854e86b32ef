"""Take training steps of ResNet-50 on a GPU, and measure them: one process for each precision, all inputs in turn."""

import importlib
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

SYNTHETIC, SLICES, AUGMENTED = INPUTS = ("synthetic", "slices", "augmented")
FLOAT32, BFLOAT16, COMPILED = PRECISIONS = ("float32", "bfloat16", "bfloat16 compiled")
TENSORFLOW, TORCH = FRAMEWORKS = ("tensorflow", "torch")
GPU, CPU = DEVICES = ("gpu", "cpu")

WARM_UP_STEPS = 3  # of each input: the first ones trace, compile and choose kernels
WINDOWS = 5  # of each measurement
STEPS_AHEAD = 2  # that are given to the device before the first of them has ended


@dataclass(frozen=True)
class Job:
    """What a process does. ``slices`` is the URI of the manifest's folder; ``side`` that of the pictures in pixels."""

    framework: str
    device: str
    slices: str
    inputs: list[str]
    precision: str
    batch: int
    side: int
    seconds: float


class Steps(Protocol):
    """Training steps of a framework; made for a `Job`, on the device that ``device`` names."""

    device: str

    def batches(self, source: str) -> Iterator[Any]:
        """Batches of one of `INPUTS`, without an end, as `step` takes them."""
        ...

    def step(self, batch: Any) -> Any:
        """Take a step; the result may be computed later."""
        ...

    def wait(self, result: Any) -> None:
        """Wait until the step with this result has ended."""
        ...

    def peak_bytes(self) -> int:
        """The most memory of the device that was in use; 0 if that is not known."""
        ...


def measure(steps: Steps, source: str, batch: int, seconds: float) -> dict[str, Any]:
    """Images per second in each of `WINDOWS`, and the part of the time in which a batch was waited for."""
    batches = steps.batches(source)
    for _ in range(WARM_UP_STEPS):
        steps.wait(steps.step(next(batches)))
    rates, waited, elapsed = [], 0.0, 0.0
    for _ in range(WINDOWS):
        began, taken, running = time.perf_counter(), 0, deque[Any]()
        while time.perf_counter() - began < seconds / WINDOWS:
            asked = time.perf_counter()
            each = next(batches)
            waited += time.perf_counter() - asked
            running.append(steps.step(each))
            taken += 1
            if len(running) > STEPS_AHEAD:
                steps.wait(running.popleft())
        for result in running:
            steps.wait(result)
        window = time.perf_counter() - began
        rates.append(taken * batch / window)
        elapsed += window
    return {"rates": rates, "waiting": waited / elapsed}


def run(fields: dict[str, Any]) -> Iterator[Any]:
    """Do the job that has these fields; yield the device, and what `measure` returns for each input."""
    job = Job(**fields)
    steps: Steps = importlib.import_module(f"lib.ways.gpu_{job.framework}").make_steps(job)
    yield {"device": steps.device, "cores": len(os.sched_getaffinity(0))}
    for source in job.inputs:
        yield {"input": source, **measure(steps, source, job.batch, job.seconds), "bytes": steps.peak_bytes()}
