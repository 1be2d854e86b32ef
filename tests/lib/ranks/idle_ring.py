#!/usr/bin/env python3
"""How often the threads of each rank go to sleep in `IDLE_S` in which no rank has a tensor.

horovodrun -np 2 tests/lib/ranks/idle_ring.py
"""

import time
from pathlib import Path

import numpy as np

from tests.lib.ranks.results import print_result
from train.parallel.startup import prepare_import

with prepare_import():
    from train.monitor.monitor import Monitor
    from train.strategies.horovod_ring import Ring

IDLE_S = 2.0


def sleeps() -> int:
    """How often any thread of this process has waited for something."""
    result = [(task / "status").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(int(each.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for each in result)


def main() -> None:
    ring = Ring(Monitor())
    ring.all_reduce(np.ones(1))
    before = sleeps()
    time.sleep(IDLE_S)
    slept = sleeps() - before
    print_result("idle", slept=slept)
    ring.close()


if __name__ == "__main__":
    main()
