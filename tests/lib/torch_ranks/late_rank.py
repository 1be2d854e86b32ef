#!/usr/bin/env python3
"""Rank 0 of two works alone for longer than a step may take, twice; then each waits for a rank that does not come."""

import time
from datetime import timedelta
from unittest import mock

import click
import numpy as np
import torch.distributed
from torch.distributed.distributed_c10d import set_timeout

from etl.errors import EnvironmentFailure
from train.monitor.monitor import Monitor
from train.strategies import Strategy, ddp

STEP, ALONE_S = timedelta(seconds=1), 3.0  # the timeout of a step, and for how long rank 0 works alone
TIMEOUT_S = 10.0  # for a rank that does not come; in it, both must make a group
END = timedelta(seconds=60)  # for both to have given up: rank 0 must find rank 1 late, not lost


def work_alone() -> str:
    time.sleep(ALONE_S)
    return "done"


def meet(strategy: Strategy) -> None:
    rank = strategy.collective.rank
    group = ddp.ProcessGroup(Monitor(), 1e15)
    with mock.patch.object(ddp, "MIN_TIMEOUT_S", TIMEOUT_S):
        of_ranks = [ddp.ProcessGroup(Monitor(), 0.1) for _ in range(strategy.collective.size)]
    set_timeout(STEP, torch.distributed.group.WORLD)
    click.echo(f"{rank}: {group.run_on_root(work_alone)}")  # in one write: lines of ranks must not mix
    if rank == 0:
        work_alone()
    click.echo(f"{rank}: {group.all_reduce(np.array([rank + 1])).item()}")
    try:
        of_ranks[rank].gather_object(rank)  # to which the other one does not come
    except EnvironmentFailure as error:
        click.echo(f"{rank}: {error}")
    set_timeout(END, torch.distributed.group.WORLD)
    torch.distributed.barrier()


if __name__ == "__main__":
    ddp.run_ddp(meet, Monitor(), "cpu", 0)
