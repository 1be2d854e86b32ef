"""Two hosts, each with its name, network and sshd: the run of one machine, bit for bit; and nothing is left of them."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hadoop.processes import find_all
from tests.lib.commands import contents, horovodrun, run, succeeded
from tests.lib.ranks.running import wait_until
from tests.lib.two_hosts import HOSTS, TRAINING, network_namespaces


def read(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text())


@pytest.mark.chaos  # with two hosts' and Hadoop's start it takes minutes
def test_two_hosts_train_as_one_machine_does(digits_root: Path, tmp_path: Path) -> None:
    before, out, root = network_namespaces(), tmp_path / "out", tmp_path / "root"
    out.mkdir()
    shutil.copytree(digits_root / "slices", root / "slices")
    outcome = succeeded(run(sys.executable, "-m", "tests.lib.two_hosts", root, out, timeout_s=600))
    wait_until(lambda: not find_all(lambda words, its: any(str(out).encode() in each for each in (*words, *its))))
    wait_until(lambda: network_namespaces() <= before)
    assert not Path("/run/two-hosts").exists()
    theirs, ours = out / "runs" / "two-hosts", root / "runs" / "two-hosts"
    ranks = read(theirs, "run.json")["ranks"]
    assert [(each["rank"], each["host"]) for each in ranks] == list(enumerate(HOSTS)), outcome.stdout
    succeeded(horovodrun(2, "train/main.py", "--data", root, *TRAINING))
    assert read(theirs, "result.json")["result"] == read(ours, "result.json")["result"]
    kept = [contents(each / "checkpoints", "checkpoint.json") for each in (theirs, ours)]
    assert len(kept[0]) == 4
    assert kept[0] == kept[1]
    evaluation = read(theirs, "evaluation-test.json")
    assert evaluation["accuracy"] == read(ours, "result.json")["result"]["test_accuracy"] > 0.9
