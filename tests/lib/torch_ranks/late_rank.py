#!/usr/bin/env python3
"""Two ranks of `ddp`, one of which comes late to what all do together, or not at all; each prints what it ended with.

argv: a file that is made once the ranks are done.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed
from torch.distributed.distributed_c10d import set_timeout

from etl.errors import EnvironmentFailure
from tests.lib.commands import wait_until
from train.monitor.monitor import Monitor
from train.strategies import Strategy
from train.strategies.ddp import ProcessGroup, run_ddp

DONE = Path(sys.argv[1])
STEP, ALONE_S = timedelta(seconds=1), 3.0  # the timeout of a step, and for how long rank 0 works alone


def work_alone() -> str:
    time.sleep(ALONE_S)
    return "done"


def meet(strategy: Strategy) -> None:
    rank = strategy.collective.rank
    group = ProcessGroup(Monitor(), 60)
    set_timeout(STEP, torch.distributed.group.WORLD)
    print(f"{rank}: {group.run_on_root(work_alone)}", flush=True)
    for late in (1, 0):
        group = ProcessGroup(Monitor(), 60)
        group._timeout = STEP
        set_timeout(STEP, group._objects)
        if rank == late:
            wait_until(DONE.with_suffix(f".{late}").exists)
            continue
        try:
            group.gather_object(rank)
        except EnvironmentFailure as error:
            print(f"{rank}: {error}", flush=True)
        DONE.with_suffix(f".{late}").touch()


if __name__ == "__main__":
    run_ddp(meet, Monitor(), "cpu", 0)
