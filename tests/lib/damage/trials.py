"""Numbered trials in a process of their own, for what is tried may crash or hang it: each in time, and without a word.

    python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1

tells what becomes of image mutation 1234. A trial is a function of its number: it returns how it ended, and raises
whatever must not be.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[3]

MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
MOST_ALLOCATED_BYTES = 2 * MOST_BYTES  # where a process that grows ends, and not the machine
MOST_CRASHES = 20

Trial = Callable[[int], str]


@dataclass
class Report:
    """What became of trials: how many ended each way, and what must not be, by a line each; the worst of time and room.

    ``slowest`` and ``largest`` are the numbers of the trials that took ``slowest_s`` and let the process, or a child of
    its, grow to ``peak_bytes``.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: int = -1
    peak_bytes: int = 0
    largest: int = -1

    def add(self, told: dict[str, Any]) -> None:
        """One trial's line, as `tell_trials` prints it."""
        number, seconds, peak_bytes = told["number"], told["seconds"], told["peak_bytes"]
        self.outcomes[told["outcome"]] += 1
        if told["fault"]:
            self.faults.append(f"{number}: {told['fault']}")
        if seconds > MOST_SECONDS:
            self.faults.append(f"{number}: it took {seconds:.1f} s")
        if peak_bytes > MOST_BYTES >= self.peak_bytes:
            self.faults.append(f"{number}: a process grew to {peak_bytes >> 20} MiB")
        if seconds > self.slowest_s:
            self.slowest_s, self.slowest = seconds, number
        if peak_bytes > self.peak_bytes:
            self.peak_bytes, self.largest = peak_bytes, number


def run_trials(trial: Trial, first: int, count: int, timeout_s: float = 300) -> Report:
    """Run the trials of these numbers, warnings shown; a crash, a hang and what is printed are faults like others.

    After a crash or a hang the next process goes on with the next number, up to `MOST_CRASHES` times.
    """
    report, end = Report(), first + count
    for _ in range(MOST_CRASHES):
        lines, fault = _run_child(trial, first, end - first, timeout_s)
        for line in lines:
            if "outcome" in line:
                report.add(line)
            else:
                first = line["begun"]
        if not fault:
            return report
        report.faults.append(f"{first}: {fault}")
        report.outcomes["fault"] += 1
        first += 1
    return report


def _run_child(trial: Trial, first: int, count: int, timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process of its own told, and how it ended if that was too early."""
    name = f"{trial.__module__}:{trial.__qualname__}"
    words = [sys.executable, "-W", "always", "-m", "tests.lib.damage.trials", name, str(first), str(count)]
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(words, cwd=_REPOSITORY, stdout=told, stderr=errors)
        try:
            how = f"ended the process with status {child.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            how = f"does not end in {timeout_s:g} s"
        told.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in told.read().splitlines()]
        last_words = errors.read().decode(errors="replace")[-2000:]
    return lines, f"{how}; {last_words}" if child.returncode else ""


def tell_trials(trial: Trial, first: int, count: int) -> None:
    """Run trials here; a line of JSON is printed before each, and one after it."""
    for number in range(first, first + count):
        print(json.dumps({"begun": number}), flush=True)
        printed, started, outcome, fault = _printed_bytes(), time.monotonic(), "fault", ""
        try:
            outcome = trial(number)
        except Exception as error:
            fault = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        seconds = time.monotonic() - started
        if not fault and _printed_bytes() > printed:
            fault = f"it printed {os.pread(2, 200, printed).decode(errors='replace')!r}"
        told = {"number": number, "outcome": outcome, "fault": fault, "seconds": seconds, "peak_bytes": _peak_bytes()}
        print(json.dumps(told), flush=True)


def _printed_bytes() -> int:
    """How long standard error is, of which decoders in C make use, too; it is a file under `run_trials`."""
    return os.fstat(2).st_size


def _peak_bytes() -> int:
    """VmHWM of proc(5), of this process or a child of its, the larger."""
    children = (_proc(path).split() for path in Path("/proc/self/task").glob("*/children"))
    peaks = []
    for process in ["self", *(child for each in children for child in each)]:
        lines = _proc(Path(f"/proc/{process}/status")).splitlines()
        peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


def _proc(path: Path) -> str:
    """A file of proc(5); empty where the process or thread has ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_ALLOCATED_BYTES, MOST_ALLOCATED_BYTES))
    module, _, function = sys.argv[1].partition(":")
    tell_trials(getattr(importlib.import_module(module), function), int(sys.argv[2]), int(sys.argv[3]))
