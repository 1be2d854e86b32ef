#!/usr/bin/env python3
"""Evaluate a run's newest checkpoint, or its best, on one split, every example exactly once, one process for each rank.

    train/evaluate.py --data data/flowers --run nightly
    horovodrun -np 8 train/evaluate.py --data data/flowers --run nightly --min-accuracy 0.9
    torchrun --nproc-per-node 8 -- train/evaluate.py --strategy ddp --data data/flowers --run nightly

The number of ranks need not be the training's. The work itself is in train/evaluation.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

from typing import Any

import click

from etl.errors import UsageError
from etl.options.click_command import add_options
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from train.config.reader_options import reading_options
from train.config.run_options import (
    CHECKPOINT,
    DATA,
    EVALUATION_STRATEGY,
    JSON,
    NAME,
    STALL_TIMEOUT,
    TRAINED_RUN,
    script,
)
from train.main import import_for_evaluation
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank, with_monitor
from train.parallel.endings import REMEDIES


@script("train/evaluate.py", "horovodrun -np 8 train/evaluate.py --data data/flowers --run nightly --min-accuracy 0.9")
@DATA
@NAME
@TRAINED_RUN
@click.option("--split", default="test", show_default=True, help="The split to evaluate.")
@CHECKPOINT
@EVALUATION_STRATEGY
@click.option(
    "--min-accuracy",
    type=float,
    metavar="FRACTION",
    help="End with status 1 if the accuracy is below this, from 0 to 1.",
)
@JSON
@STALL_TIMEOUT
@reading_options
@add_options(*ENVIRONMENT_OPTIONS)
@with_monitor
def command(monitor: Monitor, /, min_accuracy: float | None, stall_timeout_s: float, **values: Any) -> None:
    """Evaluate a checkpoint of a run on one split, on as many ranks as horovodrun or torchrun starts.

    Every example counts exactly once. The result goes to ROOT/runs/NAME/evaluation-SPLIT.json.
    """
    if min_accuracy is not None and not 0 <= min_accuracy <= 1:
        raise UsageError(f"--min-accuracy {min_accuracy:g} is out of range; give a number from 0 to 1")
    monitor.start(stall_timeout_s)
    run_on_ranks = import_for_evaluation(values["strategy"], monitor, stall_timeout_s)
    from train.evaluation.evaluate import Evaluation, evaluate_run

    wanted = Evaluation(min_accuracy=min_accuracy, **values)
    run_on_ranks(lambda strategy: evaluate_run(wanted, strategy, monitor))


if __name__ == "__main__":
    run_rank(command, "train/evaluate.py", REMEDIES["evaluate.py"])
