"""Two hosts, each with its name and network: the run of one machine, and nothing is left of them."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hadoop.processes import find_all
from tests.lib.commands import REPOSITORY, contents, horovodrun, run, succeeded
from tests.lib.ranks.running import wait_until
from tests.lib.torch_ranks.running import BIN, torchrun
from tests.lib.torch_ranks.weights import distance
from tests.lib.two_hosts import HOSTS, TRAINING, network_namespaces
from train.launch import Task

NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ADDRESSES = ("10.78.0.1", "10.78.0.2")  # of the hosts of `benchmarks/lib/ways/network.py`
CLOSE = 1e-5  # of single precision, after 15 steps


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


def train_on_hosts(*jobs: tuple[int, dict[str, str], Sequence[str]]) -> None:
    """Run jobs, each with its host, variables and words, until the first one has ended."""
    listed = [(f"rank{host}", variables, words) for host, variables, words in jobs]
    child = ("python", "-P", "-m", "lib.child", "lib.ways.network:run_jobs", json.dumps([listed]))
    succeeded(run(*NAMESPACES, *child, PYTHONPATH=f"{REPOSITORY / 'benchmarks'}:{REPOSITORY}"))


def options_for(root: Path, strategy: str, model: str, name: str) -> list[str]:
    fixed = ["--batch=64", "--warmup-epochs=0", "--lr=0.1", "--max-steps=15"]
    return ["train/main.py", f"--data={root}", f"--strategy={strategy}", f"--model={model}", f"--run={name}", *fixed]


@pytest.mark.chaos  # needs root
@pytest.mark.usefixtures("torch_environment")
def test_ddp_trains_on_two_hosts_as_on_one(root: Path) -> None:
    model = "tests.lib.torch_ranks.tiny:smooth"
    nodes = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29500", "--"]
    words = [f"{BIN}/torchrun", *nodes, *options_for(root, "ddp", model, "hosts")]
    variables = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    train_on_hosts(*((host, variables, words) for host in range(2)))
    succeeded(torchrun(2, *options_for(root, "ddp", model, "alone")))
    assert distance(root, "alone", "hosts") < CLOSE
    assert [each["host"] for each in read(root / "runs/hosts", "run.json")["ranks"]] == ["rank0", "rank1"]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("strategy", "launch", "roles"),
    [
        ("multi-worker-mirrored", ["-np", "2"], ["worker", "worker"]),
        ("synchronous-parameter-server", ["--workers", "2"], ["chief", "ps", "worker", "worker"]),
    ],
)
def test_tensorflows_strategies_train_on_two_hosts_as_on_one(
    strategy: str, launch: list[str], roles: list[str], root: Path
) -> None:
    model = "tests.lib.ranks.tiny:smooth"
    places = [(role, number % 2, f"{ADDRESSES[number % 2]}:{4000 + number}") for number, role in enumerate(roles)]
    cluster = {role: [address for its, _, address in places if its == role] for role in roles}
    words = ["python", *options_for(root, strategy, model, "hosts")]
    tasks = [(host, Task(words, cluster, role, cluster[role].index(address))) for role, host, address in places]
    train_on_hosts(*((host, task.variables, words) for host, task in tasks))
    succeeded(run("python", "train/launch.py", *launch, *options_for(root, strategy, model, "alone")))
    assert distance(root, "alone", "hosts") < CLOSE
