"""The commands of training in this process, on one rank; see `tests.lib.in_process` for what that leaves out."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import click
import keras

import train.convert_weights
import train.evaluate
import train.export
import train.loop
import train.predict
import train.promote
import train.serving.exporter
import train.strategies.horovod_ring
from tests.lib.commands import REPOSITORY, Finished
from tests.lib.in_process import call_command
from tests.lib.ranks.strategies import SingleRank
from train.config.run_options import command
from train.config.settings import Settings
from train.monitor.monitor import Monitor
from train.runs.hooks import NO_HOOKS, Hooks
from train.strategies import Strategy


def train_here(
    *words: object, strategy: Strategy | None = None, hooks: Hooks = NO_HOOKS, cwd: Path = REPOSITORY, **variables: str
) -> Finished:
    """Run ``train/main.py`` with these ``hooks``, on the ranks of ``strategy`` if one is given."""

    def start(settings: Settings, monitor: Monitor) -> None:
        train.loop.train(settings, strategy or SingleRank(), monitor, hooks)

    try:
        return call_command(command(start), "train/main.py", *words, cwd=cwd, **variables)
    finally:
        keras.config.set_dtype_policy("float32")  # a recipe's precision is that of the process


def _without_horovod(command: click.Command, name: str) -> Callable[..., Finished]:
    """A function that runs the command ``train/NAME`` with its words and variables."""

    def run(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
        with (
            mock.patch.object(train.strategies.horovod_ring, "Horovod", lambda monitor: SingleRank()),
            mock.patch.object(train.serving.exporter, "Horovod", lambda monitor: SingleRank()),
        ):
            return call_command(command, f"train/{name}", *words, cwd=cwd, **variables)

    return run


evaluate_here = _without_horovod(train.evaluate.command, "evaluate.py")
promote_here = _without_horovod(train.promote.command, "promote.py")
export_here = _without_horovod(train.export.command, "export.py")
predict_here = _without_horovod(train.predict.command, "predict.py")
convert_here = _without_horovod(train.convert_weights.command, "convert_weights.py")
