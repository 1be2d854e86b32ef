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
from typing import Any

from etl.storage.place import Place
from train.checkpoints.background import Saver
from train.checkpoints.store import FOLDER, MARKER, name_of
from train.config.settings import Settings, command
from train.monitor.heartbeat import PULSE
from train.monitor.rank_process import begin_watch, run_rank
from train.parallel.startup import loading
from train.runs.position import Position

FIRST, MIDDLE, EVALUATION, CHECKPOINT = "first-step", "mid-epoch", "evaluation", "checkpoint"
STEPS = {FIRST: 1, MIDDLE: 3, EVALUATION: 5, CHECKPOINT: 7}  # of a checkpoint: the one that is never finished
HEARD_S = 2.5  # after which the others have heard where this rank is
WHOLE_FILE = "model.safetensors"  # the first of a checkpoint's two


def come_to_grief() -> None:
    """What the unlucky rank does."""
    kind, hit = os.environ["GRIEF_KIND"], Path(os.environ["GRIEF_HIT"])
    time.sleep(HEARD_S)
    beat = PULSE.beat()
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


def disturb_checkpoint(is_unlucky: bool) -> None:
    """Rank 0 writes a checkpoint in part: then it comes to grief, or waits for another rank to do."""
    from train.trainer import commits

    def saver(run: Place, attempts: Place, keep: int, tick: Callable[[], None], **options: Any) -> Saver:
        folder = run / FOLDER / name_of(STEPS[CHECKPOINT])
        is_disturbed = False

        def halfway() -> None:
            nonlocal is_disturbed
            tick()
            if not is_disturbed and (folder / WHOLE_FILE).exists() and not (folder / MARKER).exists():
                is_disturbed = True
                if is_unlucky:
                    come_to_grief()
                else:
                    half().touch()
                    threading.Event().wait()

        return Saver(run, attempts, keep, halfway, **options)

    commits.Saver = saver  # type: ignore[assignment, attr-defined]


def half() -> Path:
    """This file says that half a checkpoint is there."""
    return Path(os.environ["GRIEF_HIT"]).with_suffix(".half")


def disturb_steps(moment: str) -> None:
    """This rank comes to grief after a step, before anything is said of it to the others or written down."""
    from train.trainer.commits import Keeper

    after_step = Keeper.after_step

    def disturbed(keeper: Keeper, position: Position, last: bool) -> Position:
        if moment == CHECKPOINT and position.step == STEPS[moment] + 1:
            while not half().exists():
                time.sleep(0.05)
            come_to_grief()
        elif moment != CHECKPOINT and position.step == STEPS[moment]:
            come_to_grief()
        return after_step(keeper, position, last)

    Keeper.after_step = disturbed  # type: ignore[method-assign, assignment]


def disturb_evaluation() -> None:
    """This rank comes to grief in the evaluation of an epoch."""
    from train import loop

    loop.evaluate = lambda *arguments: come_to_grief()  # type: ignore[attr-defined, assignment]


def start(settings: Settings) -> None:
    """What train/main.py does, and then the grief."""
    begin_watch(settings.stall_timeout_s)
    with loading():
        from train.loop import train
    moment, rank = os.environ["GRIEF_MOMENT"], int(os.environ["HOROVOD_RANK"])
    is_unlucky = rank == int(os.environ["GRIEF_RANK"])
    if moment == CHECKPOINT and rank == 0:
        disturb_checkpoint(is_unlucky)
    elif is_unlucky and moment == EVALUATION:
        disturb_evaluation()
    elif is_unlucky:
        disturb_steps(moment)
    train(settings)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")
