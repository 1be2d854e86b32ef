"""Which processes a cluster has, the CPUs of each rank, and the bytes that it sends and receives."""

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import UsageError
from train.config.settings import HOROVOD, MIRRORED, MULTI_WORKER, OF_TORCH, SYNCHRONOUS
from train.config.settings import SERVED as SERVED_STRATEGIES
from train.main import require_strategy
from train.parallel.cluster import require_servers, require_workers
from train.parallel.cores import physical_cores, share_cores
from train.parallel.usage import tcp_counters, transferred, usage_since

TASK = {"type": "worker", "index": 1}


@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"worker": "127.0.0.1:1"},
        {"worker": ["a:1"]},  # without the second, which this process is
        {"worker": ["a:1", "b"]},
        {"worker": ["a:1", "a:1"]},
        {"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    ],
)
def test_a_cluster_that_is_not_of_workers_alone_is_refused(roles: object) -> None:
    task = require_workers(json.dumps({"cluster": {"worker": ["a:1", "b:2222"]}, "task": TASK}))
    assert (task.index, task.cluster["worker"]) == (1, ["a:1", "b:2222"])
    with pytest.raises(UsageError, match="names no workers HOST:PORT with this process among them"):
        require_workers(json.dumps({"cluster": roles, "task": TASK}))


SERVED = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
WORKERS = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": TASK})
BESIDE_SERVERS = json.dumps({"cluster": SERVED, "task": TASK})
OF_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}


@pytest.mark.parametrize(
    ("strategy", "variables", "line"),
    [
        ("horovod", {"TF_CONFIG": WORKERS}, "TF_CONFIG has several workers. Give --strategy multi-worker-mirrored"),
        ("parameter-server", {"TF_CONFIG": WORKERS}, "TF_CONFIG has several workers. Give"),
        ("mirrored", {"TF_CONFIG": BESIDE_SERVERS}, "TF_CONFIG has parameter servers. Give --strategy synchronous-"),
        ("horovod", OF_TORCHRUN, "torchrun started 2 processes. Give --strategy ddp"),
        (
            SYNCHRONOUS,
            {"HOROVOD_SIZE": "2", "TF_CONFIG": BESIDE_SERVERS},
            "horovodrun started 2 processes. Start it by",
        ),
        *(
            (strategy, {"HOROVOD_SIZE": "2"}, "horovodrun started 2 processes. Give --strategy horovod")
            for strategy in ("ddp", "mirrored", "multi-worker-mirrored", "parameter-server")
        ),
    ],
)
def test_a_strategy_that_does_not_fit_its_launcher_is_refused(
    strategy: str, variables: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"--strategy {strategy}: {line}"):
        require_strategy(strategy)


