"""The CPUs of each rank, on machines of several sockets and hyper-threads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from train.parallel.cores import cpu_list, physical_cores, share_cores

# 2 sockets x 4 cores x 2 threads, as Linux numbers them: first threads first, socket by socket
SERVER = {cpu: [cpu % 8, cpu % 8 + 8] for cpu in range(16)}
SOCKETS = {0: "0-3,8-11", 1: "4-7,12-15"}
# the same, where neighbours alternate between the sockets, and the threads of a core are neighbours
ALTERNATING = {cpu: [cpu // 2 * 2, cpu // 2 * 2 + 1] for cpu in range(16)}
ALTERNATING_SOCKETS = {0: "0-1,4-5,8-9,12-13", 1: "2-3,6-7,10-11,14-15"}


def described(folder: Path, siblings: Mapping[int, Sequence[int]], nodes: Mapping[int, str]) -> Path:
    """These CPUs, as the kernel describes them in /sys/devices/system."""
    for cpu, of_core in siblings.items():
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(",".join(map(str, of_core)) + "\n")
    for node, cpus in nodes.items():
        (folder / f"node/node{node}").mkdir(parents=True)
        (folder / f"node/node{node}/cpulist").write_text(cpus + "\n")
    return folder


@pytest.mark.parametrize(
    ("siblings", "nodes", "allowed", "shares"),
    [
        (SERVER, SOCKETS, range(16), [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
        (SERVER, SOCKETS, range(16), [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]),
        (SERVER, SOCKETS, range(2, 8), [[2, 3, 4], [5, 6, 7]]),  # a cpuset of one thread per core
        (SERVER, SOCKETS, [3, 8, 11], [[8], [3, 11]]),
        (SERVER, SOCKETS, [0, 8], [[0], [8], [0]]),
        (SERVER, {}, range(16), [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
        (ALTERNATING, ALTERNATING_SOCKETS, range(16), [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
        ({}, {}, range(4), [[0, 1], [2, 3]]),  # a container without /sys
    ],
)
def test_ranks_have_whole_cores_of_one_socket(
    siblings: Mapping[int, Sequence[int]],
    nodes: Mapping[int, str],
    allowed: Sequence[int],
    shares: list[list[int]],
    tmp_path: Path,
) -> None:
    cores = physical_cores(allowed, described(tmp_path, siblings, nodes))
    assert [share_cores(cores, rank, len(shares)) for rank in range(len(shares))] == shares


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("cores", "ranks"), [(2, 1), (2, 8), (16, 3), (4, 6)])
def test_ranks_share_cpus_evenly(cores: int, ranks: int, threads: int) -> None:
    machine = [[core * threads + thread for thread in range(threads)] for core in range(cores)]
    own = [share_cores(machine, rank, ranks) for rank in range(ranks)]
    uses = [sum(cpu in each for each in own) for cpu in range(cores * threads)]
    assert all(own)
    assert max(uses) - min(uses) <= 1
    assert min(uses) >= 1
    assert max(map(len, own)) - min(map(len, own)) <= threads


def test_lists_of_the_kernel() -> None:
    assert cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_list("\n") == []
