"""Train: read, step, report; after each epoch checkpoint and evaluate. Imports no framework.

A strategy (train/strategies) has the processes that take part; its trainer (train/tf_backend or train/torch_backend)
takes steps with all of them. A lost rank raises an error out of `train`. An elastic strategy then calls it again with
the ranks that are left.
"""

from contextlib import closing
from dataclasses import replace

from train.config.settings import Settings
from train.config.stopping import NO_PROGRESS, scores_of
from train.evaluation.evaluator import Evaluator
from train.monitor.monitor import Monitor
from train.parallel.trainer import Trainer
from train.runs.checkpointer import Checkpointer
from train.runs.confusion import Confusion
from train.runs.consistency import require_equal_weights
from train.runs.data import Data, open_data
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.metrics_log import MetricsLog
from train.runs.position import Position
from train.runs.results import Reporter, Result
from train.runs.run import Run, lock, open_run
from train.strategies import Strategy


def train(settings: Settings, strategy: Strategy, monitor: Monitor, hooks: Hooks = NO_HOOKS) -> None:
    """Train on the ranks of ``strategy``, by ``settings``."""
    collective = strategy.collective
    run = open_run(settings, strategy, monitor.log)
    data = open_data(run, strategy, monitor)
    monitor.local_phase("building the model")
    trainer = strategy.make_trainer(run.settings, run.manifest)
    with lock(run, collective, monitor) as run:
        Training(run, data, trainer, strategy, monitor, hooks=hooks).train()
    collective.close()


class Training:
    """One run. All ranks execute the same lines and decide by the same numbers; rank 0 alone writes."""

    def __init__(
        self, run: Run, data: Data, trainer: Trainer, strategy: Strategy, monitor: Monitor, *, hooks: Hooks
    ) -> None:
        self.run, self.data, self.trainer, self.strategy, self.monitor = run, data, trainer, strategy, monitor
        self.hooks, self.collective = hooks, strategy.collective
        self.metrics = MetricsLog(run, trainer, self.collective, strategy.is_elastic, is_counted=strategy.is_counted)
        self.checkpoints = Checkpointer(run, trainer, self.collective, monitor, metrics=self.metrics, hooks=hooks)
        self.evaluator = Evaluator(data, trainer, self.collective, monitor, hooks)
        self.reporter = Reporter(run, data, self.collective, monitor)

    def train(self) -> None:
        """Train until the run is over; then evaluate the test split and write the result."""
        with self.checkpoints:
            is_first = self.strategy.earlier is None  # this process has not trained the run with other ranks before
            position = self.restore()
            # set-up does not count, so each start takes at least one step
            reason = self.reason_to_stop(position, seconds=0)
            self.reporter.begin(self.trainer, position, reason, was_over=is_first and reason != "")
            while not reason:
                if not position.awaits_evaluation:
                    position = self.train_epoch(position)
                if position.awaits_evaluation:
                    position = self.end_epoch(position)
                reason = self.reason_to_stop(position, self.run.seconds)
            self.collective.run_on_root(self.checkpoints.finish)
            best = self.checkpoints.load_best(self.data.score_split, position.history) if reason == NO_PROGRESS else {}
            weights_of = best or {"epoch": position.last_epoch, "step": position.step}
            confusion = Confusion("test", self.run.manifest.classes)
            scores = self.evaluator.evaluate("test", confusion)
            self.checkpoints.require_finite_loss(scores, "test", weights_of["step"])
            self.reporter.end(position, Result(reason, scores, weights_of, confusion))

    def reason_to_stop(self, position: Position, seconds: float) -> str:
        """The reason, as rank 0 finds it after so many ``seconds``; "" to go on, also to an evaluation that is due."""
        scores = scores_of(position.history, self.data.score_split)
        why = self.run.settings.stopping.reason
        reason = self.collective.run_on_root(lambda: why(position.epoch, position.step, scores, seconds))
        return "" if position.awaits_evaluation else reason

    def restore(self) -> Position:
        """The last commit (elastic), the newest checkpoint, or the beginning; its rest is divided among the ranks."""
        found = self.strategy.restore(self.trainer, self.monitor.log)
        position, lines = found or (self.checkpoints.restore(self.data), [])
        if found:
            self.checkpoints.adopt(position)
        self.metrics.begin(position, lines)
        position = replace(position, reader=self.data.divided(position.reader))
        self.commit(position)
        return position

    def train_epoch(self, position: Position) -> Position:
        """The steps that are left of the epoch, or as many as the run is to take; then a checkpoint."""
        self.metrics.begin_epoch(position)
        batches = self.trainer.train_batches(*self.data.train_records(position))
        with closing(batches), self.reporter.progress(position) as show_progress:
            self.monitor.phase("reading", position.epoch, position.step + 1)
            for batch in batches:
                self.monitor.phase("stepping")
                rate = self.data.learning_rate(position)
                self.metrics.add(self.trainer.train_step(batch, position.step, rate))  # results come a step later
                position = position.after_step()
                self.strategy.after_step()
                self.hooks.on_step(self, position)
                self.checkpoints.raise_failure()
                if any(each.is_due(position) for each in (self.metrics, self.checkpoints, self.strategy)):
                    position = self.report(position)
                show_progress(position, self.metrics.recent)
                self.monitor.phase("reading", step=position.step + 1)
                if self.metrics.is_over(position.step):  # rank 0 planned it in the last report
                    break
        if not position.steps_left:
            position = replace(position, trained=self.metrics.of_epoch(position, self.data))  # awaits its evaluation
            require_equal_weights(self.trainer, self.collective)
        self.checkpoints.save(position)  # before the evaluation, so that a failure there costs no training
        self.commit(position)
        return position

    def report(self, position: Position) -> Position:
        """Sum over the ranks what they measured since the last report; checkpoint if it is due; commit."""
        self.monitor.phase("reporting")
        self.metrics.add(self.trainer.finish_steps())
        position = self.metrics.report(position)
        if position.steps_left and self.checkpoints.is_due(position):  # train_epoch saves after the last step
            self.checkpoints.save(position)
        self.commit(position)
        return position

    def commit(self, position: Position) -> None:
        """Elastic: keep the state in memory, to restore it on other ranks; raise if ranks come or go. Else nothing."""
        self.strategy.commit(self.run, position, self.trainer, self.metrics.lines)

    def end_epoch(self, position: Position) -> Position:
        """Evaluate, add the score to the checkpoint, and begin the next epoch."""
        split = self.data.score_split
        scores = self.evaluator.evaluate(split)
        self.checkpoints.require_finite_loss(scores, split, position.step)
        position = position.next_epoch(self.data.begin_epoch(position.epoch + 1), scores)
        self.metrics.add_epoch(position)
        self.checkpoints.add_score(position, scores.get(f"{split}_accuracy"))
        self.commit(position)
        self.reporter.epoch(position)
        return position
