#!/usr/bin/env python3
"""Start a script in several processes of this host that TensorFlow's tf.distribute joins: they get TF_CONFIG.

    train/launch.py -np 2 train/main.py --strategy multi-worker-mirrored --data data/flowers
    train/launch.py --workers 4 --servers 2 train/main.py --strategy parameter-server --data data/flowers

Their lines are prefixed by the rank, or by the role. When one fails, the others are ended, and this ends with its
status. A worker that is killed beside parameter servers is started again.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click

from etl.errors import ERROR_PREFIX, INTERRUPTED, EnvironmentFailure, UsageError
from etl.options.click_command import run_command
from etl.processes import block_interrupts, stop_all, tied_environment
from train.monitor.launcher import without_place
from train.parallel.cluster import CHIEF, SERVER, WORKER
from train.parallel.endings import Endings, describe_exit

POLL_S = 0.1
STOP_TIMEOUT_S = 20.0
FORWARD, FORWARD_S = "forward", 2.0  # for the last lines of processes that have ended
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of outgoing connections
LOWEST_PORT, MAX_PORTS = 10_000, 1000  # the number of those that are tried
NOTICE_S = 10.0  # for the chief, to report a lost server itself
MAX_REPLACEMENTS = 10  # of each worker
REPORTED = (UsageError.status, EnvironmentFailure.status)  # of a worker that would fail again

Process = subprocess.Popen[bytes]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that are free, and that the system does not give to connections meanwhile.

    Chosen at random, because several launchers may choose at the same moment.
    """
    first_ephemeral = int(_PORT_RANGE.read_text().split()[0])
    candidates = random.sample(range(LOWEST_PORT, max(first_ephemeral, LOWEST_PORT + MAX_PORTS)), MAX_PORTS)
    with ExitStack() as open_sockets:
        chosen: list[int] = []
        for port in candidates:
            each = open_sockets.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", port))
                chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise EnvironmentFailure(f"{count} free ports of {MAX_PORTS} were not found on this host; end what takes them")


@dataclass(frozen=True)
class Task:
    """A process to start: its place in the cluster, and what its lines begin with."""

    words: Sequence[str]
    cluster: dict[str, list[str]]
    role: str
    index: int

    @property
    def name(self) -> str:
        return f"rank {self.index}" if set(self.cluster) == {WORKER} else f"{self.role} {self.index}"

    @property
    def variables(self) -> dict[str, str]:
        """Those of its environment that are not ours."""
        config = {"cluster": self.cluster, "task": {"type": self.role, "index": self.index}}
        variables = {"TF_CONFIG": json.dumps(config, allow_nan=False)}
        if self.role == WORKER:  # by these it takes its share of the cores
            variables["HOROVOD_LOCAL_RANK"] = str(self.index)
            variables["HOROVOD_LOCAL_SIZE"] = str(len(self.cluster[WORKER]))
        if CHIEF in self.cluster and self.role != CHIEF:
            variables["HOROVOD_RANK"] = str(self.index + 1)  # a wrong option is reported by the chief, rank 0, alone
        return variables

    def start(self, endings: Endings) -> Process:
        """Start its process, whose output is forwarded by threads; it ends with this one."""
        with block_interrupts():  # until it has handlers
            process = subprocess.Popen(
                [sys.executable, "-u", *self.words],
                # it ends with us, however we end
                env=tied_environment(signal.SIGTERM, without_place(os.environ) | self.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process, which ends them
            )
        prefix = f"[{self.name.removeprefix('rank ')}] ".encode()
        for stream, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            words = (stream, out.buffer, prefix, endings)
            threading.Thread(target=forward, args=words, name=FORWARD, daemon=True).start()
        return process


def forward(stream: IO[bytes], out: IO[bytes], prefix: bytes, endings: Endings) -> None:
    """Print the lines of a process; they end with it. If standard error is closed, they are dropped."""
    for line in stream:
        with suppress(OSError, ValueError):  # ValueError: closed
            if endings.is_shown(line.decode(errors="replace")):
                out.write(prefix + line)
                out.flush()


def tasks_of(words: Sequence[str], **counts: int) -> list[Task]:
    """So many processes of each role, on free ports of this host."""
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items()}
    return [Task(words, cluster, role, index) for role, count in counts.items() for index in range(count)]


