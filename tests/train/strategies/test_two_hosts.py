"""Two hosts of this machine, each with its name and network: their run is that of one machine."""

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import REPOSITORY, horovodrun, run, succeeded, wait_until
from tests.lib.ranks.outcomes import distance, require_each_key_once
from tests.lib.ranks.running import started
from tests.lib.torch_ranks.running import BIN, torchrun
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


def on_hosts(*jobs: Job) -> list[object]:
    """The command that runs jobs until the first one has ended."""
    return in_namespaces("run_jobs", [(f"rank{host}", variables, words) for host, variables, words in jobs])


def train_on_hosts(*jobs: Job) -> None:
    succeeded(run(*on_hosts(*jobs), PYTHONPATH=IMPORTED))


def options_for(model: str, name: str) -> list[str]:
    fixed = ["--batch=64", "--warmup-epochs=0", "--lr=0.1", "--max-steps=15"]
    return [f"--model={model}", f"--run={name}", *fixed]


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


@pytest.mark.usefixtures("torch_environment")
def test_ddp(root: Path) -> None:
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
    words = ["python", *words_for(root, strategy, TINY, "hosts")]
    train_on_hosts(*((host, task.variables, words) for host, task in tasks_on_hosts(words, roles)))
    succeeded(run("python", "train/launch.py", *launch, *words_for(root, strategy, TINY, "alone")))
    assert distance(root, "alone", "hosts") < CLOSE


def tasks_on_hosts(words: Sequence[str], roles: Sequence[str]) -> list[tuple[int, Task]]:
    """A task for each of ``roles``, on the two hosts in turns."""
    places = [(role, number % 2, f"{ADDRESSES[number % 2]}:{4000 + number}") for number, role in enumerate(roles)]
    cluster = {role: [address for its, _, address in places if its == role] for role in roles}
    return [(host, Task(words, cluster, role, cluster[role].index(address))) for role, host, address in places]


# of sh: a scheduler that starts a worker again that was killed, and a chief that ends after all others
REPLACED = 'until "$@"; do :; done; touch "$0"'
LAST = '"$@" || exit; until [ $(ls "$0" | wc -l) = 3 ]; do sleep 0.1; done'


def test_a_killed_worker_of_parameter_servers_is_replaced(root: Path, tmp_path: Path) -> None:
    """Asynchronous ones: workers and servers end after the chief, each example counts once, and the model learns."""
    words = ["python", "train/main.py", f"--data={root}", "--strategy=parameter-server", "--run=hosts", "--model=cnn"]
    words += ["--batch=32", "--epochs=3", "--audit", "--checkpoint-steps=1"]
    tasks = tasks_on_hosts(words, ["chief", "ps", "worker", "worker"])
    ended, log = tmp_path / "ended", tmp_path / "log"
    ended.mkdir()
    waiting = [("sh", "-c", REPLACED, f"{ended}/{each.name}") for _, each in tasks[1:]]
    shells = [("sh", "-c", LAST, str(ended)), *waiting]
    jobs = [(host, each.variables, [*shell, *words]) for (host, each), shell in zip(tasks, shells, strict=True)]
    with started(*on_hosts(*jobs), log=log, PYTHONPATH=IMPORTED) as process:
        wait_until(lambda: any((root / "runs/hosts/checkpoints").glob("*")), process)
        [victim] = workers_of_second_host(log)
        victim.send(signal.SIGKILL)
        wait_until(lambda: workers_of_second_host(log) not in ([], [victim]), process)
        assert process.wait(240) == 0, log.read_text()
    assert "error:" not in log.read_text()
    require_each_key_once(root / "runs/hosts", root / "slices/default", 3)
    assert json.loads((root / "runs/hosts/result.json").read_text())["result"]["test_accuracy"] > 0.9


def workers_of_second_host(log: Path) -> list[Process]:
    mark, task = f"MARK={log}".encode(), json.dumps({"type": "worker", "index": 1})[1:-1].encode()
    return find_all(
        lambda words, variables: (
            words[0].endswith(b"python") and mark in variables and any(task in each for each in variables)
        )
    )
