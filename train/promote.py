#!/usr/bin/env python3
"""Compare trained runs with the champion, the run in use, on the same test images, and promote one that is better.

    train/promote.py --data data/flowers nightly
    horovodrun -np 8 train/promote.py --data data/flowers nightly other --min-accuracy 0.9

The work itself is in train/evaluation/promote.py.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

from typing import Any

import click

from etl.errors import UsageError
from etl.options.click_command import add_options
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from train.config.reader_options import is_given, reading_options
from train.config.run_options import (
    CHECKPOINT,
    DATA,
    EVALUATION_STRATEGY,
    JSON,
    NAME,
    STALL_TIMEOUT,
    script,
)
from train.evaluation.comparison import Rules
from train.main import import_for_evaluation
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank, with_monitor
from train.parallel.endings import REMEDIES

LIMITS = {
    "max_p": "Promote only if the p-value of McNemar's test is at most this (divided by the number of candidates).",
    "min_accuracy": "Promote only if the accuracy is at least this; end with status 1 if it is not.",
    "max_class_drop": "Promote only if no class loses more than this of its accuracy.",
}


def limit_options(function: Any) -> Any:
    """The options of `LIMITS`, with the defaults of `Rules`."""
    for name, text in reversed(LIMITS.items()):
        given = {"type": float, "default": getattr(Rules, name), "show_default": True, "metavar": "FRACTION"}
        function = click.option(f"--{name.replace('_', '-')}", help=text, **given)(function)
    return function


@script("train/promote.py", "horovodrun -np 8 train/promote.py --data data/flowers nightly --min-accuracy 0.9")
@click.argument("runs", nargs=-1, metavar="RUN...")
@DATA
@NAME
@click.option("--split", default="test", show_default=True, help="The split to compare on.")
@CHECKPOINT
@EVALUATION_STRATEGY
@limit_options
@click.option("--rollback", is_flag=True, help="Make the champion before this one the champion again; give no RUN.")
@JSON
@STALL_TIMEOUT
@reading_options
@add_options(*ENVIRONMENT_OPTIONS)
@with_monitor
def command(monitor: Monitor, /, runs: tuple[str, ...], rollback: bool, stall_timeout_s: float, **values: Any) -> None:
    """Promote the best of the candidates RUN to the champion, if it is better by a paired test on the same images.

    The champion is recorded in ROOT/models/champion.json, with those before it; "champion" stands for its run in
    --run of other commands. The first one needs only --min-accuracy. Exit status 0 if a candidate was promoted or the
    champion was kept, 1 if the best candidate is below --min-accuracy.
    """
    if bool(runs) == rollback:
        raise UsageError("give RUN: the runs to compare with the champion; or --rollback without a RUN")
    if rollback and (given := [name for name in ("split", "checkpoint", *LIMITS) if is_given(name)]):
        raise UsageError(f"--{given[0].replace('_', '-')} has no meaning with --rollback, which compares nothing")
    rules = Rules(**{name: values.pop(name) for name in LIMITS})
    monitor.start(stall_timeout_s)
    run_on_ranks = import_for_evaluation(values["strategy"], monitor, stall_timeout_s)
    from train.evaluation.promote import Promotion, promote

    wanted = Promotion(runs=runs, rules=rules, rollback=rollback, **values)
    run_on_ranks(lambda strategy: promote(wanted, strategy, monitor))


if __name__ == "__main__":
    run_rank(command, "train/promote.py", REMEDIES["promote.py"])