@dataclass
class Group:
    """Processes that were started together; `run` starts and watches them."""

    tasks: Sequence[Task]
    processes: list[Process] = field(default_factory=list)
    endings: Endings = field(default_factory=Endings)

    def start(self) -> None:
        for each in self.tasks:
            self.processes.append(each.start(self.endings))

    def run(self) -> int:
        """The status of the first process that fails, after the others are ended; 0 if none does."""
        self.start()
        while True:
            statuses = [each.poll() for each in self.processes]
            failed = [number for number, status in enumerate(statuses) if status]
            if failed:
                return self._end(failed[0])
            if all(status == 0 for status in statuses):
                return 0
            time.sleep(POLL_S)

    def _end(self, failed: int) -> int:
        status = self.processes[failed].returncode
        if status < 0:
            line = f"{ERROR_PREFIX}{self.tasks[failed].name} {describe_exit(status)}; the others end, too"
            self.endings.is_shown(line)
            print(line, file=sys.stderr)
        self.stop(signal.SIGTERM)
        return 128 - status if status < 0 else status

    def stop(self, number: int) -> None:
        stop_all(self.processes, number, STOP_TIMEOUT_S)


class ServedGroup(Group):
    """A chief, the first, and its workers and parameter servers, which have nothing to lose once it has ended."""

    def run(self) -> int:
        """The status of the chief, or of what ended it; a worker that is killed is replaced."""
        self.start()
        replacements = [MAX_REPLACEMENTS if each.role == WORKER else 0 for each in self.tasks]
        while True:
            statuses = [each.poll() for each in self.processes]
            if statuses[0] == 0:
                self.stop(signal.SIGTERM)
                return 0
            for number, status in enumerate(statuses):
                if status in REPORTED or (status is not None and not replacements[number]):
                    return self._end(number)
                if status is not None:
                    print(
                        f"ringslice: {self.tasks[number].name} {describe_exit(status)}; it is replaced", file=sys.stderr
                    )
                    replacements[number] -= 1
                    self.processes[number] = self.tasks[number].start(self.endings)
            time.sleep(POLL_S)

    def _end(self, failed: int) -> int:
        """Give the chief time to report what it has lost, or to come to its end: its status is what counts then."""
        with suppress(subprocess.TimeoutExpired):
            self.processes[0].wait(NOTICE_S)
            return super()._end(0)
        return super()._end(failed) or EnvironmentFailure.status

    def stop(self, number: int) -> None:
        stop_all(self.processes[:1], number, STOP_TIMEOUT_S)
        stop_all(self.processes[1:], signal.SIGKILL, STOP_TIMEOUT_S)


_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


@click.command(context_settings=_SETTINGS)
@click.option("-np", "--ranks", type=click.IntRange(1), metavar="N", help="Processes to start, one for each rank.")
@click.option(
    "--workers", type=click.IntRange(1), metavar="W", help="Workers to start beside a chief, for parameter servers."
)
@click.option("--servers", type=click.IntRange(1), metavar="P", help="Parameter servers to start. Default: 1.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def command(ranks: int | None, workers: int | None, servers: int | None, words: tuple[str, ...]) -> int:
    """Start WORDS, a script with its options, in processes of this host.

    Example: train/launch.py -np 2 train/main.py --strategy multi-worker-mirrored --data data/flowers
    """
    if (ranks is None) == (workers is None) or (servers and not workers):
        raise click.UsageError("give -np N, or --workers W --servers P")
    if not Path(words[0]).is_file():
        raise UsageError(f"WORDS: {words[0]} (no such file). Give a script with its options, as train/main.py")
    if workers is None:
        group = Group(tasks_of(words, **{WORKER: ranks or 0}))
    else:
        group = ServedGroup(tasks_of(words, **{CHIEF: 1, SERVER: servers or 1, WORKER: workers}))
    try:
        status = group.run()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the first one is enough
        group.stop(signal.SIGINT)
        status = INTERRUPTED
    for thread in threading.enumerate():
        if thread.name == FORWARD:
            thread.join(FORWARD_S)
    if status:
        print(group.endings.kept, end="", file=sys.stderr)
    return status


if __name__ == "__main__":
    run_command(command, "train/launch.py")
