#!/usr/bin/env python3
"""train/main.py with a ddp that reduces no gradients: a negative control."""

from unittest import mock

from train.config.settings import command
from train.main import start
from train.monitor.rank_process import run_rank
from train.strategies.ddp import Copies

if __name__ == "__main__":
    mock.patch.object(Copies, "wrap", lambda copies, model: model).start()
    run_rank(command(start), "train/main.py", "")
