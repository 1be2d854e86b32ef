"""What a run cannot lose: commits, which all ranks hold in memory, and checkpoints, which rank 0 writes.

A commit is a moment at which all ranks hold the same weights and agree on the position. An elastic run goes back to
the last one when a rank is lost; a checkpoint is one that was written down.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from etl.errors import EnvironmentFailure
from train.checkpoints.background import Saver
from train.checkpoints.safetensors_file import Arrays
from train.parallel.elastic import HostsChanged, Membership
from train.parallel.strategy import weights_digest
from train.runs.audit import Audit
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.metrics import SUMS, Line, StepOfRank, epoch_line, step_lines, to_maximise, to_sum
from train.runs.metrics_writer import MetricsWriter
from train.runs.position import Metrics, Position
from train.tf_backend.variables import assign, snapshot
from train.trainer.divergence import LossCheck, SkipCheck, diverged, require_finite_weights
from train.trainer.restore import restore
from train.trainer.session import Choice, Session
from train.trainer.step_runner import StepResult

REPORT_S = 10.0  # of steps from one report to the next
MAX_REPORT_STEPS = 256  # likewise
METRICS_S = 15.0  # after which a report has the metrics written: on storage within 30 s
RECENT_STEPS = 20  # that the progress bar is about
WAITING = "waiting for the last checkpoint to be written"


@dataclass
class Memory:
    """What a process takes along from one ring to the next: its last commit, how many steps it took beyond, the metrics
    that are not written yet, and when it began."""

    position: Position | None = None
    arrays: dict[str, Arrays] = field(default_factory=dict)
    steps_since: int = 0
    lines: list[Line] = field(default_factory=list)
    choice: Choice | None = None
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Plan:
    """What rank 0 decides at a report, for all ranks."""

    next_report: int  # the step after which it is due
    is_time_over: bool
    is_write_due: bool  # of the metrics


def steps_to_report(step_s: float, left_s: float) -> int:
    """Steps from one report to the next if a step takes ``step_s`` and the run may go on for ``left_s``. Pure."""
    seconds = min(REPORT_S, left_s)
    return max(1, int(min(MAX_REPORT_STEPS, seconds / step_s if step_s else MAX_REPORT_STEPS)))


class Keeper:
    """Commits, writes checkpoints and finds the way back."""

    def __init__(
        self, session: Session, memory: Memory, membership: Membership | None, hooks: Hooks = NO_HOOKS
    ) -> None:
        self.session = session
        self._hooks = hooks
        self._memory = memory
        memory.choice = session.choice
        memory.lines = memory.lines.copy()  # the writer of the ring before may still be at work on its own
        self._membership = membership
        self._metrics = MetricsWriter(session.run, session.attempts, memory.lines)
        self._saver: Saver | None = None
        if session.is_root:
            settings = session.settings
            self._saver = Saver(
                session.run,
                session.attempts,
                settings.keep,
                session.monitor.progress,
                failures=settings.checkpoint_failures,
                before=self._metrics.write,
                before_file=hooks.on_checkpoint_file,
            )
        self._audit = Audit(session.run, session.attempts, session.strategy.rank, session.strategy.size)
        self._published = time.monotonic()  # when the metrics were, the last time
        self._next_report = 0
        self._is_time_over = False
        self._losses = LossCheck(session)
        self._skips = SkipCheck(session)
        self._steps: list[StepOfRank] = []  # since the last report
        self._keys: list[bytes] = []  # since the last commit
        self.recent: deque[StepOfRank] = deque(maxlen=RECENT_STEPS)

    def recall(self) -> Position:
        """Where to go on, with the weights that belong there, on every rank: the newest commit that any rank has, else
        the newest checkpoint, else the begin.
        """
        session, strategy = self.session, self.session.strategy
        memory = self._memory.position
        told: list[tuple[dict[str, Any], int]]
        told = strategy.gather((memory.to_json() if memory else {}, self._memory.steps_since))
        furthest = [(at["step"], at["reader"]["epoch"], len(at["trained"])) if at else (-1, 0, 0) for at, _ in told]
        source = furthest.index(max(furthest))
        newest, _, _ = furthest[source]
        if newest >= 0:
            found, lost = told[source]
            self._memory.lines[:] = strategy.gather(self._memory.lines if source == strategy.rank else [])[source]
            if source == strategy.rank:
                assign(session.groups, self._memory.arrays, "the last commit")
            position = self._position(found)
            position = replace(position, rolled_back=position.rolled_back + lost)
            if session.is_root:
                session.monitor.log(f"{strategy.size} ranks go on from step {newest}; {lost} steps are taken again")
        else:
            position = self._position(strategy.from_root(lambda: restore(session)))
            if self._saver is not None and position.step:
                self._saver.step = position.step
        strategy.broadcast(session.variables, source)
        strategy.from_root(lambda: self._roll_back(position.step))
        self._audit.begin(position.step)
        self._next_report = position.step + 1
        position = replace(position, reader=session.shared(position.reader))
        self._remember(position)
        return position

    def _roll_back(self, step: int) -> None:
        self._audit.roll_back(step)
        self._metrics.roll_back(step)
        self._metrics.cut(step)

    def _position(self, told: dict[str, Any]) -> Position:
        return Position.from_json(told, self.session.identity["slices"], self.session.examples)

    def add(self, results: Sequence[StepResult]) -> None:
        """Count these steps. Raises DataError if too many in a row were not taken."""
        for result in results:
            self._skips.add(result.measured.step, result.is_skipped)
            self._steps.append(result.measured)
            self.recent.append(result.measured)
            if result.keys is not None:
                self._keys += result.keys.numpy().tolist()

    def after_step(self, position: Position) -> None:
        """Call the hook; raise what a failure of the checkpoints before is to end the run with."""
        self._memory.steps_since += 1
        self._hooks.on_step(self, position)
        if self._saver is not None:
            self._saver.check()

    def is_report_due(self, step: int) -> bool:
        """True at the same steps on all ranks: the last report contained the step of the next."""
        commit_steps = self.session.settings.commit_steps if self._membership is not None else 0
        is_commit_due = commit_steps > 0 and step % commit_steps == 0
        return step == self._next_report or is_commit_due or self._is_checkpoint_due(step) or self.is_over(step)

    def _is_checkpoint_due(self, step: int) -> bool:
        steps = self.session.settings.checkpoint_steps
        return bool(steps) and step % steps == 0

    def is_over(self, step: int) -> bool:
        """True on all ranks if the run takes no more steps after ``step``, in mid-epoch too."""
        return self._is_time_over or self.session.settings.stopping.why_in_epoch(step, seconds=0) != ""

    def report(self, position: Position, is_epoch_over: bool) -> Position:
        """Sum over the ranks what they have measured since the last report, and take over what rank 0 plans.

        An elastic run commits with each report: the lines in a file are of steps that are not taken again. A checkpoint
        follows if it is due, but not after the last step of an epoch or of the run, which has its own.
        """
        self.session.monitor.phase("reporting")
        plan = self.session.strategy.from_root(lambda: self._plan(position.step))
        self._next_report, self._is_time_over = plan.next_report, plan.is_time_over
        is_checkpoint_due = self._is_checkpoint_due(position.step)
        if is_epoch_over or self.is_over(position.step):
            return self.commit(position)
        is_commit = is_checkpoint_due or self._membership is not None
        position = self.commit(position) if is_commit else self._measure(position)
        if plan.is_write_due:
            self._write_metrics()
        if is_checkpoint_due:
            self.checkpoint(position)
        self.check_members()
        return position

    def _plan(self, step: int) -> _Plan:
        max_time_s = self.session.settings.stopping.max_time_s
        left_s = math.inf if max_time_s is None else max_time_s - self.session.seconds
        step_s = self.recent[-1].step_s if self.recent else 0.0
        is_write_due = time.monotonic() - self._published > METRICS_S
        return _Plan(step + steps_to_report(step_s, left_s), left_s <= 0, is_write_due)

    def _write_metrics(self) -> None:
        """Write down, in the background, what all ranks have measured."""
        self._published = time.monotonic()
        if self.session.is_root:
            self._metrics.start()
        else:
            self._memory.lines.clear()

    def commit(self, position: Position) -> Position:
        """The position, with what all ranks have counted since the last commit; from here on it can be gone back to."""
        session = self.session
        self.session.monitor.phase("committing")
        if session.settings.audit:
            self._audit.publish(position, self._keys)
            self._keys = []
        position = self._measure(position)
        self._remember(position)
        return position

    def _measure(self, position: Position) -> Position:
        """The position, with what all ranks have measured since the last time; the lines of these steps are kept."""
        steps, self._steps = self._steps, []
        if not steps:
            return position
        strategy = self.session.strategy
        sums = strategy.sum_array(to_sum(steps))
        largest = strategy.max_array(to_maximise(steps, strategy.rank))
        self._losses.add([each.step for each in steps], sums[:, 0].tolist())
        if self.session.is_root or self._membership is not None:  # whose rank 0 may be another one later
            self._memory.lines += step_lines(position.epoch, steps, sums, largest, strategy.size)
        loss, hits, examples = sums.T[:SUMS]
        is_finite = np.isfinite(loss)
        counted = loss[is_finite].sum(), examples[is_finite].sum(), hits.sum(), examples.sum()
        return position.counting(tuple(map(float, counted)))

    def require_finite_loss(self, step: int, split: str, metrics: Metrics) -> None:
        """Raise DataError if the loss on ``split`` is not finite; the checkpoint of ``step`` is then removed."""
        loss = metrics.get(f"{split}_loss", 0.0)
        if not math.isfinite(loss):
            if self._saver is not None:
                self._saver.discard(step)
            raise diverged(self.session, f"the loss on {split} is {loss} after step {step}")

    def check_members(self) -> None:
        """Raise HostsChanged where ranks are to come or to go; right after a commit that costs nothing."""
        if self._membership is not None:
            self._membership.check(self.session.strategy)

    def _remember(self, position: Position) -> None:
        self._memory.steps_since = 0
        if self._membership is not None:
            self._memory.position, self._memory.arrays = position, snapshot(self.session.groups)

    def checkpoint(self, position: Position) -> None:
        """Rank 0 has this position, which was committed just now, written down in the background.

        Raises DataError on every rank if the weights are not finite.
        """
        require_finite_weights(self.session, position.step)
        self._write(position)

    def _write(self, position: Position, score: float | None = None) -> None:
        """``score`` tells how good it is, if that is known. Of a checkpoint of the same step only the marker is
        replaced.
        """
        session = self.session
        self._published = time.monotonic()
        if self._saver is None:
            self._memory.lines.clear()  # rank 0 writes them, before the checkpoint
            return
        self._metrics.cut(position.step)
        facts = {
            **session.identity,
            "position": position.to_json(),
            "world_size": session.strategy.size,
            "score": score,
        }
        if self._saver.busy:
            self.session.monitor.local_phase(WAITING)
        if self._saver.step == position.step:
            self._saver.amend(facts)
        else:
            self._saver.submit(position.step, self._memory.arrays or snapshot(session.groups), facts)

    def end_steps(self, position: Position) -> None:
        """The end of steps is always a checkpoint: of weights that all ranks have compared, if an epoch's are over."""
        if position.trained:
            require_equal_weights(self.session)
            self._remember(position)
        self.checkpoint(position)
        self.check_members()

    def end_epoch(self, position: Position, score: float | None) -> None:
        """The begin of the next epoch is a commit; the checkpoint of before the evaluation gets the ``score``."""
        self._remember(position)
        self._memory.lines.append(epoch_line(position))
        self._write(position, score)  # weights that `end_steps` has checked

    def wait(self) -> None:
        """Wait for what is being written. Raises what went wrong with a checkpoint, if no more may fail."""
        if self._saver is not None:
            self.session.monitor.local_phase(WAITING)
            self._saver.wait()
            self._metrics.wait()

    def finish(self) -> None:
        """Wait for the last checkpoint to be written. Raises what went wrong with it."""
        if self._saver is not None:
            self.session.monitor.local_phase(WAITING)
            self._saver.finish()
            self._metrics.write()  # what could not be written before

    def abandon(self) -> None:
        """End, whatever is unfinished."""
        if self._saver is not None:
            self._saver.abandon()


@contextmanager
def keeping(
    session: Session, memory: Memory, membership: Membership | None = None, hooks: Hooks = NO_HOOKS
) -> Iterator[Keeper]:
    """A keeper for the time of the block; what is being written when the block fails stays unfinished."""
    keeper = Keeper(session, memory, membership, hooks)
    try:
        yield keeper
    except HostsChanged:
        keeper.wait()
        raise
    except BaseException:
        keeper.abandon()
        raise


def require_equal_weights(session: Session) -> None:
    """Raise EnvironmentFailure unless all ranks hold the same weights, bit for bit."""
    digests = session.strategy.gather(weights_digest(session.variables))
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:  # known on all ranks
        of_ranks = session.strategy.gather([weights_digest([each]) for each in session.variables])
        of_root, of_other = of_ranks[0], of_ranks[different[0]]
        names = (
            each.path for each, one, other in zip(session.variables, of_root, of_other, strict=True) if one != other
        )
        raise EnvironmentFailure(
            f"the weights of ranks {different} are not those of rank 0, {next(names)} first: gradients were not"
            " reduced, or a layer changes this variable by the data of its rank"
        )
