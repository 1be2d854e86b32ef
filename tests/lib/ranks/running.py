"""Runs that go on while a test does something to them, and that end with it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import REPOSITORY, environment

# what is in the folder of a run that is done
FINISHED = [
    *("checkpoints", "confusion-test.json", "logs", "metrics", "recipe.toml", "result.json", "run.json", "tensorboard")
]


def metric_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics of the run in this folder, in their order."""
    files = sorted((run / "metrics").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def bytes_per_step(run: Path) -> list[float]:
    """Over all steps of the run in this folder: what each rank sent, then what each received."""
    lines = [line for line in metric_lines(run) if line["kind"] == "ranks"]
    of_ranks = [np.sum([line[name] for line in lines], axis=0) for name in ("sent_bytes", "received_bytes")]
    return [float(each) / sum(line["steps"] for line in lines) for each in np.concatenate(of_ranks)]


def marked(mark: str) -> list[Process]:
    """The processes with ``MARK=mark`` in their environment."""
    return find_all(lambda _, its: f"MARK={mark}".encode() in its)


@contextmanager
def spawn(*words: object, log: Path, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs while the block does, and no longer; its output goes to ``log``.

    All that it started ends with it: their environment has a ``MARK``, the log unless it is given; see `marked`.
    """
    more = {"MARK": str(log), **more}
    with log.open("w") as output:
        running = subprocess.Popen(
            [str(word) for word in words],
            cwd=REPOSITORY,
            env=environment(**more),
            start_new_session=True,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        yield running
    finally:
        for left in marked(more["MARK"]):
            left.send(signal.SIGKILL)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
