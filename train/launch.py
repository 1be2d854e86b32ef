#!/usr/bin/env python3
"""Start a script in several processes of this host that TensorFlow's tf.distribute joins: they get TF_CONFIG.

    train/launch.py -np 2 train/main.py --strategy multi-worker-mirrored --data data/flowers

Their lines are prefixed by the rank. When one fails, the others are ended, and this ends with its status.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO

import click

from etl.processes import STOP_TIMEOUT_S, block_interrupts, stop_all, tied_environment

POLL_S = 0.1


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that no process listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def start(words: Sequence[str], ranks: int, started: list["subprocess.Popen[bytes]"]) -> None:
    """Start the processes, each with its place in the cluster and its share of the cores, and add them to a list."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(ranks)]
    for rank in range(ranks):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        variables = {
            "TF_CONFIG": json.dumps(config, allow_nan=False),
            "HOROVOD_LOCAL_RANK": str(rank),  # by these it takes its share of the cores
            "HOROVOD_LOCAL_SIZE": str(ranks),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),  # what it logs of a lost worker
        }
        with block_interrupts():  # until it has handlers
            process = subprocess.Popen(
                [sys.executable, "-u", *words],
                env=tied_environment(signal.SIGTERM, os.environ | variables),  # it ends with us, however we end
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process, which ends them
            )
        for stream, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            threading.Thread(target=forward, args=(stream, out.buffer, f"[{rank}] ".encode()), daemon=True).start()
        started.append(process)


def forward(stream: IO[bytes], out: IO[bytes], prefix: bytes) -> None:
    """Print the lines of a process; they end with it. If standard error is closed, they are dropped."""
    for line in stream:
        with suppress(OSError, ValueError):  # ValueError: closed
            out.write(prefix + line)
            out.flush()


def wait(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """The status of the first process that fails, after the others are ended; 0 if none does."""
    while True:
        statuses = [each.poll() for each in processes]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed:
            status = statuses[failed[0]] or 0
            if status < 0:
                name = signal.Signals(-status).name
                print(f"ringslice: error: rank {failed[0]} was killed ({name}); the others end, too", file=sys.stderr)
            stop_all(processes, signal.SIGTERM, STOP_TIMEOUT_S)
            return 128 - status if status < 0 else status
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(POLL_S)


_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


@click.command(context_settings=_SETTINGS)
@click.option("-np", "--ranks", type=click.IntRange(1), required=True, metavar="N", help="Processes to start.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def command(ranks: int, words: tuple[str, ...]) -> None:
    """Start WORDS, a script with its options, in N processes of this host.

    Example: train/launch.py -np 2 train/main.py --strategy multi-worker-mirrored --data data/flowers
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        start(words, ranks, processes)
        status = wait(processes)
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the first one is enough
        stop_all(processes, signal.SIGINT, STOP_TIMEOUT_S)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    command()
