#!/usr/bin/env python3
"""Two epochs of a tiny model on the digits, of the named runs one after the other, each from where its checkpoint says.

horovodrun -np 3 tests/lib/ranks/resume_steps.py ROOT RUN RUN …
"""

import gc
import os
import sys

from etl.errors import end_process
from train.config.recipe import Recipe
from train.config.settings import Settings
from train.config.stopping import Stopping
from train.monitor.monitor import Monitor
from train.parallel.cores import claim_cores
from train.parallel.startup import OPTIONAL, hide_packages

with hide_packages(OPTIONAL):
    from train.loop import train
    from train.strategies.horovod_ring import Horovod

BATCH = 72  # 10 steps of 2 ranks


def main(root: str, *runs: str) -> None:
    monitor = Monitor()
    strategy = Horovod(monitor)
    close, strategy.collective.close = strategy.collective.close, lambda: None  # type: ignore[method-assign]
    for run in runs:
        settings = Settings(
            data=root,
            recipe=Recipe(model="tests.lib.ranks.tiny:tiny", batch=BATCH, lr=0.04, augment="crop,flip"),
            stopping=Stopping(epochs=2),
            run=run,
            resume="auto",
            audit=True,
            json=True,
            checkpoint_steps=1,
            keep=1000,
            deterministic=True,
        )
        train(settings, strategy, monitor)
    close()


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    gc.freeze()  # Keras collects garbage before each model
    main(*sys.argv[1:])
    end_process(0)
