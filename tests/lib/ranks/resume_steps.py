#!/usr/bin/env python3
"""Train the named runs one after the other in the same ranks, each from its newest checkpoint.

horovodrun -np 3 tests/lib/ranks/resume_steps.py ROOT RUN RUN …
"""

import gc
import os
import sys

from etl.entry_point import end_process
from tests.lib.ranks.rank_failures import OPTIONS
from train.config.settings import Settings, command
from train.monitor.monitor import Monitor
from train.parallel.cores import claim_cores
from train.parallel.startup import OPTIONAL, hide_packages

with hide_packages(OPTIONAL):
    from train.loop import train
    from train.strategies.horovod_ring import Horovod


def main(root: str, *runs: str) -> None:
    of_rank = Monitor()
    strategy = Horovod(of_rank)
    close, strategy.collective.close = strategy.collective.close, lambda: None  # type: ignore[method-assign]

    def start(settings: Settings, monitor: Monitor) -> None:
        train(settings, strategy, monitor)

    for run in runs:
        words = [*OPTIONS, "--data", root, "--run", run, "--resume", "auto", "--json"]
        command(start).main(words, obj=of_rank, standalone_mode=False)
    close()


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    gc.freeze()  # Keras collects garbage before each model
    main(*sys.argv[1:])
    end_process(0)
