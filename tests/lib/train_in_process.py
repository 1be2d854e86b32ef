"""The commands of training in this process, on one rank; see `tests.lib.in_process` for what that leaves out."""

from pathlib import Path
from unittest import mock

import train.evaluate
import train.export
import train.loop
import train.predict
import train.promote
import train.serving.exporter
import train.strategies.horovod_ring
from tests.lib.commands import REPOSITORY, Finished
from tests.lib.in_process import call_command
from tests.lib.ranks.strategies import Alone
from train.config.settings import Settings, command
from train.monitor.monitor import Monitor
from train.runs.hooks import NO_HOOKS, Hooks
from train.strategies import Strategy


def train_here(
    *words: object, strategy: Strategy | None = None, hooks: Hooks = NO_HOOKS, cwd: Path = REPOSITORY, **variables: str
) -> Finished:
    """Run ``train/main.py`` with these ``hooks``, on the ranks of ``strategy`` if one is given."""

    def start(settings: Settings, monitor: Monitor) -> None:
        train.loop.train(settings, strategy or Alone(), monitor, hooks)

    return call_command(command(start), "train/main.py", *words, cwd=cwd, **variables)


def evaluate_here(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``train/evaluate.py``."""
    with mock.patch.object(train.strategies.horovod_ring, "Horovod", lambda monitor: Alone()):
        return call_command(train.evaluate.command, "train/evaluate.py", *words, cwd=cwd, **variables)


def promote_here(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``train/promote.py``."""
    with mock.patch.object(train.strategies.horovod_ring, "Horovod", lambda monitor: Alone()):
        return call_command(train.promote.command, "train/promote.py", *words, cwd=cwd, **variables)


def export_here(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``train/export.py``."""
    with mock.patch.object(train.serving.exporter, "Horovod", lambda monitor: Alone()):
        return call_command(train.export.command, "train/export.py", *words, cwd=cwd, **variables)


def predict_here(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``train/predict.py``."""
    return call_command(train.predict.command, "train/predict.py", *words, cwd=cwd, **variables)
