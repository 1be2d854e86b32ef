"""Checkpoints of a run: rank 0 writes them in the background and restores them; all ranks decide on them alike."""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from etl.errors import DataError, UsageError
from train.checkpoints import store
from train.checkpoints.background import Saver
from train.checkpoints.conversion import CONVERSIONS
from train.checkpoints.store import DamagedError
from train.config.stopping import scores_of
from train.monitor.heartbeat import LOADING, SAVING
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective, HostsChanged
from train.parallel.trainer import Trainer
from train.runs.data import Data
from train.runs.divergence import diverged
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.metrics_log import MetricsLog
from train.runs.position import Metrics, Position
from train.runs.run import Run, require_resumable


class Checkpointer:
    """A context: what is being written when its block fails stays unfinished.

    Before a checkpoint, the ``metrics`` up to its step are written.
    """

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        collective: Collective,
        monitor: Monitor,
        *,
        metrics: MetricsLog,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._run, self._trainer, self._collective, self._monitor = run, trainer, collective, monitor
        self._metrics = metrics
        self._step: int | None = None  # of the last checkpoint, on all ranks
        self._saver: Saver | None = None
        if collective.is_root:
            self._saver = Saver(
                run.folder,
                run.staging,
                run.settings.keep,
                monitor.progress,
                failures=run.settings.checkpoint_failures,
                before=metrics.write,
                before_file=hooks.on_checkpoint_file,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, HostsChanged):
            self.wait()
        elif error is not None and self._saver is not None:
            self._saver.abandon()

    def restore(self, data: Data) -> Position:
        """The position of the newest checkpoint that is whole, whose state all ranks have then; else the beginning.

        Raises UsageError if it is of another training, DataError if all that are there are damaged.
        """
        restored = self._collective.run_on_root(lambda: self._restore(data))
        position = Position.from_json(restored, data.slices, data.train.total)
        if position.step:
            self._step = position.step
            if self._saver is not None:
                self._saver.step = position.step
        self._trainer.broadcast_state()
        return position

    def _restore(self, data: Data) -> dict[str, Any]:
        run = self._run
        self._monitor.local_phase(LOADING)
        require_resumable(run)
        restored = store.restore(run.folder, run.staging, self._monitor.progress)
        if restored is None:
            return data.begin().to_json()
        checkpoint, arrays = restored
        if not run.settings.resume:  # another trainer made it between our choice of this run and our lease
            raise UsageError(f"{run.folder} already exists; give --resume to continue it, or another --run")
        self._trainer.load_state(arrays, str(checkpoint.folder))
        return dict(checkpoint.marker["position"])

    def adopt(self, position: Position) -> None:
        """Elastic: if the newest checkpoint is that of ``position``, its arrays stay, whatever facts follow."""
        newest = self._collective.run_on_root(lambda: getattr(store.newest(self._run.folder), "step", None))
        if newest == position.step:
            self._step = newest
            if self._saver is not None:
                self._saver.step = newest

    def is_due(self, position: Position) -> bool:
        """True if --checkpoint-steps wants a checkpoint here."""
        steps = self._run.settings.checkpoint_steps
        return bool(steps) and position.step % steps == 0

    def raise_failure(self) -> None:
        """Raise what went wrong with the last checkpoint, if no more may fail."""
        if self._saver is not None:
            self._saver.check()

    def save(self, position: Position) -> None:
        """Begin to write a checkpoint, if there is none of this step; raise on every rank if a weight is not finite."""
        self._metrics.publish_keys(position)
        if path := self._trainer.first_not_finite():
            raise diverged(self._run, self._trainer, self._collective, f"{path} is not finite at step {position.step}")
        self._write(position, None)

    def add_score(self, position: Position, score: float | None) -> None:
        """Begin to write the position after an evaluation, and its ``score``, to the last checkpoint's marker."""
        self._write(position, score)

    def _write(self, position: Position, score: float | None) -> None:
        self._metrics.cut(position.step)
        is_new, self._step = self._step != position.step, position.step
        # before the copy of the state, so that there is one in memory; the others would wait in their next step anyway
        self._collective.run_on_root(self._await_last)
        has_part = is_new and (self._saver is not None or self._trainer.is_divided)
        state = self._trainer.state() if has_part else {}
        if self._saver is None:
            return
        facts = {
            **self._run.identity,
            "position": position.to_json(),
            "world_size": self._collective.size,
            "score": score,
        }
        if is_new:
            self._saver.submit(position.step, state, facts)
        else:
            self._saver.amend(facts)

    def _await_last(self) -> None:
        """On rank 0: wait for the last checkpoint; what went wrong with it is raised by what follows."""
        if self._saver is not None and self._saver.is_busy:
            self._monitor.local_phase(SAVING)
            self._saver.join()

    def require_finite_loss(self, scores: Metrics, split: str, step: int) -> None:
        """Raise on every rank if the loss on ``split`` is not finite; the checkpoint of ``step`` is removed then."""
        loss = scores.get(f"{split}_loss", 0.0)
        if not math.isfinite(loss):
            if self._saver is not None:
                self._saver.discard(step)
            what = f"the loss on {split} is {loss} after step {step}"
            raise diverged(self._run, self._trainer, self._collective, what)

    def load_best(self, split: str, history: Sequence[Metrics]) -> dict[str, int]:
        """Give all ranks the weights of the best checkpoint, if there is one; returns its epoch and step, else none.

        ``split`` is that by which it is the best.
        """
        weights = self._collective.run_on_root(lambda: self._load_best(split, history))
        if weights:
            self._trainer.broadcast_state()
        return weights

    def _load_best(self, split: str, history: Sequence[Metrics]) -> dict[str, int]:
        scores = scores_of(history, split)
        epoch = history[scores.index(max(scores))]["epoch"]
        best = store.best(self._run.folder)
        weights = {}
        if best is not None:
            load_weights(self._run, self._trainer, best.marker, self._monitor)
            weights = {"epoch": best.marker["position"]["history"][-1]["epoch"], "step": best.step}
        if weights.get("epoch") == epoch:
            self._monitor.log(f"the result is that of the best weights: epoch {epoch}, step {weights['step']}")
        else:
            found = f"of epoch {weights['epoch']}, the best that has one" if weights else "of the last weights"
            self._monitor.log(
                f"epoch {epoch} was the best ({split} accuracy {max(scores):.4f}), but has no checkpoint;"
                f" the result is that {found}"
            )
        return weights

    def wait(self) -> None:
        """Wait for what is being written, the metrics too. Raises what went wrong with it, if no more may fail."""
        if self._saver is not None:
            self._monitor.local_phase(SAVING)
            self._saver.wait()
            self._metrics.wait()

    def finish(self) -> None:
        """Wait for the last checkpoint; one that failed is tried once more. Raises what went wrong with it."""
        if self._saver is not None:
            self._monitor.local_phase(SAVING)
            self._saver.finish()
            self._metrics.write()  # what could not be written before


def load_weights(run: Run, trainer: Trainer, marker: dict[str, Any], monitor: Monitor) -> None:
    """Give the model the weights of the checkpoint with this marker, which may be of the other framework.

    Raises DataError if it is damaged, EnvironmentFailure if a trainer has removed it since the marker was read,
    UsageError if it cannot be converted.
    """
    monitor.local_phase(LOADING)
    checkpoint = store.chosen(run.folder, marker)
    try:
        arrays = checkpoint.read("model", monitor.progress)
    except DamagedError as error:
        checkpoint.require_unchanged()
        remedy = "give another --checkpoint, or train on from an older one with train/main.py --resume"
        raise DataError(f"{error}; {remedy}") from None
    groups, framework = {"model": arrays}, run.settings.framework
    if marker["framework"] != framework:
        groups = CONVERSIONS[framework](marker["settings"]["model"], groups | {"optimizer": {}}, checkpoint.step)
    trainer.load_state({"model": groups["model"]}, str(checkpoint.folder))
