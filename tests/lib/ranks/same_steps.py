#!/usr/bin/env python3
"""Compare the training steps of several ranks with those of one process that is fed their batches.

    horovodrun -np 2 tests/lib/ranks/same_steps.py ROOT CASE-KIND …

The case is a recipe, see CASES. For each one, one rank trains an epoch alone, without the ring, and records the state
(weights and optimizer) before the first step and after each. Then the ranks train the same epoch in the ring. KIND is

    ring          after each step the ranks continue from the recorded state: each comparison is of one step
    identity      a negative control, which must fail: the same without the all-reduce
    local         a negative control: gradients are reduced, the statistics of batch norm are not
    counted       a negative control: examples that only fill up a batch count as others do

Each rank prints for each CASE-KIND: ``same``, if all ranks had the same state, bit for bit, after each step; the
``examples`` that counted; and the largest differences from the recorded states, see `largest`.
"""

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etl.entry_point import end_process
from tests.lib.ranks.fed_by_all import fed_by_all
from tests.lib.ranks.outcomes import print_result
from train.checkpoints.safetensors_file import Arrays
from train.config.recipe import SYNCHRONISED, Recipe
from train.config.settings import Settings
from train.config.stopping import Stopping
from train.monitor.monitor import Monitor
from train.parallel.cores import claim_cores
from train.parallel.startup import OPTIONAL, hide_packages
from train.runs.data import Data, open_data
from train.runs.hooks import Hooks, Running
from train.runs.position import Position
from train.runs.run import Run, lock, open_run

with hide_packages(OPTIONAL):
    import tensorflow as tf

    from tests.lib.ranks.strategies import Alone, Identity, LocalStatistics
    from train.loop import Training
    from train.strategies import Strategy
    from train.strategies.horovod_ring import Horovod
    from train.tf_backend.trainer import KerasTrainer

GLOBAL_BATCH = 128
STEPS = 12  # the last one has 29 examples of 128

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "synchronised": {"model": "tests.lib.ranks.tiny:smooth_normed", "batch_norm": SYNCHRONISED, "lr": 0.1},
    "accumulated": {"accumulate": 4, "clip_norm": 1.0, "weight_decay": 0.01, "label_smoothing": 0.1},
    "lars": {"optimizer": "lars", "lars_coefficient": 0.05},
    "compressed": {"compression": "fp16"},
    "float16": {"precision": "float16"},
    "bfloat16": {"precision": "bfloat16"},
}
MONITOR = Monitor()
STRATEGIES: dict[str, type[Horovod]] = {"identity": Identity, "local": LocalStatistics}

State = dict[str, Arrays]
TrainStep = Callable[..., Any]


class Recorder(Hooks):
    """Records the state after each step, and whether it is the same on all ranks.

    After each step the run continues from the next of the states ``given``, if there are any.
    """

    def __init__(self, given: Sequence[State] = ()) -> None:
        self.states: list[State] = []
        self.is_same = True
        self._given = given

    def on_step(self, running: Running, position: Position) -> None:
        self.record(running)
        if self._given:
            running.trainer.load_state(self._given[position.step], "one process")

    def record(self, running: Running) -> None:
        self.states.append(running.trainer.state())
        digests = running.collective.gather_object(running.trainer.digests())
        self.is_same &= all(each == digests[0] for each in digests)


