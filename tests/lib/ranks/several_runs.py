#!/usr/bin/env python3
"""Runs of train/main.py one after the other in the same ranks, because these take half a minute to start.

    horovodrun -np 3 tests/lib/ranks/several_runs.py '[["ring", OPTION, …], …]'

argv[1] is JSON: the words of each run, after one of STRATEGIES. Until rank 0's are broadcast, ranks have other weights.
"""

import gc
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

from etl.entry_point import end_process
from train.config.run_options import command
from train.config.settings import Settings
from train.monitor.monitor import Monitor
from train.parallel.cores import claim_cores
from train.parallel.startup import OPTIONAL, hide_packages

with hide_packages(OPTIONAL):
    import tensorflow as tf

    from tests.lib.ranks.strategies import Identity, LocalStatistics, OwnWeights
    from train import loop
    from train.tf_backend.feed import PixelBatch
    from train.tf_backend.trainer import Stepper

# Negative controls: without any all-reduce of a step, without that of batch norm's statistics, and with examples that
# only fill up a batch counted as others are.
STRATEGIES = {"ring": OwnWeights, "identity": Identity, "local": LocalStatistics, "counted": OwnWeights}
take = Stepper.take


def take_all(stepper: Stepper, batch: PixelBatch, *numbers: Any) -> Any:
    return take(stepper, replace(batch, weights=tf.ones_like(batch.weights)), *numbers)


def main(runs: list[list[Any]]) -> None:
    of_rank = Monitor()
    for kind, *words in runs:
        strategy = STRATEGIES[kind](of_rank)
        close, strategy.collective.close = strategy.collective.close, lambda: None  # type: ignore[method-assign]

        def start(settings: Settings, monitor: Monitor, strategy: OwnWeights = strategy) -> None:
            loop.train(settings, strategy, monitor)

        # a run whose ranks come to differ would end before its weights can be compared
        is_control = kind != "ring"
        with (
            mock.patch.object(Stepper, "take", take_all) if kind == "counted" else nullcontext(),
            mock.patch.object(loop, "require_equal_weights") if is_control else nullcontext(),
        ):
            command(start).main(list(map(str, words)), obj=of_rank, standalone_mode=False)
    close()


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    gc.freeze()  # Keras collects garbage before each model
    main(json.loads(sys.argv[1]))
    end_process(0)
