"""Two hosts of this machine, each with its name and network: their run is that of one machine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY, horovodrun, run, succeeded
from tests.lib.ranks.outcomes import distance
from tests.lib.torch_ranks.running import BIN, require_torch, torchrun
from train.launch import Task

pytestmark = pytest.mark.chaos  # needs root

NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ADDRESSES = ("10.78.0.1", "10.78.0.2")  # of the hosts of `benchmarks/lib/ways/network.py`
IMPORTED = f"{REPOSITORY / 'benchmarks'}:{REPOSITORY}"
CLOSE = 1e-5  # of single precision, after 15 steps
TINY, TORCH_TINY = "tests.lib.ranks.tiny:smooth", "tests.lib.torch_ranks.tiny:smooth"


def in_namespaces(function: str, *arguments: object) -> list[object]:
    """The command that calls a function of the benchmark, in namespaces that end with it."""
    child = ("python", "-P", "-m", "lib.child", f"lib.ways.network:{function}", json.dumps(arguments))
    return [*NAMESPACES, *child]


Job = tuple[int, Mapping[str, str], Sequence[str]]  # host, variables and words


def train_on_hosts(*jobs: Job) -> None:
    """Run jobs until the first one has ended."""
    named = [(f"rank{host}", variables, words) for host, variables, words in jobs]
    succeeded(run(*in_namespaces("run_jobs", named), PYTHONPATH=IMPORTED))


def options_for(model: str, name: str) -> list[str]:
    return [f"--model={model}", f"--run={name}", "--batch=64", "--warmup-epochs=0", "--lr=0.1", "--max-steps=15"]


def words_for(root: Path, strategy: str, model: str, name: str) -> list[str]:
    return ["train/main.py", f"--data={root}", f"--strategy={strategy}", *options_for(model, name)]


def require_same_on_two_hosts(root: Path) -> None:
    assert distance(root, "alone", "hosts") < CLOSE
    ranks = json.loads((root / "runs/hosts/run.json").read_text())["ranks"]
    assert [each["host"] for each in ranks] == ["rank0", "rank1"]


def test_horovod(root: Path) -> None:
    """The ranks have the variables that horovodrun gives them."""
    succeeded(run(*in_namespaces("run", "horovod", 2, str(root), options_for(TINY, "hosts"), 1), PYTHONPATH=IMPORTED))
    succeeded(horovodrun(2, *words_for(root, "horovod", TINY, "alone")))
    require_same_on_two_hosts(root)


def test_ddp(root: Path) -> None:
    require_torch()
    nodes = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29500", "--"]
    words = [f"{BIN}/torchrun", *nodes, *words_for(root, "ddp", TORCH_TINY, "hosts")]
    variables = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    train_on_hosts(*((host, variables, words) for host in range(2)))
    succeeded(torchrun(2, *words_for(root, "ddp", TORCH_TINY, "alone")))
    require_same_on_two_hosts(root)


@pytest.mark.parametrize(
    ("strategy", "launch", "roles"),
    [
        ("multi-worker-mirrored", ["-np", "2"], ["worker", "worker"]),
        ("synchronous-parameter-server", ["--workers", "2"], ["chief", "ps", "worker", "worker"]),
    ],
)
def test_tensorflows_strategies(strategy: str, launch: list[str], roles: list[str], root: Path) -> None:
    """A process for each of ``roles``, on the two hosts in turns."""
    words = ["python", *words_for(root, strategy, TINY, "hosts")]
    places = [(role, number % 2, f"{ADDRESSES[number % 2]}:{4000 + number}") for number, role in enumerate(roles)]
    cluster = {role: [address for its, _, address in places if its == role] for role in roles}
    tasks = [(host, Task(words, cluster, role, cluster[role].index(address))) for role, host, address in places]
    train_on_hosts(*((host, task.variables, words) for host, task in tasks))
    succeeded(run("python", "train/launch.py", *launch, *words_for(root, strategy, TINY, "alone")))
    assert distance(root, "alone", "hosts") < CLOSE
