"""The command ``ringslice read-bench``: what this machine and its cluster deliver of slices, in three ways."""

import os
from collections.abc import Mapping, Sequence
from json import dumps
from typing import TYPE_CHECKING, Any

import click

from etl.errors import EnvironmentFailure, UsageError
from etl.options.click_command import COUNTS, SECONDS, add_options, run_command
from etl.options.stage_options import ENVIRONMENT_OPTIONS, JSON, NAME
from etl.progress import Progress
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage
from etl.stages.summary import Summary
from etl.storage.place import default_data_place, open_place
from train.parallel.startup import suppress_stderr

if TYPE_CHECKING:
    from train.tf_backend.throughput import Rate

SPLIT = "train"
COLUMNS = {  # as programs and as people read them
    "read": "read",
    "slices_at_once": "slices at once",
    "mb_per_s": "MB/s",
    "records_per_s": "records/s",
    "cpu_s_per_gb": "CPU-s/GB",
}


@click.command(
    "read-bench",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: ringslice read-bench hdfs://namenode:8020/datasets/flowers --slices-at-once 1,8",
)
@click.argument("root", default=default_data_place)
@add_options(NAME)
@click.option(
    "--slices-at-once",
    type=COUNTS,
    metavar=COUNTS.metavar,
    default="1,2,4,8",
    show_default=True,
    help="Number of slices that are read in parallel; several numbers separated by commas are measured one by one.",
)
@click.option(
    "--seconds", type=SECONDS, metavar="X", default=3, show_default=True, help="Duration of each measurement."
)
@add_options(JSON, *ENVIRONMENT_OPTIONS)
def command(root: str, name: str, slices_at_once: tuple[int, ...], seconds: float, json: bool) -> None:
    """Measure read throughput of training slices: raw, as records in TensorFlow, and decoded.

    raw: bytes by pyarrow. records: batches of serialized examples, in an epoch's order and checked. decoded: batches of
    pixels. The slices are read repeatedly, so slices that fit into memory are read from the page cache.
    """
    stage = slices_stage(open_place(root), name)
    manifest = Manifest.from_json(read_manifest(stage))
    most = len(manifest.splits.get(SPLIT, ()))
    at_once = [number for number in slices_at_once if number <= most]
    if not at_once:
        raise UsageError(f"--slices-at-once {min(slices_at_once)}: {stage.folder} has {most} training slices")
    try:
        with suppress_stderr():
            from train.tf_backend.throughput import WAYS, Throughput  # after ROOT is checked
    except ModuleNotFoundError as error:
        raise EnvironmentFailure(f"read-bench needs {error.name}; run: pip install 'ringslice[train]'") from None
    throughput = Throughput(stage.folder, manifest, SPLIT, seconds)
    rates: list[Rate] = []
    with Progress("read-bench", len(WAYS) * len(at_once), "measurements", begins=False) as progress:
        for way in WAYS:
            for number in at_once:
                progress.update(len(rates), f"{way}, {number} at once")
                rates.append(throughput.measure(way, number))
    facts = {"records": throughput.records, "slices": most, "bytes": throughput.size_bytes}
    show(str(stage.folder), facts, rates, json)


def show(place: str, facts: Mapping[str, Any], rates: Sequence["Rate"], as_json: bool) -> None:
    """Print to standard output: a table, or the same as JSON."""
    rows = [
        [
            each.way,
            each.slices_at_once,
            round(each.mb_per_s, 1),
            _whole(each.records_per_s),
            round(each.cpu_s_per_gb, 2),
        ]
        for each in rates
    ]
    summary = Summary("read-bench", place, False, dict(facts), [("measured", list(COLUMNS.values()), rows)])
    if as_json:
        items = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print(dumps(summary.to_json() | {"measurements": items}, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        summary.show(as_json)


def _whole(value: float | None) -> int | None:
    return round(value) if value is not None else None


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_command(command, "ringslice read-bench")
