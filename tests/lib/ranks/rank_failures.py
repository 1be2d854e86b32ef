#!/usr/bin/env python3
"""train/main.py, one of whose ranks is killed at one moment, or kills the NameNode.

    horovodrun -np 3 tests/lib/ranks/rank_failures.py OPTION …

The environment has the rank (``FAILING_RANK``), the moment (``FAILURE_MOMENT``) and, if it is the NameNode that is
killed, its process (``FAILURE_NAMENODE``). Just before, ``FAILURE_FILE`` is written: the rank, and the step it is in.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etl.storage.place import Place
from train.checkpoints.store import name_of
from train.config.run_options import command
from train.config.settings import Settings
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.parallel.startup import prepare_import
from train.runs.hooks import Hooks
from train.runs.position import Metrics, Position

FIRST, MIDDLE, EVALUATION, CHECKPOINT = "first-step", "mid-epoch", "evaluation", "checkpoint"
STEPS = {FIRST: 1, MIDDLE: 3, EVALUATION: 7, CHECKPOINT: 9}  # of a checkpoint: the one that is never finished
OPTIONS = (
    *("--model", "tests.lib.ranks.tiny:tiny", "--batch", "72", "--lr", "0.04", "--augment", "crop,flip"),
    *("--epochs", "2", "--checkpoint-steps", "1", "--keep", "1000", "--deterministic", "--audit"),
)
BEATS_S = 2.5  # after which the others have this rank's position
WHOLE_FILE = "model.safetensors"  # the first of a checkpoint's two


class Failure(Hooks):
    """This rank fails at ``moment``, if it ``is_failing``; at CHECKPOINT rank 0 has written half of one by then."""

    def __init__(self, monitor: Monitor, moment: str, is_failing: bool) -> None:
        self._monitor, self._moment, self._is_failing = monitor, moment, is_failing
        self._file = Path(os.environ["FAILURE_FILE"])
        self._half = self._file.with_suffix(".half")  # exists once half a checkpoint is there

    def on_step(self, running: Any, position: Position) -> None:
        if self._moment == CHECKPOINT:
            if self._is_failing and not running.collective.is_root and position.step == STEPS[CHECKPOINT] + 1:
                while not self._half.exists():
                    time.sleep(0.05)
                self._fail()
        elif self._moment != EVALUATION and position.step == STEPS[self._moment]:
            self._fail()

    def on_evaluation(self, split: str, evaluate: Callable[[], Metrics]) -> Metrics:
        if self._moment == EVALUATION:
            self._fail()
        return evaluate()

    def on_checkpoint_file(self, file: Place) -> None:
        if self._moment == CHECKPOINT and file.parent.name == name_of(STEPS[CHECKPOINT]) and file.name != WHOLE_FILE:
            self._fail()
            if self._is_failing:
                return  # it has killed the NameNode, and is the one that misses it
            self._half.touch()
            threading.Event().wait()

    def _fail(self) -> None:
        if not self._is_failing:
            return
        time.sleep(BEATS_S)
        beat = self._monitor.beat()
        self._file.with_suffix(".new").write_text(f"rank {beat.rank}, epoch {beat.epoch}, step {beat.step}")
        self._file.with_suffix(".new").rename(self._file)
        os.kill(int(os.environ.get("FAILURE_NAMENODE", os.getpid())), signal.SIGKILL)


def start(settings: Settings, monitor: Monitor) -> None:
    """Train as train/main.py does; this rank may fail."""
    monitor.start(settings.stall_timeout_s)
    with prepare_import():
        from train.loop import train
        from train.strategies.horovod_ring import run_on_ranks
    is_failing = os.environ["HOROVOD_RANK"] == os.environ["FAILING_RANK"]
    hooks = Failure(monitor, os.environ["FAILURE_MOMENT"], is_failing)
    run_on_ranks(lambda strategy: train(settings, strategy, monitor, hooks), monitor, settings.device)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")