@pytest.mark.parametrize(
    ("variables", "strategies"),
    [
        ({}, (HOROVOD, MIRRORED, MULTI_WORKER, *SERVED_STRATEGIES, *OF_TORCH)),
        (OF_TORCHRUN, OF_TORCH),
        ({"HOROVOD_SIZE": "2"}, (HOROVOD,)),
        ({"TF_CONFIG": WORKERS}, (MULTI_WORKER,)),
        ({"TF_CONFIG": BESIDE_SERVERS}, SERVED_STRATEGIES),
    ],
)
def test_a_strategy_that_fits_its_launcher_is_accepted(
    variables: dict[str, str], strategies: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for strategy in strategies:
        require_strategy(strategy)


@pytest.mark.parametrize("changes", [{"ps": []}, {"ps": ["b:1"]}, {"evaluator": ["e:1"]}, {"worker": ["b:1"]}], ids=str)
def test_clusters_without_a_chief_workers_and_servers_are_refused(changes: dict[str, object]) -> None:
    for own in ({"type": "chief", "index": 0}, TASK):
        task = require_servers(json.dumps({"cluster": SERVED, "task": own}))
        assert (task.role, task.index, task.cluster["worker"]) == (own["type"], own["index"], ["b:1", "c:1"])
    with pytest.raises(UsageError, match="names no chief, workers and ps HOST:PORT with this process among them"):
        require_servers(json.dumps({"cluster": {**SERVED, **changes}, "task": TASK}))


# the CPUs of each CPU's core, and those of each socket
Machine = tuple[Mapping[int, Sequence[int]], Mapping[int, str]]
# 2 sockets x 4 cores x 2 threads, as Linux numbers them: first threads first, socket by socket
SERVER: Machine = {cpu: [cpu % 8, cpu % 8 + 8] for cpu in range(16)}, {0: "0-3,8-11", 1: "4-7,12-15"}
# the same, where neighbours alternate between the sockets, and the threads of a core are neighbours
ALTERNATING = {cpu: [cpu & ~1, cpu | 1] for cpu in range(16)}, {0: "0-1,4-5,8-9,12-13", 1: "2-3,6-7,10-11,14-15"}


@pytest.mark.parametrize(
    ("machine", "allowed", "shares"),
    [
        (SERVER, range(16), [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]),
        (SERVER, range(2, 8), [[2, 3, 4], [5, 6, 7]]),  # a cpuset of one thread per core
        (SERVER, [3, 8, 11], [[8], [3, 11]]),
        (SERVER, [0, 8], [[0], [8], [0]]),
        (ALTERNATING, range(16), [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
        (({}, {}), range(4), [[0, 1], [2, 3]]),  # a container without /sys
    ],
)
def test_ranks_have_whole_cores_of_one_socket(
    machine: Machine, allowed: Sequence[int], shares: list[list[int]], tmp_path: Path
) -> None:
    """As the kernel describes them in /sys/devices/system."""
    for cpu, of_core in machine[0].items():
        (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(",".join(map(str, of_core)) + "\n")
    for node, cpus in machine[1].items():
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(cpus + "\n")
    cores = physical_cores(allowed, tmp_path)
    assert [share_cores(cores, rank, len(shares)) for rank in range(len(shares))] == shares


@given(cores=st.integers(1, 16), ranks=st.integers(1, 40), threads=st.integers(1, 2))
def test_ranks_share_cpus_evenly(cores: int, ranks: int, threads: int) -> None:
    machine = [[core * threads + thread for thread in range(threads)] for core in range(cores)]
    own = [share_cores(machine, rank, ranks) for rank in range(ranks)]
    uses = [sum(cpu in each for each in own) for cpu in range(cores * threads)]
    assert all(own)
    assert max(uses) - min(uses) <= 1
    assert min(uses) >= 1
    assert max(map(len, own)) - min(map(len, own)) <= threads


SIZE = 3_000_000


def test_the_payload_of_open_connections_is_counted() -> None:
    """Both ends are here, so what is sent is received, too; a connection that was closed meanwhile does not count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        before = tcp_counters()
        assert transferred(before, tcp_counters()) == (0, 0)
        left = SIZE
        while left:
            client.sendall(bytes(10_000))
            left -= 10_000
            assert len(peer.recv(10_000, socket.MSG_WAITALL)) == 10_000
        found = usage_since(before)
        assert (found.sent_bytes, found.received_bytes) == (SIZE, SIZE)
        assert 10**7 < found.peak_memory_bytes < 10**11
        client.close()
        peer.close()
        assert transferred(before, tcp_counters()) == (0, 0)
    assert transferred({1: (10, 20), 2: (5, 5)}, {1: (11, 22), 3: (100, 200)}) == (101, 202)  # 3 is a new one


def test_what_a_busy_peer_has_not_taken_yet_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        before, written = tcp_counters(), 0
        client.setblocking(False)
        with suppress(BlockingIOError):  # all buffers are full
            while True:
                written += client.send(bytes(SIZE))
        assert usage_since(before).sent_bytes == written > 0
