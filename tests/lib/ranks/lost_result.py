#!/usr/bin/env python3
"""train/main.py beside parameter servers, whose chief kills worker 0 once all parts of a step are computed, and before
it has them.
"""

import json
import os
import signal
from unittest import mock

from tests.hadoop.processes import find_all
from train.config.run_options import command
from train.main import start
from train.monitor.rank_process import run_rank
from train.parallel.trainer import StepResult
from train.strategies.parameter_server_trainer import ParameterServerTrainer

STEP = 5
collect = ParameterServerTrainer._collect


def kill_worker(trainer: ParameterServerTrainer, left: int) -> list[StepResult]:
    if any(each.step == STEP for each in trainer._pending):
        patch.stop()
        trainer._coordinator.join()
        config = {**json.loads(os.environ["TF_CONFIG"]), "task": {"type": "worker", "index": 0}}
        variable = f"TF_CONFIG={json.dumps(config)}".encode()
        for each in find_all(lambda _, variables: variable in variables):
            each.send(signal.SIGKILL)
    return collect(trainer, left)


patch = mock.patch.object(ParameterServerTrainer, "_collect", kill_worker)

if __name__ == "__main__":
    patch.start()
    run_rank(command(start), "train/main.py", "")