def settings_of(case: str, root: str, size: int, run: str) -> Settings:
    recipe = Recipe(
        **{"model": "tests.lib.ranks.tiny:smooth", "lr": 0.36, **CASES[case]}, warmup_epochs=0, decay="none"
    )
    if size == 1:
        recipe = replace(recipe, accumulate=1)
    recipe = replace(recipe, batch=GLOBAL_BATCH // size // recipe.accumulate)
    return Settings(data=root, recipe=recipe, stopping=Stopping(epochs=1), run=run)


@dataclass
class Opened:
    """A run that is about to be trained by ``strategy``."""

    run: Run
    data: Data
    trainer: KerasTrainer
    strategy: Strategy

    @classmethod
    def of(cls, settings: Settings, strategy: Horovod) -> "Opened":
        run = open_run(settings, strategy, MONITOR.log)
        data = open_data(run, strategy, MONITOR)
        return cls(run, data, strategy.make_trainer(run.settings, run.manifest), strategy)

    def train(self, given: Sequence[State] = ()) -> tuple[Recorder, Position]:
        """Train an epoch; the recorder of its steps, and where it ended."""
        recorder = Recorder(given)
        with lock(self.run, self.strategy.collective, MONITOR) as run:
            training = Training(run, self.data, self.trainer, self.strategy, MONITOR, hooks=recorder)
            with training.checkpoints:
                begin = training.restore()
                recorder.record(training)
                position = training.train_epoch(begin)
                training.checkpoints.finish()
        return recorder, position


def train_alone(case: str, root: str, ranks: int) -> list[State]:
    """The states of one process that takes the steps of this many ranks."""
    opened = Opened.of(settings_of(case, root, 1, f"{case}-alone"), Alone())
    with fed_by_all(ranks, keeps_filling=opened.run.settings.recipe.batch_norm == SYNCHRONISED):
        return opened.train()[0].states


def counting_all(train_step: TrainStep, counts_all: bool) -> TrainStep:
    """The step, or one in which every example of a batch has the weight 1."""

    def step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, **numbers: tf.Tensor) -> Any:
        return train_step(pixels, labels, tf.ones_like(weights), **numbers)

    return step if counts_all else train_step


def compare(case: str, kind: str, root: str, strategy: Horovod, expected: Sequence[State]) -> dict[str, Any]:
    """Train the case in the ring; what to print of it."""
    collective = strategy.collective
    opened = Opened.of(settings_of(case, root, collective.size, f"{case}-{kind}"), strategy)
    if collective.rank:  # the first weights must be those of rank 0
        for variable in opened.trainer.model.trainable_variables:
            variable.assign(variable * 2)
    stepper = opened.trainer.stepper
    stepper.train_step = counting_all(stepper.train_step, kind == "counted")
    recorder, position = opened.train(expected)
    states = recorder.states
    assert len(states) == len(expected) == STEPS + 1
    compared = list(map(differences, states, expected, [expected[0], *expected]))
    return {"same": recorder.is_same, "examples": position.totals[-1], **largest(compared, expected[0])}


def differences(ours: State, theirs: State, before: State) -> dict[str, float]:
    """The distance of each variable from its value in the other state, as a fraction of its change since ``before``.

    The rounding of the stored values, one unit in the last place, does not count. A variable that did not change has to
    be equal.
    """
    found = {}
    for group, arrays in theirs.items():
        for name, array in arrays.items():
            own, previous = (each[group][name].astype(np.float64) for each in (ours, before))
            rounding = np.spacing(np.abs(array)) if array.dtype.kind == "f" else 0
            distance = np.linalg.norm(np.maximum(np.abs(own - array) - rounding, 0))
            change = np.linalg.norm(array - previous)
            found[f"{group} {name}"] = float(distance / change) if change else float(distance and math.inf)
    return found


def largest(compared: Sequence[Mapping[str, float]], state: State) -> dict[str, tuple[float, str]]:
    """The largest difference of the ``kernels``, and of all ``others``; with the step and the name of the variable."""
    kernels = {f"{group} {name}" for group, arrays in state.items() for name, each in arrays.items() if each.ndim > 1}
    found = {"kernels": (0.0, ""), "others": (0.0, "")}
    for step, each in enumerate(compared):
        for name, value in each.items():
            kind = "kernels" if name in kernels else "others"
            if not value <= found[kind][0]:  # greater, or not a number
                found[kind] = (value, f"{name}, comparison {step}")
    return found


def main(root: str, *scenarios: str) -> None:
    collective = Horovod(MONITOR).collective
    wanted = [scenario.split("-") for scenario in scenarios]
    references = list(dict.fromkeys(reference_of(case) for case, _ in wanted))
    own = {case: train_alone(case, root, collective.size) for case in references[collective.rank :: collective.size]}
    expected = {case: states for each in collective.gather_object(own) for case, states in each.items()}
    for case, kind in wanted:
        compared = compare(case, kind, root, STRATEGIES.get(kind, Horovod)(MONITOR), expected[reference_of(case)])
        print_result(f"{case}-{kind}", **compared)
    collective.close()


def reference_of(case: str) -> str:
    return "plain" if case == "compressed" else case


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    gc.freeze()  # Keras collects garbage before each model
    main(*sys.argv[1:])
    end_process(0)
