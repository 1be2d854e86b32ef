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
from contextlib import ExitStack
from typing import IO

import click

from etl.processes import tied_environment

STOP_TIMEOUT_S = 20.0
POLL_S = 0.1


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def start(words: Sequence[str], ranks: int) -> list["subprocess.Popen[str]"]:
    """The processes, each with its place in the cluster and its share of the cores."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(ranks)]
    started = []
    for rank in range(ranks):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        variables = {
            "TF_CONFIG": json.dumps(config, allow_nan=False),
            "HOROVOD_LOCAL_RANK": str(rank),  # by these it takes its share of the cores
            "HOROVOD_LOCAL_SIZE": str(ranks),
        }
        process = subprocess.Popen(
            [sys.executable, "-u", *words],
            env=tied_environment(
                signal.SIGTERM, os.environ | variables
            ),  # it ends with this process, however that ends
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which ends them
        )
        for stream, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            threading.Thread(target=forward, args=(stream, out, f"[{rank}] "), daemon=True).start()
        started.append(process)
    return started


def forward(stream: IO[str], out: IO[str], prefix: str) -> None:
    """Print the lines of a process; they end with it."""
    for line in stream:
        out.write(prefix + line)
        out.flush()


def stop(processes: Sequence["subprocess.Popen[str]"], number: int) -> None:
    """Send a signal to those that still run; kill what stays."""
    for each in processes:
        if each.poll() is None:
            each.send_signal(number)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for each in processes:
        try:
            each.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()  # a killed process ends


def wait(processes: Sequence["subprocess.Popen[str]"]) -> int:
    """The status of the first process that fails, after the others are ended; 0 if none does."""
    while True:
        statuses = [each.poll() for each in processes]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed:
            status = statuses[failed[0]] or 0
            if status < 0:
                name = signal.Signals(-status).name
                print(f"ringslice: error: rank {failed[0]} was killed ({name}); the others end, too", file=sys.stderr)
            stop(processes, signal.SIGTERM)
            return 128 - status if status < 0 else status
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(POLL_S)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.option("-np", "--ranks", type=click.IntRange(1), required=True, metavar="N", help="Processes to start.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def command(ranks: int, words: tuple[str, ...]) -> None:
    """Start WORDS, a script with its options, in N processes of this host.

    Example: train/launch.py -np 2 train/main.py --strategy multi-worker-mirrored --data data/flowers
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes = start(words, ranks)
    try:
        status = wait(processes)
    except KeyboardInterrupt:
        stop(processes, signal.SIGINT)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    command()
