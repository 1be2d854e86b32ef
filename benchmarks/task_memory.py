#!/usr/bin/env python3
"""Peak memory of a mapper and of a reducer, and processor time, for a set of images once and ten times.

    python benchmarks/task_memory.py /usr/share/datasets/fashion-mnist
    python benchmarks/task_memory.py /usr/share/datasets/fashion-mnist --root hdfs://namenode:8020/tmp/memory -r hadoop

The claim of the README: neither depends on how large the data is. Memory is the resident set of a task with all its
processes (in a YARN container the JVM too), sampled 20 times a second; processor time is that of the stage's command
with all its children (with -r hadoop that of its containers is not in it).
"""

import argparse
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from usage import measure

KINDS = {"--mapper": "mapper", "--reducer": "reducer"}


def multiply(source: Path, times: int, target: Path) -> Path:
    """IDX files that hold the images and labels of ``source`` so many times, each under a key of its own."""
    target.mkdir()
    for path in sorted(source.glob("*-ubyte*")):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        dimensions = data[3]
        header = 4 + 4 * dimensions
        shape = np.frombuffer(data[4:header], dtype=">u4").copy()
        shape[0] *= times
        (target / path.name.removesuffix(".gz")).write_bytes(data[:4] + shape.tobytes() + data[header:] * times)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder with IDX files")
    parser.add_argument("--root", help="where the datasets go, a folder for each; default: a temporary one")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10])
    parser.add_argument("-r", "--runner", default="local")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for times in arguments.times:
            source = multiply(arguments.source, times, Path(folder) / f"source-{times}")
            root = f"{arguments.root or folder}/root-{times}"
            subprocess.run(["ringslice", "ingest", str(source), root], check=True, stdout=subprocess.DEVNULL)
            for stage in ("normalize", "shard"):
                usage = measure(["ringslice", stage, root, "-r", arguments.runner], KINDS, root)
                found[stage, times] = (usage.peaks, usage.own_s)
    print(f"{'stage':10} {'times':>5} {'mapper MB':>10} {'reducer MB':>10} {'CPU s':>8} {'CPU ratio':>10}")
    for (stage, times), (peaks, seconds) in found.items():
        ratio = seconds / found[stage, arguments.times[0]][1]
        shown = [f"{peaks[kind] / 1e6:.0f}" if kind in peaks else "-" for kind in ("mapper", "reducer")]
        print(f"{stage:10} {times:5} {shown[0]:>10} {shown[1]:>10} {seconds:8.1f} {ratio:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
