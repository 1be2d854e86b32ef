"""Numbered trials in a child process, which they may crash or hang: what each returns, raises or prints.

    python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1

runs trial 1234. A trial is a function of its number: it returns its outcome and raises whatever must not be.
"""

import importlib
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

from tests.lib.commands import REPOSITORY

MAX_ALLOCATED_BYTES = 2 << 30  # of the process and of each child: more is a MemoryError

Trial = Callable[[int], str]


def run_trials(trial: Trial, count: int, timeout_s: float = 1200) -> Counter[str]:
    """How many of the trials 0 to ``count`` - 1 had each outcome.

    Raises AssertionError, with the number of the trial, if one raises or prints something, or ends the process.
    """
    name = f"{trial.__module__}:{trial.__qualname__}"
    words = [sys.executable, "-W", "always", "-m", "tests.lib.damage.trials", name, "0", str(count)]
    done = subprocess.run(
        words, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
    )
    outcomes = done.stdout.splitlines()
    is_right = done.returncode == 0 and not done.stderr and len(outcomes) == count
    assert is_right, f"trial {len(outcomes)}, status {done.returncode}:\n{done.stderr}"
    return Counter(outcomes)


if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    first, number = map(int, sys.argv[2:])
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_ALLOCATED_BYTES, MAX_ALLOCATED_BYTES))
    run = getattr(importlib.import_module(module), function)
    for each in range(first, first + number):
        print(run(each), flush=True)
