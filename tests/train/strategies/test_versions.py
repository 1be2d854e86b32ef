"""Ranks of which one has another version of ringslice: each strategy that spans hosts ends with one line."""

import json
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY
from tests.lib.ranks.running import started
from tests.lib.torch_ranks.running import BIN, require_torch
from train.launch import free_ports

pytestmark = pytest.mark.integration

OTHER = "9.9"


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


def of_torch() -> list[Mapping[str, str]]:
    require_torch()
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "2"}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in range(2)]


def of_tensorflow(*roles: str) -> list[Mapping[str, str]]:
    cluster: dict[str, list[str]] = {}
    for role, port in zip(roles, free_ports(len(roles)), strict=True):
        cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
    tasks = [(role, index) for role, own in cluster.items() for index in range(len(own))]
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})} for role, index in tasks
    ]


@pytest.mark.parametrize(
    ("strategy", "roles"),
    [
        ("ddp", ()),
        ("multi-worker-mirrored", ("worker", "worker")),
        ("synchronous-parameter-server", ("chief", "ps", "worker")),
    ],
)
def test_the_rank_with_another_version_is_named(
    strategy: str, roles: Sequence[str], root: Path, other: Path, tmp_path: Path
) -> None:
    """It is the last process; the first one reports it."""
    who, first = ("worker 0", "the chief") if "chief" in roles else ("rank 1", "rank 0")
    python = sys.executable if roles else str(BIN / "python")
    of_processes = of_tensorflow(*roles) if roles else of_torch()
    words = ("--data", root, "--strategy", strategy, "--model", "mlp", "--max-steps", 1)
    folders = [*[REPOSITORY] * (len(of_processes) - 1), other]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(
                    *(python, folder / "train/main.py", *words),
                    log=tmp_path / f"log-{number}",
                    PYTHONPATH=str(folder),
                    **variables,
                )
            )
            for number, (folder, variables) in enumerate(zip(folders, of_processes, strict=True))
        ]
        statuses = [each.wait(120) for each in processes]
    lines = (tmp_path / "log-0").read_text().splitlines()
    assert statuses[0] == 3, lines
    [line] = [each for each in lines if "error: " in each]
    assert re.search(rf": {who} on {socket.gethostname()} has ringslice {OTHER}, {first} has (none|[\d.]+);", line)
