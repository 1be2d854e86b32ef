#!/usr/bin/env python3
"""train/main.py in ranks that may take $EXTRA_BYTES of memory beyond what each has when its libraries are loaded."""

import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # which reserves nothing in advance

import re
import resource
from pathlib import Path
from typing import Any
from unittest import mock

from train.config.run_options import command
from train.main import start
from train.monitor.rank_process import run_rank
from train.strategies import ddp

CORES = 2  # each has threads, whose stacks count


def take_device_with_limit(device: str) -> Any:
    taken = take_device(device)
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    limit = int(found[1]) * 1024 + int(os.environ["EXTRA_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return taken


take_device = ddp.take_device

if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    mock.patch.object(ddp, "take_device", take_device_with_limit).start()
    run_rank(command(start), "train/main.py", "")
