"""What the ranks measure at each step and which examples they consume: summed in reports, and written.

A report takes place about every 10 s, at the same step on all ranks; rank 0 decides in it when the next one is due.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from train.config.recipe import FLOAT16
from train.parallel.collective import Collective
from train.parallel.trainer import StepOfRank, StepResult, Trainer
from train.parallel.usage import Usage, tcp_counters, usage_since
from train.runs.audit import Audit
from train.runs.data import Data
from train.runs.divergence import SkipCheck, check_losses, diverged
from train.runs.metrics import (
    SUMS,
    Line,
    epoch_line,
    lines_until,
    ranks_line,
    skipped,
    step_lines,
    to_maximise,
    to_sum,
    usage_to_sum,
)
from train.runs.metrics_writer import MetricsWriter
from train.runs.position import Metrics, Position
from train.runs.run import Run

REPORT_S = 10.0  # of steps from one report to the next
MAX_REPORT_STEPS = 256  # likewise
METRICS_S = 15.0  # after which a report has the metrics written: on storage within 30 s
RECENT_STEPS = 20  # that the progress bar is about


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


class MetricsLog:
    """``lines`` are the metrics that are not written yet, from which those that are written are removed.

    Rank 0 has them; all ranks if ``is_elastic``, because rank 0 may be another one later. The sums and keys of a rank
    that is not ``is_counted`` are another rank's, too, and left out.
    """

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        collective: Collective,
        is_elastic: bool = False,
        *,
        is_counted: bool = True,
    ) -> None:
        self._run, self._trainer, self._collective = run, trainer, collective
        self._is_counted = is_counted
        self._is_elastic, self._has_lines = is_elastic, is_elastic or collective.is_root
        self.lines: list[Line] = []
        self._writer = MetricsWriter(run.folder, run.staging, self.lines)
        self._audit = Audit(run.folder, run.staging, collective.rank, collective.size)
        self._written = time.monotonic()  # when the lines were, the last time
        self._begin = self._written, 0.0  # when the steps of this epoch began, and the examples of it before
        self._counters = tcp_counters()  # when the steps that are not reported yet began
        self._next_report = 0
        self._is_time_over = False
        self._checks_losses = run.settings.recipe.precision != FLOAT16  # which takes no step of a loss that overflows
        self._skips = SkipCheck()
        self._steps: list[StepOfRank] = []  # since the last report
        self._keys: list[bytes] = []  # since the last commit
        self.recent: deque[StepOfRank] = deque(maxlen=RECENT_STEPS)

    def begin(self, position: Position, lines: Iterable[Line] = ()) -> None:
        """Go on from ``position`` with these ``lines``: what was written, or is there, of later steps is taken back."""
        self.lines += lines_until(position, lines)
        self._collective.run_on_root(lambda: self._roll_back(position.step))
        self._audit.begin(position.step)
        self._next_report = position.step + 1

    def _roll_back(self, step: int) -> None:
        self._audit.roll_back(step)
        self._writer.roll_back(step)
        self._writer.cut(step)

    def add(self, results: Sequence[StepResult]) -> None:
        """Count these steps. Raises DataError if too many in a row were not taken."""
        for result in results:
            if what := self._skips.add(result.measured.step, result.is_skipped):
                raise diverged(self._run, self._trainer, self._collective, what)
            measured = result.measured
            self._steps.append(measured if self._is_counted else replace(measured, loss=0.0, hits=0.0, examples=0.0))
            self.recent.append(measured)
            self._keys += result.keys if self._is_counted else ()

    def is_due(self, position: Position) -> bool:
        """True if a report is due, at the same steps on all ranks: each contains the step of the next.

        The last step of an epoch or of the run has one, too.
        """
        return position.step == self._next_report or not position.steps_left or self.is_over(position.step)

    def is_over(self, step: int) -> bool:
        """True on all ranks if the run takes no more steps after ``step``, in mid-epoch too."""
        return self._is_time_over or self._run.settings.stopping.reason_in_epoch(step, seconds=0) != ""

    def report(self, position: Position) -> Position:
        """The position, with the sums over the ranks of what they have measured since the last report.

        An elastic run publishes the keys, too, because it commits then. Rank 0 plans for all ranks. Raises DataError on
        every rank if the training has diverged.
        """
        usage = usage_since(self._counters)  # without what a report exchanges
        plan = self._collective.run_on_root(lambda: self._plan(position.step))
        self._next_report, self._is_time_over = plan.next_report, plan.is_time_over
        position = self._sum(position, usage)
        if self._is_elastic:
            self.publish_keys(position)
        if plan.is_write_due:
            self._written = time.monotonic()
            if self._collective.is_root:
                self._writer.start()
            else:
                self.lines.clear()
        self._counters = tcp_counters()
        return position

    def _plan(self, step: int) -> _Plan:
        max_time_s = self._run.settings.stopping.max_time_s
        left_s = math.inf if max_time_s is None else max_time_s - self._run.seconds
        step_s = self.recent[-1].step_s if self.recent else 0.0
        is_write_due = time.monotonic() - self._written > METRICS_S
        return _Plan(step + steps_to_report(step_s, left_s), left_s <= 0, is_write_due)

    def _sum(self, position: Position, usage: Usage) -> Position:
        steps, self._steps = self._steps, []
        if not steps:
            return position
        collective = self._collective
        sums = collective.all_reduce(to_sum(steps))
        largest = collective.all_reduce(to_maximise(steps, collective.rank), "max")
        usages = collective.all_reduce(usage_to_sum(usage, collective.rank, collective.size))
        if self._checks_losses and (what := check_losses([each.step for each in steps], sums[:, 0].tolist())):
            raise diverged(self._run, self._trainer, collective, what)
        if self._has_lines:
            self.lines += [
                *step_lines(position.epoch, steps, sums, largest, collective.size),
                ranks_line(position.epoch, steps, usages),
            ]
        loss, hits, examples = sums.T[:SUMS]
        is_finite = np.isfinite(loss)
        counted = loss[is_finite].sum(), examples[is_finite].sum(), hits.sum(), examples.sum()
        return position.add_totals(tuple(map(float, counted)))

    def publish_keys(self, position: Position) -> None:
        """Write the keys of the examples that this rank consumed since the last time, if they are audited."""
        if self._run.settings.audit:
            self._audit.publish(position, self._keys)
            self._keys = []

    def begin_epoch(self, position: Position) -> None:
        """Measure the speed, and what steps use, from here on."""
        self._counters = tcp_counters()
        self._begin = time.monotonic(), position.totals[-1]

    def of_epoch(self, position: Position, data: Data) -> Metrics:
        """The training metrics of an epoch whose steps are all taken. Raises DataError if none had a finite loss."""
        loss, counted, hits, examples = position.totals
        if examples and not counted:
            what = f"no step of epoch {position.epoch} has a finite loss"
            raise diverged(self._run, self._trainer, self._collective, what)
        started, examples_before = self._begin
        left_out = data.train.total - position.reader.examples_left - examples
        return {
            "train_loss": loss / max(1.0, counted),
            "train_accuracy": hits / max(1.0, examples),
            "images_per_s": round((examples - examples_before) / (time.monotonic() - started), 2),
            **skipped("train", left_out),
        }

    def add_epoch(self, position: Position) -> None:
        """Add the line of the epoch before ``position``, at whose end it is."""
        if self._has_lines:
            self.lines.append(epoch_line(position))

    def cut(self, step: int) -> None:
        """A checkpoint of ``step`` follows, before which rank 0 writes the lines: a file of them ends there."""
        self._written = time.monotonic()
        if self._collective.is_root:
            self._writer.cut(step)
        else:
            self.lines.clear()

    def write(self) -> None:
        """Write the lines that there are now."""
        self._writer.write()

    def wait(self) -> None:
        """Wait for what is being written in the background."""
        self._writer.wait()
