"""Numbered trials in a child process, which they may crash or hang: what each returns, raises or prints.

    python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1

runs trial 1234. A trial is a function of its number: it returns its outcome and raises whatever must not be.
"""

import importlib
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

_REPOSITORY = Path(__file__).parents[3]

MAX_ALLOCATED_BYTES = 2 << 30  # of the process and of each child: more is a MemoryError

Trial = Callable[[int], str]


def run_trials(trial: Trial, count: int, timeout_s: float = 1200) -> Counter[str]:
    """How many of the trials 0 to ``count`` - 1 had each outcome; warnings are shown.

    Raises AssertionError with a line for each that raised or printed something, and for a crash, which ends them.
    """
    name = f"{trial.__module__}:{trial.__qualname__}"
    words = [sys.executable, "-W", "always", "-m", "tests.lib.damage.trials", name, "0", str(count)]
    done = subprocess.run(
        words, cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False
    )
    outcomes: Counter[str] = Counter()
    faults = []
    for line in done.stdout.decode(errors="replace").splitlines():
        number = outcomes.total()
        if line.startswith('{"outcome": '):
            outcomes[json.loads(line)["outcome"]] += 1
        else:
            faults.append(f"{number}: {line}")
    if done.returncode or outcomes.total() < count:
        faults.append(f"{outcomes.total()}: ended the process with status {done.returncode}")
    assert not faults, "\n".join(faults)
    return outcomes


def _run_here(trial: Trial, first: int, count: int) -> None:
    """Print the outcome of each trial as JSON, and before it what it raised."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_ALLOCATED_BYTES, MAX_ALLOCATED_BYTES))
    for number in range(first, first + count):
        outcome = "fault"
        try:
            outcome = trial(number)
        except Exception as error:
            print("; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]))
        print(json.dumps({"outcome": outcome}), flush=True)


if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    _run_here(getattr(importlib.import_module(module), function), int(sys.argv[2]), int(sys.argv[3]))
