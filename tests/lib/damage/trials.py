"""Numbered trials in a child process, which they may crash or hang: what each returns, raises or prints.

    python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1

runs trial 1234. A trial is a function of its number: it returns its outcome and raises whatever must not be.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_REPOSITORY = Path(__file__).parents[3]

MOST_ALLOCATED_BYTES = 2 << 30  # of the process and of each child: more is a MemoryError
MOST_CRASHES = 20

Trial = Callable[[int], str]


@dataclass
class Report:
    """How many trials had each outcome, and a line for each fault."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, number: int, outcome: str, fault: str) -> None:
        self.outcomes[outcome] += 1
        if fault:
            self.faults.append(f"{number}: {fault}")


def run_trials(trial: Trial, first: int, count: int, timeout_s: float = 300) -> Report:
    """Run the trials of these numbers, warnings shown. A crash, a hang and anything on stderr are faults.

    After a crash or a hang the next process continues with the next number, up to `MOST_CRASHES` times.
    """
    report, number, end = Report(), first, first + count
    child = [
        sys.executable,
        "-W",
        "always",
        "-m",
        "tests.lib.damage.trials",
        f"{trial.__module__}:{trial.__qualname__}",
    ]
    for _ in range(MOST_CRASHES):
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                words = [*child, str(number), str(end - number)]
                done = subprocess.run(words, cwd=_REPOSITORY, stdout=output, stderr=errors, timeout=timeout_s)
                how = f"ended the process with status {done.returncode}"
            except subprocess.TimeoutExpired:
                how = f"does not end in {timeout_s:g} s"
            output.seek(0)
            errors.seek(0)
            for line in output.read().splitlines():
                report.add(number, *json.loads(line))
                number += 1
            if number == end:
                return report
            report.add(number, "fault", f"{how}; {errors.read().decode(errors='replace')[-2000:]}")
            number += 1
    return report


def _run_here(trial: Trial, first: int, count: int) -> None:
    """Print outcome and fault of each trial, as JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_ALLOCATED_BYTES, MOST_ALLOCATED_BYTES))
    for number in range(first, first + count):
        printed, outcome, fault = os.fstat(2).st_size, "fault", ""  # stderr is a file, which decoders in C write to
        try:
            outcome = trial(number)
        except Exception as error:
            fault = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        if not fault and os.fstat(2).st_size > printed:
            fault = f"it printed {os.pread(2, 200, printed).decode(errors='replace')!r}"
        print(json.dumps([outcome, fault]), flush=True)


if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    _run_here(getattr(importlib.import_module(module), function), int(sys.argv[2]), int(sys.argv[3]))
