#!/usr/bin/env python3
"""How fast PyTorch gets pictures from slices, from files (ImageFolder), and from slices by the package tfrecord.

    python benchmarks/torch_input.py --ranks 2
    python benchmarks/torch_input.py --workers 16

JPEGs of 256 pixels (30 to 50 KB) are cut at random to 224 pixels, resized and mirrored, in batches of 64, by as many
processes of DataLoaders as there are cores. ImageFolder and tfrecord decode with Pillow and cut with torchvision. With
--ranks, so many ranks train a linear layer by DistributedDataParallel, each with its share of these processes; without,
one process takes the batches. The ways take turns, each in processes of its own; a figure is the median of their turns.
The peers have an environment of their own: make torch-peers.
"""

import os
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from etl.values import parse_bytes
from lib import reader_data
from lib.command import COUNT, SECONDS, SIZE, benchmark, leave_out
from lib.failure import Failure
from lib.peers import TORCH_PEERS
from lib.processes import call, describe_machine
from lib.results import Result, compare, print_results, print_samples
from lib.ways.torch_input import RINGSLICE, WAYS, extract

SLICES = 16
SHORT = {"size": "40MB", "repeats": 1, "seconds": 3.0}


def measure(job: dict[str, Any], ranks: int, python: Path) -> float:
    """Images per second of all ranks, each a process."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}

    def run(rank: int) -> float:
        [found] = call("lib.ways.torch_input:run", job, python=python, variables={**group, "RANK": str(rank)})
        return float(found["rate"])

    with ThreadPoolExecutor(ranks) as threads:
        return sum(threads.map(run, range(ranks)))


@benchmark(__file__, __doc__, SHORT)
@click.option("--workers", type=COUNT, default=len(os.sched_getaffinity(0)), show_default="the cores")
@click.option("--ranks", type=COUNT, default=1, show_default=True, help="Processes that train, if several.")
@click.option("--size", type=SIZE, default="200MB", show_default=True, help="Bytes of the slices.")
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="Length of each measurement at most.")
@click.option("--repeats", type=COUNT, default=5, show_default=True, help="Turns of each way.")
@click.option("--peer-python", type=Path, default=TORCH_PEERS.python, help="The Python that has the peers.")
def main(ranks: int, workers: int, repeats: int, peer_python: Path, **values: Any) -> list[Result]:
    """See the module."""
    try:
        versions = TORCH_PEERS.versions(peer_python)
    except Failure as missing:
        leave_out(missing)
        return []
    of_peers = ", ".join(f"{name} {version}" for name, version in versions.items())
    click.echo(f"{describe_machine(['numpy'])}; peers: {of_peers}")
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        reader_data.make_photographs(root / "data", parse_bytes(values["size"]), SLICES)
        slices = root / "data/slices" / reader_data.NAME
        extract(slices, root / "files")
        job: dict[str, Any] = {"root": str(root / "data"), "slices": str(slices), "files": str(root / "files")}
        job |= {"batch": 64, "side": 224, "workers": max(1, workers // ranks), "seconds": values["seconds"]}
        for _ in range(repeats):
            for way in WAYS:
                rates[way].append(measure(job | {"way": way}, ranks, peer_python))
    print_samples(f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {workers} workers in all", "images/s", rates)
    ours = rates[RINGSLICE]
    results = [compare("torch input", "images/s", ours, way, rates[way]) for way in WAYS if way != RINGSLICE]
    print_results(results)
    return results


if __name__ == "__main__":
    main()
