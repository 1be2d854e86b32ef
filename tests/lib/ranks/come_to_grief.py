#!/usr/bin/env python3
"""train/main.py, one of whose ranks fails at one moment.

    horovodrun -np 4 tests/lib/ranks/come_to_grief.py OPTION …

The environment says which rank (``GRIEF_RANK``), when (``GRIEF_MOMENT``) and how (``GRIEF_KIND``). Just before,
``GRIEF_HIT`` is written: the rank, and the step it is in.
"""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from etl.storage.place import Place
from train.checkpoints.store import name_of
from train.config.settings import Settings, command
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.parallel.startup import prepare_import
from train.runs.hooks import Hooks, Running
from train.runs.position import Metrics, Position

FIRST, MIDDLE, EVALUATION, CHECKPOINT = "first-step", "mid-epoch", "evaluation", "checkpoint"
STEPS = {FIRST: 1, MIDDLE: 3, EVALUATION: 5, CHECKPOINT: 7}  # of a checkpoint: the one that is never finished
HEARD_S = 2.5  # after which the others have heard where this rank is
WHOLE_FILE = "model.safetensors"  # the first of a checkpoint's two


def come_to_grief(monitor: Monitor) -> None:
    """What the unlucky rank does."""
    kind, hit = os.environ["GRIEF_KIND"], Path(os.environ["GRIEF_HIT"])
    time.sleep(HEARD_S)
    beat = monitor.beat()
    hit.with_suffix(".new").write_text(f"rank {beat.rank}, epoch {beat.epoch}, step {beat.step}")
    hit.with_suffix(".new").rename(hit)
    if kind == "raises":
        raise RuntimeError("no such thing")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "disk":  # no byte more can be written to any file: the kernel says so
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    elif kind == "hdfs":
        os.kill(int(os.environ["GRIEF_NAMENODE"]), signal.SIGKILL)
    else:
        raise ValueError(kind)


class CheckpointFailure(Hooks):
    """Rank 0 writes a checkpoint in part: then it fails if it ``is_unlucky``, or waits until another rank does."""

    def __init__(self, monitor: Monitor, is_unlucky: bool) -> None:
        self._monitor, self._is_unlucky = monitor, is_unlucky

    def on_checkpoint_file(self, file: Place) -> None:
        if file.parent.name != name_of(STEPS[CHECKPOINT]) or file.name == WHOLE_FILE:
            return
        if self._is_unlucky:
            come_to_grief(self._monitor)
        half().touch()
        threading.Event().wait()


def half() -> Path:
    """This file says that half a checkpoint is there."""
    return Path(os.environ["GRIEF_HIT"]).with_suffix(".half")


class StepFailure(Hooks):
    """This rank fails after a step, before that is committed or logged."""

    def __init__(self, monitor: Monitor, moment: str) -> None:
        self._monitor, self._moment = monitor, moment

    def on_step(self, running: Running, position: Position) -> None:
        if self._moment == CHECKPOINT and position.step == STEPS[CHECKPOINT] + 1:
            while not half().exists():
                time.sleep(0.05)
            come_to_grief(self._monitor)
        elif self._moment != CHECKPOINT and position.step == STEPS[self._moment]:
            come_to_grief(self._monitor)


class EvaluationFailure(Hooks):
    """This rank fails in the evaluation of an epoch."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def on_evaluation(self, split: str, evaluate: Callable[[], Metrics]) -> Metrics:
        come_to_grief(self._monitor)
        return evaluate()


def hooks_of(monitor: Monitor, moment: str, is_unlucky: bool, is_root: bool) -> Hooks:
    """What goes wrong on this rank."""
    if moment == CHECKPOINT and is_root:
        return CheckpointFailure(monitor, is_unlucky)
    if not is_unlucky:
        return Hooks()
    return EvaluationFailure(monitor) if moment == EVALUATION else StepFailure(monitor, moment)


def start(settings: Settings, monitor: Monitor) -> None:
    """Train as train/main.py does; this rank may fail."""
    monitor.start(settings.stall_timeout_s)
    with prepare_import():
        from train.loop import train
        from train.strategies.horovod_ring import run_on_ranks
    rank = int(os.environ["HOROVOD_RANK"])
    is_unlucky = rank == int(os.environ["GRIEF_RANK"])
    hooks = hooks_of(monitor, os.environ["GRIEF_MOMENT"], is_unlucky, is_root=rank == 0)
    run_on_ranks(lambda strategy: train(settings, strategy, monitor, hooks), monitor, settings.device)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")
