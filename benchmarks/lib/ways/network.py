"""Trains on hosts of this machine, each a network namespace with its own address, all at one bridge and limited by tc.

`run` is the first process of namespaces of its own: all that it starts and sets up ends with it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

from lib.processes import REPOSITORY
from train.launch import Task
from train.parallel.cluster import CHIEF, SERVER, WORKER

if TYPE_CHECKING:
    import keras

RING, SERVED = "horovod", "synchronous-parameter-server"
INTERFACE, HEAD, SUBNET = "eth0", "10.78.0.254", "10.78.0"
LIMIT = ("root", "tbf", "rate", "1gbit", "burst", "128kb", "latency", "50ms")
WIDTH, SIDE, CLASSES = 2_134, 28, 10
MODEL_BYTES = 4 * ((SIDE * SIDE + 1) * WIDTH + (WIDTH + 1) * WIDTH + (WIDTH + 1) * CLASSES)  # 25 MB
SAMPLE_S = 0.01
HOSTS_FILE = Path("/run/hosts")  # on a tmpfs of our own

Job = tuple[str, Mapping[str, str], Sequence[str]]  # host, variables and words of a process
Sample = tuple[float, dict[str, tuple[int, int]]]  # a time, and bytes that each host had sent and received


def dense(shape: tuple[int, int, int], classes: int) -> "keras.Model":
    """`MODEL_BYTES` of weights for pictures of `SIDE` pixels, grey, of `CLASSES`."""
    import keras

    layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), *layers, keras.layers.Dense(classes)])


def run(strategy: str, ranks: int, root: str, options: Sequence[str], warm: int) -> Iterator[dict[str, Any]]:
    """Train; the bytes that each host sent and received in a step after the first ``warm`` ones, and images/s.

    ``payload`` is what the trainer counts as sent and received by its first rank.
    """
    words = [sys.executable, str(REPOSITORY / "train/main.py"), "--data", root, "--strategy", strategy, *options]
    samples = list(run_jobs((ring_jobs if strategy == RING else served_jobs)(words, ranks)))
    (folder,) = (Path(root) / "runs").iterdir()
    lines = [json.loads(each) for file in folder.glob("metrics/*.jsonl") for each in file.read_text().splitlines()]
    yield summarize(lines, samples, warm)


def ring_jobs(words: Sequence[str], ranks: int) -> list[Job]:
    """Ranks of Horovod, each on a host of its own; starts the server by which they find each other."""
    slots = get_host_assignments(parse_hosts(",".join(f"rank{number}:1" for number in range(ranks))), ranks)
    server = RendezvousServer()
    shared = create_run_env_vars(HEAD, [INTERFACE], str(server.start()))
    server.init(slots)
    return [(each.hostname, {**create_slot_env_vars(each), **shared}, words) for each in slots]


def served_jobs(words: Sequence[str], workers: int) -> list[Job]:
    """The chief and the server, both on the first host, and workers, each on a host of its own."""
    cluster = {CHIEF: [f"{SUBNET}.1:4000"], SERVER: [f"{SUBNET}.1:4001"]}
    cluster[WORKER] = [f"{SUBNET}.{2 + number}:4000" for number in range(workers)]
    tasks = [Task(words, cluster, role, number) for role, each in cluster.items() for number in range(len(each))]
    return [(f"worker{each.index}" if each.role == WORKER else "server", each.variables, words) for each in tasks]


def run_jobs(jobs: Sequence[Job]) -> Iterator[Sample]:
    """Run the jobs until the first one has ended; all the time, seconds since 1970 and the counters of their hosts."""
    set_up_network(list(dict.fromkeys(host for host, *_ in jobs)))
    processes = [start(*each) for each in jobs]
    while not any(statuses := [each.poll() for each in processes]):
        if statuses[0] == 0:
            return
        yield time.time(), read_counters()
        time.sleep(SAMPLE_S)
    raise SystemExit(f"a process ended with status {next(filter(None, statuses))}")


def set_up_network(names: Sequence[str]) -> None:
    """A bridge, which has `HEAD`, and a namespace for each host, with the addresses from .1 on."""
    addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, start=1)}
    commands = ["mount -t tmpfs tmpfs /run", "ip link set lo up", "ip link add bridge type bridge"]
    commands += [f"ip address add {HEAD}/24 dev bridge", "ip link set bridge up"]
    for name, address in addresses.items():
        commands += [
            f"ip netns add {name}",
            f"ip link add {name} type veth peer name {INTERFACE} netns {name}",
            f"ip link set {name} master bridge up",
            f"ip -n {name} address add {address}/24 dev {INTERFACE}",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set {INTERFACE} up",
            f"tc qdisc add dev {name} {' '.join(LIMIT)}",
            f"tc -n {name} qdisc add dev {INTERFACE} {' '.join(LIMIT)}",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)
    lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **addresses}.items()]
    HOSTS_FILE.write_text("".join(lines))
    subprocess.run(["mount", "--bind", HOSTS_FILE, "/etc/hosts"], check=True)


def start(host: str, variables: Mapping[str, str], words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process on a host; ranks and workers on one core each, in turns."""
    # Horovod's ranks listen at the address of their host's name
    command = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *words]
    process = subprocess.Popen(
        command, env=os.environ | dict(variables), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    number = host.removeprefix("rank").removeprefix("worker")
    if number.isdigit():
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, [cores[int(number) % len(cores)]])
    return process


def read_counters() -> dict[str, tuple[int, int]]:
    """From the bridge's end of each link: what it receives was sent by the host."""
    rows = [line.split() for line in Path("/proc/net/dev").read_text().replace(":", " ").splitlines()[2:]]
    return {row[0]: (int(row[1]), int(row[9])) for row in rows if row[0] not in ("lo", "bridge")}


def summarize(lines: Sequence[Mapping[str, Any]], samples: Sequence[Sample], warm: int) -> dict[str, Any]:
    """What `run` yields, of the steps after the first ``warm`` ones but the last, which an evaluation follows."""
    import numpy as np

    times, counters = zip(*samples, strict=True)
    steps = sorted((each for each in lines if each["kind"] == "step"), key=lambda each: each["step"])[warm - 1 : -1]
    usage = [each for each in lines if each["kind"] == "ranks"]
    span = [datetime.fromisoformat(each["time"]).timestamp() for each in (steps[0], steps[-1])]

    def per_step(values: Sequence[int]) -> float:
        return float(np.diff(np.interp(span, times, values))[0]) / (len(steps) - 1)

    hosts = {name: [per_step([each[name][way] for each in counters]) for way in (0, 1)] for name in counters[0]}
    counted = sum(each["steps"] for each in usage)
    payload = [sum(each[key][0] for each in usage) / counted for key in ("sent_bytes", "received_bytes")]
    rate = sum(each["examples"] for each in steps[1:]) / (span[1] - span[0])
    return {"hosts": hosts, "payload": payload, "images_per_s": rate}
