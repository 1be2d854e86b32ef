#!/usr/bin/env python3
"""train/main.py with a ddp that reduces no gradients: a negative control."""

from unittest import mock

from torch import nn

from train.config.settings import Settings, command
from train.loop import train
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.strategies.ddp import Copies, run_ddp


def plain(copies: Copies, model: nn.Module) -> nn.Module:
    del copies
    return model


def start(settings: Settings, monitor: Monitor) -> None:
    run_ddp(lambda strategy: train(settings, strategy, monitor), monitor, settings.device, 60)


if __name__ == "__main__":
    mock.patch.object(Copies, "wrap", plain).start()
    run_rank(command(start), "train/main.py", "")
