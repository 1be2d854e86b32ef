"""Ranks of which one has another version of ringslice: they end with one line."""

import re
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY
from tests.lib.ranks.running import started
from train.launch import tasks_of
from train.parallel.cluster import SERVER

pytestmark = pytest.mark.integration

OTHER = "9.9"
# The program of a server that looks for the chief only when that has ended.
LATE = """
import runpy, sys, time
from train.strategies import parameter_server
look = parameter_server.await_end
parameter_server.await_end = lambda *arguments: time.sleep(20) or look(*arguments)
sys.argv[0] = "train/main.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A copy of the code, installed as another version."""
    folder = tmp_path / "other"
    for name in ("etl", "mapreduce", "train"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "ringslice_entry.py", folder)
    metadata = folder / f"ringslice-{OTHER}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: ringslice\nVersion: {OTHER}\n")
    return folder


@pytest.mark.parametrize(
    ("strategy", "roles", "who", "first"),
    [
        ("multi-worker-mirrored", {"worker": 2}, "rank 1", "rank 0"),
        ("synchronous-parameter-server", {"chief": 1, "ps": 1, "worker": 1}, "worker 0", "the chief"),
    ],
)
def test_the_rank_with_another_version_is_named(
    strategy: str, roles: Mapping[str, int], who: str, first: str, *, root: Path, other: Path, tmp_path: Path
) -> None:
    """It is the last process; the first one reports it."""
    words = ("--data", root, "--strategy", strategy, "--model", "mlp", "--max-steps", 1)
    tasks = tasks_of((), **roles)
    with ExitStack() as stack:
        processes = []
        for number, task in enumerate(tasks):
            folder = REPOSITORY if number < len(tasks) - 1 else other
            program = ("-c", LATE) if task.role == SERVER else (folder / "train/main.py",)
            command = (sys.executable, *program, *words)
            variables = {"PYTHONPATH": str(folder), "TF_CONFIG": task.variables["TF_CONFIG"]}
            processes.append(stack.enter_context(started(*command, log=tmp_path / f"log-{number}", **variables)))
        statuses = [each.wait(120) for each in processes]
    lines = (tmp_path / "log-0").read_text().splitlines()
    assert statuses[0] == 3, lines
    [line] = [each for each in lines if "error: " in each]
    assert re.search(rf": {who} on {socket.gethostname()} has ringslice {OTHER}, {first} has (none|[\d.]+);", line)
