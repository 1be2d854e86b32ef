"""Calls at certain moments of a run, for `train.loop.train`. Tests observe and disturb runs with them."""

from collections.abc import Callable
from typing import Any

from etl.storage.place import Place
from train.runs.position import Metrics, Position


class Hooks:
    """Called on every rank; by default nothing is done. What a hook raises ends the run as a defect of it."""

    def on_step(self, running: Any, position: Position) -> None:
        """After the step that led to ``position``, before it is committed or logged; ``running`` is the `Training`."""

    def on_evaluation(self, split: str, evaluate: Callable[[], Metrics]) -> Metrics:
        """In place of ``evaluate``, which computes the metrics of ``split`` over all ranks; returns them."""
        return evaluate()

    def on_checkpoint_file(self, file: Place) -> None:
        """Before this file of a checkpoint is written (the marker is the last), on rank 0, in the thread that does it.

        An OSError is a failure of the storage.
        """


NO_HOOKS = Hooks()
