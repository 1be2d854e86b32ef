"""Two hosts, each with its name, network and sshd: the run of one machine, bit for bit; and nothing is left of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from etl.errors import EnvironmentFailure
from tests.hadoop.processes import find_all
from tests.lib import two_hosts
from tests.lib.commands import REPOSITORY, contents, environment, horovodrun, run, succeeded
from tests.lib.two_hosts import HOSTS, TRAINING, enter

pytestmark = pytest.mark.chaos  # with two hosts' and Hadoop's start it takes minutes
MODULE = (sys.executable, "-m", "tests.lib.two_hosts")


def network_namespaces() -> set[str]:
    """Those that any process is in."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(folder / "ns" / "net"))
        except OSError:  # ended meanwhile
            continue
    return found


def require_nothing_left(out: Path, before: set[str]) -> None:
    assert not find_all(lambda words, its: any(str(out).encode() in each for each in (*words, *its)))
    assert network_namespaces() == before
    assert not list(Path("/run").glob("two-hosts"))


def read(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text())


def test_two_hosts_train_as_one_machine_does(digits_root: Path, tmp_path: Path) -> None:
    before, out, root = network_namespaces(), tmp_path / "out", tmp_path / "root"
    out.mkdir()
    shutil.copytree(digits_root / "slices", root / "slices")
    told = succeeded(run(*MODULE, root, out, timeout_s=300))
    require_nothing_left(out, before)
    theirs = out / "runs" / "two-hosts"
    ranks = read(theirs, "run.json")["ranks"]
    assert [(each["rank"], each["host"]) for each in ranks] == list(enumerate(HOSTS)), told.stdout
    succeeded(horovodrun(2, "train/main.py", "--data", root, *TRAINING))
    ours = root / "runs" / "two-hosts"
    assert read(theirs, "result.json")["result"] == read(ours, "result.json")["result"]
    kept = [contents(each / "checkpoints", "checkpoint.json") for each in (theirs, ours)]
    assert len(kept[0]) == 4
    assert kept[0] == kept[1]
    evaluation = read(theirs, "evaluation-test.json")
    assert evaluation["accuracy"] == read(ours, "result.json")["result"]["test_accuracy"] > 0.9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number: signal.Signals, digits_root: Path, tmp_path: Path) -> None:
    before = network_namespaces()
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            [*MODULE, digits_root, tmp_path], cwd=REPOSITORY, env=environment(), stdout=log, stderr=log
        )
    deadline = time.monotonic() + 120
    while not find_all(
        lambda words, its: b"horovodrun" in b" ".join(words) and str(tmp_path).encode() in b"".join(its)
    ):
        assert running.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert network_namespaces() != before
    running.send_signal(number)
    assert running.wait(20) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    time.sleep(1)
    require_nothing_left(tmp_path, before)


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as as_a_user:
        as_a_user.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(EnvironmentFailure, match="two hosts need root"):
            enter(tmp_path, tmp_path)
    monkeypatch.setattr(two_hosts, "SYSTEM_FOLDERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(two_hosts, "PACKAGES", {"sshd": "openssh-server"})
    with pytest.raises(EnvironmentFailure, match="sshd is missing; install it first: apt-get install openssh-server"):
        enter(tmp_path, tmp_path)
