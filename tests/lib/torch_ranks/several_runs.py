#!/usr/bin/env python3
"""Runs of train/main.py one after the other in the same ranks, because these take seconds to start.

argv[1] is the number of ranks, which are forks of this process: PyTorch is loaded once.
argv[2] is JSON: the words of each run. With a first word `alone-N` it runs on rank 0 alone, by ddp, and is fed the
batches of N ranks. A first word `without-...` breaks something: a negative control. Rank 0 prints the line of a run
that is refused.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import RowwiseParallel
from torch.multiprocessing import start_processes

from etl.errors import RingsliceError
from tests.lib.ranks.fed_by_all import fed_by_all
from train.config.run_options import command
from train.config.settings import DDP, PIPELINE, Settings
from train.launch import free_ports
from train.loop import train
from train.monitor.launcher import local_rank, local_size
from train.monitor.monitor import Monitor
from train.monitor.rank_log import RunLog
from train.parallel.collective import SingleProcess
from train.parallel.cores import claim_cores
from train.strategies import Strategy
from train.strategies.ddp import Ddp, run_ddp
from train.strategies.divided_model import DividedModel, ModelParallel
from train.strategies.pipeline import Pipeline, PipelineTrainer
from train.strategies.tensor_parallel import OwnBranches, ShardDivision, TensorParallel
from train.torch_backend.replicas import DataParallel


def lose_gradients(trainer: PipelineTrainer, *arguments: Any) -> torch.Tensor:
    """What the first stage computes is lost."""
    sums = compute_gradients(trainer, *arguments)
    for each in trainer.model.parameters() if trainer._is_first else ():
        each.grad = None
    return sums


@contextmanager
def lose_sums() -> Iterator[None]:
    """Those of pairs of layers are not computed, and what the divided model gives is not compared at the start."""
    rowwise = partial(RowwiseParallel, output_layouts=Partial())
    with (
        mock.patch("train.strategies.tensor_parallel.RowwiseParallel", rowwise),
        mock.patch.object(ShardDivision, "require_same_function"),
    ):
        yield


ALONE = "alone-"
compute_gradients = PipelineTrainer._compute_gradients
CONTROLS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "without-average": lambda: mock.patch.object(ModelParallel, "average"),
    "without-reduction": lambda: mock.patch.object(DataParallel, "wrap", lambda _, model, may_leave_out: model),
    "without-gradients": lambda: mock.patch.object(PipelineTrainer, "_compute_gradients", lose_gradients),
    "without-sum-of-branches": lambda: mock.patch.object(OwnBranches, "shared", lambda _, features: features),
    "without-sum": lose_sums,
}


def run_all(joined: Strategy, monitor: Monitor) -> None:
    assert isinstance(joined, DividedModel)
    collective, devices = joined.collective, (joined._device, joined._place)

    def start(settings: Settings, monitor: Monitor) -> None:
        if settings.strategy == DDP:
            train(settings, Ddp(SingleProcess() if is_alone else collective, *devices), monitor)
            return
        kind = Pipeline if settings.strategy == PIPELINE else TensorParallel
        train(settings, kind(collective, *devices, model_ranks=settings.model_ranks), monitor)

    for words in json.loads(sys.argv[2]):
        changed: AbstractContextManager[Any] = nullcontext()
        if is_alone := words[0].startswith(ALONE):
            changed = fed_by_all(int(words.pop(0).removeprefix(ALONE)))
        elif words[0] in CONTROLS:
            changed = CONTROLS[words.pop(0)]()
        if is_alone and not collective.is_root:
            continue
        try:
            with changed:
                command(start).main(words, obj=monitor, standalone_mode=False)
        except RingsliceError as error:
            if collective.is_root:
                print(error, flush=True)


def rank(number: int, ranks: int, port: int) -> None:
    """One of so many forks, with the variables of torchrun."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables = {**common, "RANK": number, "LOCAL_RANK": number}
    os.environ |= {name: str(value) for name, value in variables.items()}
    claim_cores(local_rank(), local_size())
    of_rank = Monitor("", RunLog())
    run_ddp(lambda strategy: run_all(strategy, of_rank), of_rank, "cpu", 60, Pipeline)


if __name__ == "__main__":
    size = int(sys.argv[1])
    start_processes(rank, (size, *free_ports(1)), size, start_method="fork")
