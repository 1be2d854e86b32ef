"""What a run cannot lose: commits, which all ranks hold in memory, and checkpoints, which rank 0 writes.

A commit is a moment at which all ranks hold the same weights and agree on the position. An elastic run goes back to
the last one when a rank is lost; a checkpoint is one that was written down. Batch norm's running statistics differ by
rank in between, and are averaged for it.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from etl.errors import DataError, EnvironmentFailure, UsageError
from train.checkpoints import store
from train.checkpoints.background import Saver
from train.checkpoints.safetensors_file import Arrays
from train.checkpoints.store import Checkpoint
from train.checkpoints.variables import assign, snapshot
from train.config.recipe import FLOAT16, option_of
from train.monitor.heartbeat import PULSE
from train.monitor.rank_process import say
from train.parallel.elastic import HostsChanged, Membership
from train.parallel.strategy import average_state, weights_digest
from train.runs.audit import Audit
from train.runs.metrics import Line, MetricsFiles, StepOfRank, epoch_line, step_line, sums_over
from train.runs.position import Position
from train.runs.tensorboard_events import Summaries
from train.trainer.session import Choice, Session


@dataclass
class Memory:
    """What a process takes along from one ring to the next: its last commit, how many steps it took beyond, the metrics
    since the last checkpoint, and when it began."""

    position: Position | None = None
    arrays: dict[str, Arrays] = field(default_factory=dict)
    steps_since: int = 0
    lines: list[Line] = field(default_factory=list)
    choice: Choice | None = None
    started: float = field(default_factory=time.monotonic)

    def run_uri(self) -> str:
        """The folder of the run, once it is chosen."""
        return self.choice.run if self.choice else ""


@dataclass
class Tally:
    """What this rank measured at each step, and the keys of its examples, since the last commit."""

    steps: list[StepOfRank] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)

    def add(self, step: StepOfRank, keys: Any = None) -> None:
        """Count a step; ``keys`` are a tensor of strings."""
        self.steps.append(step)
        if keys is not None:
            self.keys += keys.numpy().tolist()


class Keeper:
    """Commits, writes checkpoints and finds the way back."""

    def __init__(self, session: Session, memory: Memory, membership: Membership | None) -> None:
        self._session = session
        self._memory = memory
        memory.choice = session.choice
        self._membership = membership
        self._saver: Saver | None = None
        if session.is_root:
            self._saver = Saver(session.run, session.attempts, session.settings.keep, PULSE.ticks)
        self._audit = Audit(session.run, session.attempts, session.strategy.rank, session.strategy.size)
        self._metrics = MetricsFiles(session.run, session.attempts)
        self._summaries = Summaries(session.run, session.attempts)
        self.tally = Tally()

    def recall(self) -> Position:
        """Where to go on, with the weights that belong there, on every rank: the newest commit that any rank has, else
        the newest checkpoint, else the begin.
        """
        session, strategy = self._session, self._session.strategy
        memory = self._memory.position
        told: list[tuple[dict[str, Any], int]]
        told = strategy.gather((memory.to_json() if memory else {}, self._memory.steps_since))
        furthest = [(at["step"], at["reader"]["epoch"]) if at else (-1, 0) for at, _ in told]
        source = furthest.index(max(furthest))
        newest, _ = furthest[source]
        if newest >= 0:
            found, lost = told[source]
            self._memory.lines = strategy.gather(self._memory.lines if source == strategy.rank else [])[source]
            if source == strategy.rank:
                assign(session.groups, self._memory.arrays, "the last commit")
            position = self._position(found)
            position = replace(position, rolled_back=position.rolled_back + lost)
            if session.is_root:
                say(f"{strategy.size} ranks go on from step {newest}; {lost} steps are taken again")
        else:
            position = self._position(strategy.from_root(lambda: restore(session)))
        strategy.broadcast(session.variables, source)
        strategy.from_root(lambda: self._roll_back(position.step))
        self._audit.begin(position.step)
        position = replace(position, reader=session.shared(position.reader))
        self._remember(position)
        return position

    def _roll_back(self, step: int) -> None:
        self._audit.roll_back(step)
        self._metrics.roll_back(step)
        self._summaries.roll_back(step)

    def _position(self, told: dict[str, Any]) -> Position:
        return Position.from_json(told, self._session.identity["slices"], self._session.examples)

    def after_step(self, position: Position, last: bool) -> Position:
        """Commit, and have a checkpoint written, where it is their turn after this step.

        The ``last`` step of an epoch has its own, with the metrics.
        """
        settings = self._session.settings
        self._memory.steps_since += 1
        if self._saver is not None:
            self._saver.check()
        writes = settings.checkpoint_steps and position.step % settings.checkpoint_steps == 0
        commits = self._membership is not None and position.step % settings.commit_steps == 0
        if last or not (writes or commits):
            return position
        position = self.commit(position)
        if writes:
            self.checkpoint(position)
        self.check_members()
        return position

    def commit(self, position: Position) -> Position:
        """The position, with what all ranks have counted since the last commit; from here on it can be gone back to."""
        session = self._session
        PULSE.enters("committing")
        if session.settings.audit:
            self._audit.publish(position, self.tally.keys)
        average_state(session.strategy, session.model.non_trainable_variables)
        ranks = session.strategy.gather(self.tally.steps)
        lines = [step_line(position.epoch, step) for step in zip(*ranks, strict=True)]
        self._memory.lines += lines
        sums = sums_over(ranks)
        self._require_finite(position, sums[0])
        position = position.counting(sums)
        self.tally = Tally()
        self._remember(position)
        return position

    def _require_finite(self, position: Position, loss: float) -> None:
        """Raise DataError, which rank 0 tells, where the training has diverged."""
        session = self._session
        if not math.isfinite(loss) and session.settings.recipe.precision != FLOAT16:  # which takes no step then
            error = DataError(
                f"{session.run} has diverged: the loss is {loss} by step {position.step}, at a learning rate of"
                f" {float(session.optimizer.learning_rate.numpy()):.4g}; give a smaller --lr, a longer --warmup-epochs,"
                " or --clip-norm 1, and another --run"
            )
            error.told = not session.is_root
            raise error

    def check_members(self) -> None:
        """Raise HostsChanged where ranks are to come or to go; right after a commit that costs nothing."""
        if self._membership is not None:
            self._membership.check(self._session.strategy)

    def _remember(self, position: Position) -> None:
        self._memory.steps_since = 0
        if self._membership is not None:
            self._memory.position, self._memory.arrays = position, snapshot(self._session.groups)

    def checkpoint(self, position: Position, score: float | None = None) -> None:
        """Rank 0 has this position, which was committed just now, written down in the background.

        ``score`` tells how good it is, if that is known.
        """
        lines, self._memory.lines = self._memory.lines, []
        if self._saver is None:
            return
        session = self._session
        PULSE.does("writing the metrics")
        if lines:
            self._metrics.publish(lines)
            self._summaries.publish(lines)
        facts = {
            **session.identity,
            "position": position.to_json(),
            "world_size": session.strategy.size,
            "score": score,
        }
        if self._saver.busy:
            PULSE.does("waiting for the last checkpoint to be written")
        self._saver.submit(position.step, self._memory.arrays or snapshot(session.groups), facts)

    def end_epoch(self, position: Position, score: float | None) -> None:
        """The begin of the next epoch is a commit, and always a checkpoint."""
        require_equal_weights(self._session)
        self._remember(position)
        self._memory.lines.append(epoch_line(position))
        self.checkpoint(position, score)

    def finish(self) -> None:
        """Wait for the last checkpoint to be written. Raises what went wrong with it."""
        if self._saver is not None:
            PULSE.does("waiting for the last checkpoint to be written")
            self._saver.finish()

    def abandon(self) -> None:
        """End, whatever is unfinished."""
        if self._saver is not None:
            self._saver.abandon()


@contextmanager
def keeping(session: Session, memory: Memory, membership: Membership | None) -> Iterator[Keeper]:
    """A keeper for the time of the block; what is being written when the block fails stays unfinished."""
    keeper = Keeper(session, memory, membership)
    try:
        yield keeper
    except HostsChanged:
        keeper.finish()
        raise
    except BaseException:
        keeper.abandon()
        raise


def restore(session: Session) -> dict[str, Any]:
    """On rank 0, set the weights of the newest checkpoint that is whole; returns its position as JSON.

    The begin, where there is none. Raises UsageError where it is that of another training, DataError where all that
    are there are damaged.
    """
    PULSE.does("loading the checkpoint")
    require_resumable(session)
    restored = store.restore(session.run, session.attempts, PULSE.ticks)
    if restored is None:
        return session.begin().to_json()
    checkpoint, arrays = restored
    if not session.settings.resume:  # another trainer made it between our choice of this run and our claim
        raise UsageError(f"{session.run} is there already; give --resume to go on with it, or another --run")
    assign(session.groups, arrays, str(checkpoint.folder))
    return dict(checkpoint.marker["position"])


def require_resumable(session: Session) -> None:
    """Raise UsageError where the newest checkpoint, if there is one, is of another training."""
    newest = store.newest(session.run)
    if newest is not None:
        require_same_training(session, newest)


def require_same_training(session: Session, checkpoint: Checkpoint) -> None:
    """Raise UsageError, naming the first thing that differs, where the checkpoint is of another training."""
    marker, identity = checkpoint.marker, session.identity
    theirs, ours = marker["classes"], identity["classes"]
    if theirs != ours:
        first = next((name for name in [*theirs, *ours] if (name in theirs) != (name in ours)), None)
        which = f"{first!r} is in one of them only" if first is not None else "in another order"
        raise UsageError(
            f"{checkpoint.folder} was trained on {len(theirs)} classes, these slices have {len(ours)} ({which}); give"
            " --name of its slices, or another --run"
        )
    if marker["slices"] != identity["slices"]:
        raise UsageError(
            f"{checkpoint.folder} was trained on other slices ({marker['slices']}, now {identity['slices']}); give"
            " --name of its slices, or another --run"
        )
    for name, value in identity["settings"].items():
        if marker["settings"].get(name) != value:
            raise UsageError(
                f"{checkpoint.folder} was trained with other settings: {option_of(name)} was"
                f" {marker['settings'].get(name)}, now {value}; give what it was trained with, or another --run"
            )


def require_equal_weights(session: Session) -> None:
    """Raise EnvironmentFailure unless all ranks hold the same weights, bit for bit."""
    digests = session.strategy.gather(weights_digest(session.variables))
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise EnvironmentFailure(
            f"the weights of ranks {different} are not those of rank 0: gradients were not reduced"
        )
