"""The CPUs of each rank of a host: whole physical cores, those of one NUMA node together. Imports no TensorFlow.

A CPU is what the kernel numbers: a hyper-thread of a physical core.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SYSFS = Path("/sys/devices/system")


def claim_cores(local_rank: int, local_size: int) -> None:
    """Pin this rank to its own CPUs, and give its thread pools as many threads as it has CPUs.

    Ranks that share CPUs without a budget start a pool for all of them each, and slow each other down.
    """
    own = share_cores(own_cores(), local_rank, local_size)
    os.sched_setaffinity(0, own)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(len(own)))


def share_cores(cores: Sequence[Sequence[int]], local_rank: int, local_size: int) -> list[int]:
    """The CPUs of one of ``local_size`` ranks, of these physical cores. Pure.

    Equal shares of neighbouring cores; of CPUs if the ranks outnumber the cores; one CPU each in turn if they outnumber
    the CPUs.
    """
    cpus = [cpu for core in cores for cpu in core]
    if local_size >= len(cpus):
        return [cpus[local_rank % len(cpus)]]
    shared = cores if local_size <= len(cores) else [[cpu] for cpu in cpus]
    own = shared[len(shared) * local_rank // local_size : len(shared) * (local_rank + 1) // local_size]
    return sorted(cpu for core in own for cpu in core)


def own_cores() -> list[list[int]]:
    """The CPUs that this process may use, by physical core."""
    return physical_cores(os.sched_getaffinity(0))


def physical_cores(allowed: Iterable[int], sysfs: Path = SYSFS) -> list[list[int]]:
    """The CPUs that this process may use, by physical core, as the kernel describes them.

    Without a description of a CPU, it is a core of its own.
    """
    cpus = sorted(allowed)
    siblings = {}
    for cpu in cpus:
        file = sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings[cpu] = cpu_list(file.read_text()) if file.is_file() else [cpu]
    nodes: dict[int, int] = {}
    for file in sysfs.glob("node/node[0-9]*/cpulist"):
        nodes |= dict.fromkeys(cpu_list(file.read_text()), int(file.parent.name.removeprefix("node")))
    return group_cores(cpus, siblings, nodes)


def group_cores(
    allowed: Sequence[int], siblings: Mapping[int, Sequence[int]], nodes: Mapping[int, int]
) -> list[list[int]]:
    """The allowed CPUs by physical core, in the order of NUMA nodes and numbers. Pure.

    ``siblings`` has the CPUs of the same core as each CPU, ``nodes`` the NUMA node of a CPU.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        cores.setdefault((nodes.get(cpu, 0), min(siblings[cpu])), []).append(cpu)
    return [cores[place] for place in sorted(cores)]


def cpu_list(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0-3,8``."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
