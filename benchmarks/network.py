#!/usr/bin/env python3
"""What a ring of ranks and a parameter server send: a model of 25 MB, on hosts of this machine at 1 Gbit/s.

    python benchmarks/network.py
    python benchmarks/network.py --ranks 2 --steps 5
    python benchmarks/network.py --figure docs/network.svg

Each host is a network namespace, which a link to one bridge joins to the others; tc limits it in both directions. A
rank of the ring (--strategy horovod) or a worker (--strategy synchronous-parameter-server) has a host of its own; the
server has one with the chief, which sums up the gradients for it.

Bytes are those of the links' counters in a step, beside theory: of n ranks, each sends and receives 2 (n - 1) / n
models; the server sends and receives n, each worker one. All share the cores of this machine: images/s are only good
for the ratio of both in one run. It needs root, and ends with all that it started.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lib.command import COUNT, benchmark, leave_out
from lib.failure import Failure
from lib.noise import make_normalized
from lib.processes import (
    child_words,
    command_failure,
    describe_machine,
    environment,
    require_program,
    run_quietly,
    with_repository,
)
from lib.results import Result, make_table, print_results, print_table
from lib.ways.network import MODEL_BYTES, RING, SERVED, SIDE

PROGRAMS = {"unshare": "util-linux", "setpriv": "util-linux", "mount": "mount", "ip": "iproute2", "tc": "iproute2"}
END_WITH_US = ("setpriv", "--pdeathsig", "KILL")
NAMESPACES = (*END_WITH_US, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
VERSIONS = ("tensorflow-cpu", "horovod")
SHORT = {"ranks": [2], "steps": 5, "warm": 4}
MB = 1e6
KINDS = {"server": SERVED, "rank": RING, "worker": SERVED}  # of hosts, by what their names begin with

Measured = dict[tuple[str, int], Mapping[str, Any]]  # what `lib.ways.network` yields, by strategy and ranks


def check_machine() -> None:
    """Raise Failure unless namespaces can be made here."""
    for name, package in PROGRAMS.items():
        require_program(name, f"Install it: apt-get install {package}")
    tried = subprocess.run([*NAMESPACES, "true"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        reason = tried.stderr.strip().rpartition(": ")[2].lower()
        raise Failure("namespaces", "unshare", reason, "Run it as root, where root may make network namespaces")


def train(strategy: str, ranks: int, data: str, options: Sequence[str], warm: int) -> Mapping[str, Any]:
    """What `lib.ways.network.run` yields in namespaces of its own. Raises Failure."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryFile("w+") as errors:
        (Path(root) / "slices").symlink_to(Path(data) / "slices")
        words = child_words("lib.ways.network:run", strategy, ranks, root, options, warm)
        with subprocess.Popen(
            [*NAMESPACES, *words],
            env=with_repository(environment()),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as inside:
            try:
                output, _ = inside.communicate()
            finally:
                inside.kill()
        if inside.returncode:
            errors.seek(0)
            click.echo(errors.read(), err=True)
            raise command_failure(words[-7:], inside.returncode)
        return json.loads(output)


def theory(kind: str, ranks: int) -> float:
    """Megabytes that a host of this kind sends, and receives, in a step."""
    return {"rank": 2 * (ranks - 1) / ranks, "server": ranks, "worker": 1}[kind] * MODEL_BYTES / MB


def most(kind: str, ranks: int, measured: Measured) -> tuple[float, float]:
    """Megabytes sent and received in a step by the host of this kind that sent most."""
    hosts = measured[KINDS[kind], ranks]["hosts"]
    sent, received = max(own for host, own in hosts.items() if host.startswith(kind))
    return sent / MB, received / MB


def judge(ranks: int, measured: Measured) -> list[Result]:
    """The ring beside the server: what the busiest host sends, and the rate."""
    ring, server = most("rank", ranks, measured)[0], most("server", ranks, measured)[0]
    rate, other = (measured[strategy, ranks]["images_per_s"] for strategy in (RING, SERVED))
    return [
        Result(f"network, {ranks} ranks: the busiest host", "MB sent", ring, "server", server, ring / server),
        Result(f"network, {ranks} ranks", "images/s", rate, "server", other, rate / other),
    ]


def draw(path: Path, counts: Sequence[int], measured: Measured) -> None:
    """Draw what a host of each kind sends in a step, by ranks; lines are theory."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ringslice"}):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.add_subplot(xlabel="ranks, or workers", ylabel="MB sent by a host in a step", xticks=counts)
        for kind, strategy in KINDS.items():
            (line,) = axes.plot(counts, [theory(kind, ranks) for ranks in counts])
            sent = [most(kind, ranks, measured)[0] for ranks in counts]
            axes.plot(counts, sent, "o", color=line.get_color(), label=f"{kind}, {strategy}")
        axes.set_ylim(0)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(title="measured; lines: theory", frameon=False)
        figure.savefig(path, metadata={"Date": None})


@benchmark(__file__, __doc__, SHORT)
@click.option("--ranks", type=COUNT, multiple=True, default=(2, 4, 8), help="Ranks, or workers; may be repeated.")
@click.option("--batch", type=COUNT, default=16, show_default=True, help="Batch of each rank.")
@click.option("--steps", type=COUNT, default=10, show_default=True, help="Steps that are measured.")
@click.option("--warm", type=COUNT, default=6, show_default=True, help="Steps before them.")
@click.option("--figure", type=click.Path(path_type=Path), metavar="FILE", help="Draw the bytes there, as SVG.")
def main(ranks: tuple[int, ...], batch: int, steps: int, warm: int, figure: Path | None) -> list[Result]:
    try:
        check_machine()
    except Failure as missing:
        leave_out(missing)
        return []
    click.echo(describe_machine(VERSIONS))
    total = warm + steps + 1  # an evaluation follows the last one
    options = [f"--max-steps={total}", f"--batch={batch}", "--model=lib.ways.network:dense"]
    measured: Measured = {}
    with tempfile.TemporaryDirectory() as folder:
        root = make_normalized(Path(folder), 2 * batch * max(ranks) * total, SIDE, channels=1)
        run_quietly("ringslice", "shard", root)
        for count in ranks:
            for strategy in (RING, SERVED):
                found = measured[strategy, count] = train(strategy, count, str(root), options, warm)
                sent, received = (each / MB for each in found["payload"])
                click.echo(f"{strategy}, {count}: the trainer counts {sent:.1f} MB sent, {received:.1f} MB received")
    table = make_table("host", ("theory, MB", "sent", "received", "images/s of all"))
    for count in ranks:
        for kind, strategy in KINDS.items():
            megabytes = (f"{each:.1f}" for each in (theory(kind, count), *most(kind, count, measured)))
            rate = f"{measured[strategy, count]['images_per_s']:.0f}"
            table.add_row(f"{count}: {kind}, {strategy}", *megabytes, rate)
    print_table(table)
    results = [result for count in ranks for result in judge(count, measured)]
    print_results(results)
    if figure is not None:
        draw(figure, sorted(ranks), measured)
    return results


if __name__ == "__main__":
    main()
