"""The command ``ringslice``: what a person types, checked, and handed to the stage that does it."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from etl import __version__
from etl.doctor.check import Context
from etl.doctor.command import GROUPS, diagnose
from etl.erase.command import ERASE_OPTIONS, require_clean
from etl.erase.command import erase as run_erase
from etl.errors import EnvironmentFailure, UsageError, end_process, run_reporting
from etl.inspection.command import inspect_slice
from etl.options.click_command import invoke
from etl.options.config_file import config_file_option
from etl.options.option import Option, click_options, command_line, parse_values
from etl.options.stage_options import (
    CLUSTER_PYTHON,
    DEFAULT_RUNNER,
    ENVIRONMENT_OPTIONS,
    HADOOP_OPTIONS,
    INGEST_OPTIONS,
    JSON,
    NORMALIZE_OPTIONS,
    OVERWRITE,
    READ_BENCH_OPTIONS,
    RETRY_REJECTS,
    RUNNERS,
    SHARD_OPTIONS,
    VERBOSE,
    VERIFY_OPTIONS,
)
from etl.processes import run_module
from etl.raw.ingest import ingest as run_ingest
from etl.slices.prune import PRUNE_OPTIONS, prune_by
from etl.stages.summary import Summary
from etl.storage.place import default_data_place, open_place


def _commands() -> Mapping[str, click.Command]:
    return cli.commands


config_option = config_file_option(_commands)
runner_option = click.option(
    "-r",
    "--runner",
    type=click.Choice(RUNNERS),
    default=DEFAULT_RUNNER,
    show_default=True,
    help="Where mrjob runs the tasks: in this process, in one process per core, or on a Hadoop cluster.",
)
_JOB_OPTIONS = (*HADOOP_OPTIONS, CLUSTER_PYTHON, *ENVIRONMENT_OPTIONS)
root_argument = click.argument("root", required=False, default=default_data_place)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="ROOT is where a dataset lives, a path, file:///… or hdfs://namenode/…; without it $RINGSLICE_DATA,"
    " else ./data.\n\nExample: ringslice pipeline photos/by-class data/flowers --size 224 --workers 8",
)
@click.version_option(__version__, prog_name="ringslice")
def cli() -> None:
    """Raw images in, exact TFRecord slices out: ingest, normalize, shard, verify, report; train, evaluate."""


@cli.command(epilog="Example: ringslice ingest photos/by-class data/flowers")
@click.argument("source")
@root_argument
@config_option
@click_options((*INGEST_OPTIONS, OVERWRITE, JSON, VERBOSE, *ENVIRONMENT_OPTIONS))
def ingest(source: str, root: str, **values: Any) -> None:
    """Pack the images of SOURCE into tar files under ROOT/raw, with an image list.

    SOURCE is a folder with a folder per class, a folder with IDX files (images and labels in pairs, plain or gzip),
    archives (tar and WebDataset shards, plain, gzip or zstd), Parquet files with image bytes, or a list of files (CSV
    or JSON Lines) with their labels.
    """
    _ingest(source, root, values).show(values["json"], values["verbose"])


@cli.command(epilog="Example: ringslice normalize data/flowers --size 224 --format jpeg")
@root_argument
@config_option
@runner_option
@click_options((*NORMALIZE_OPTIONS, RETRY_REJECTS, OVERWRITE, JSON, VERBOSE, *_JOB_OPTIONS))
def normalize(root: str, **values: Any) -> None:
    """Decode every image under ROOT/raw, bring it to one size, and keep it under ROOT/normalized.

    What cannot be used is kept under ROOT/normalized/rejects, with a reason. --retry-rejects tries those once more,
    with looser limits or after a bad night: the same command with what is to be looser, e.g. --max-seconds 60.
    """
    _run_job("mapreduce.normalize", (*NORMALIZE_OPTIONS, RETRY_REJECTS), root, values)


@cli.command(epilog="Example: ringslice shard data/flowers --workers 8 --split train=0.9,test=0.1")
@root_argument
@config_option
@runner_option
@click_options((*SHARD_OPTIONS, OVERWRITE, JSON, VERBOSE, *_JOB_OPTIONS))
def shard(root: str, **values: Any) -> None:
    """Deal the images under ROOT/normalized to TFRecord slices under ROOT/slices/NAME."""
    _run_job("mapreduce.shard", SHARD_OPTIONS, root, values)


@cli.command(epilog="Example: ringslice verify data/flowers --every-stage --repair")
@root_argument
@config_option
@runner_option
@click_options((*VERIFY_OPTIONS, JSON, VERBOSE, *_JOB_OPTIONS))
def verify(root: str, **values: Any) -> None:
    """Read the slices from the first byte to the last, and check all that is said of them.

    What is found is written to ROOT/verified/NAME; with findings the exit status is 1.
    """
    _run_job("mapreduce.verify", VERIFY_OPTIONS, root, values)


@cli.command(epilog="Example: ringslice prune data/flowers --keep 7 --keep-runs 7 --dry-run")
@root_argument
@config_option
@click_options((*PRUNE_OPTIONS, JSON, *ENVIRONMENT_OPTIONS))
def prune(root: str, **values: Any) -> None:
    """Remove all slices but the newest and those that a run names, and what only they were made from.

    With --keep-runs, older runs of a nightly job go first, with their checkpoints. What is removed then:
    ROOT/slices/NAME and ROOT/verified/NAME, and the generations of normalized and raw that nothing which stays was
    made from, with the packs and parts that only they name.
    """
    prune_by(open_place(root), values).show(values["json"])


@cli.command(epilog="Example: ringslice erase data/flowers --keys withdrawn.txt --slices")
@root_argument
@config_option
@runner_option
@click_options((*ERASE_OPTIONS, JSON, *_JOB_OPTIONS))
def erase(root: str, **values: Any) -> None:
    """Delete images by key, with all of the same content, from raw and normalized; with --slices from slices too.

    Packs and parts that hold them are made anew, and no earlier generation keeps them. Without --slices, slices that
    hold them are listed, and the exit status is 1. Delete the images in their source as well.
    """
    parsed = parse_values(ERASE_OPTIONS, values)
    if parsed["keys"] is None:
        raise UsageError("give --keys FILE: a text file of the keys of the images to erase, one on each line")

    def run_job(stage: str, words: Sequence[str]) -> int:
        told = ["-r", values["runner"], *command_line((*HADOOP_OPTIONS, CLUSTER_PYTHON), values), *words, root]
        return run_module({"normalize": "mapreduce.normalize", "shard": "mapreduce.shard"}[stage], told, True)[0]

    keys = open_place(parsed["keys"])
    summary = run_erase(open_place(root), keys, run_job, slices=parsed["slices"], dry_run=parsed["dry_run"])
    summary.show(values["json"])
    require_clean(summary)


@cli.command(epilog="Example: ringslice report data/flowers/runs/horovod data/flowers/runs/ddp -o strategies.html")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@config_option
@click.option("--name", help="Name of the slices. Default: default")
@click.option("-o", "--output", metavar="FILE", help="Where the page goes, hdfs:// too. Default: ./NAME-report.html")
@click_options((JSON, *ENVIRONMENT_OPTIONS))
def report(places: tuple[str, ...], name: str | None, output: str | None, **values: Any) -> None:
    """Write an HTML page about slices, about a training run, or one that compares runs.

    PLACE is a dataset's root: balance, rejects, examples, costs of its slices. Or a run's folder, ROOT/runs/NAME,
    finished or not. Two or more of them are compared: curves, waits, bytes by rank, memory, settings that differ.
    """
    try:
        from etl.report.command import report_on  # only here: the other commands do without what it draws with
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise EnvironmentFailure(f"report needs {package}; run: pip install 'ringslice[report]'") from None
    report_on([open_place(each) for each in places or [default_data_place()]], name, output).show(values["json"])


@cli.command(epilog="Example: ringslice inspect data/flowers/slices/default/train/train-00000-of-00008 --index 3")
@click.argument("slice_", metavar="SLICE")
@click.option("--index", type=int, metavar="N", help="The example to look at, by its number from 0.")
@click.option("--key", metavar="KEY", help="The example to look at, by its key.")
@click.option("--save", metavar="FILE", help="Write that example's image to a file.")
@click.option("--force", is_flag=True, help="With --save: replace a file that is there.")
@click_options((JSON, *ENVIRONMENT_OPTIONS))
def inspect(slice_: str, index: int | None, key: str | None, save: str | None, **values: Any) -> None:
    """Tell what a slice holds, or with --index or --key what one example holds and where it came from.

    SLICE is a path or URI of a slice, with or without .tfrecord, or of a part under ROOT/normalized/parts.
    """
    if (index is not None and key is not None) or (save and index is None and key is None):
        raise UsageError("give either --index or --key" + (" with --save" if save else ""))
    inspect_slice(slice_, index, key, (save, values["force"]), values["json"])


@cli.command(epilog="Example: ringslice read-bench hdfs://namenode:8020/datasets/flowers --slices-at-once 1,8")
@root_argument
@config_option
@click_options((*READ_BENCH_OPTIONS, JSON, *ENVIRONMENT_OPTIONS))
def read_bench(root: str, **values: Any) -> None:
    """Tell how fast training slices can be read here: raw, as records in TensorFlow, and decoded.

    raw is pyarrow reading bytes and nothing else; records are batches of serialized examples, in an epoch's order and
    checked; decoded are batches of pixels. The slices are read again and again: what fits into memory comes from there.
    """
    _run("train.read_bench", [*command_line((*READ_BENCH_OPTIONS, JSON), values), root])


def _start_ranks(words: tuple[str, ...]) -> None:
    """Run the command of this name of `train.start`, which has its options and its help."""
    _run("train.start", [click.get_current_context().info_name or "", *words])


for _name, _help in (
    ("train", "Train a model on the slices of ROOT, on ranks that the launcher of --strategy starts."),
    ("evaluate", "Evaluate a checkpoint of a run of ROOT on one split."),
    ("promote", "Make a run of ROOT the champion, if it is better than the one before."),
    ("export", "Export a checkpoint of a run of ROOT as a SavedModel."),
):
    _settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    _words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    cli.add_command(click.Command(_name, _settings, _start_ranks, [_words], _help, add_help_option=False))


@cli.command(epilog="Example: ringslice convert-weights data/flowers --run nightly --to nightly-torch")
@root_argument
@click.option("--run", help="Name of the run, under ROOT/runs. Default: the run of the highest number.")
@click.option("--to", required=True, metavar="RUN", help="The new run, under ROOT/runs.")
@click.option("--checkpoint", type=click.Choice(["newest", "best"]), default="newest", show_default=True)
@click_options((JSON, *ENVIRONMENT_OPTIONS))
def convert_weights(root: str, run: str | None, to: str, checkpoint: str, **values: Any) -> None:
    """Copy a run's checkpoint to a new run of the other framework: from TensorFlow to PyTorch, or back.

    train/main.py --resume --run RUN continues there, with a strategy of that framework.
    """
    words = ["--data", root, "--to", to, "--checkpoint", checkpoint, *(("--run", run) if run else ())]
    _run("train.convert_weights", [*words, *command_line((JSON,), values)])


@cli.command(epilog="Example: ringslice doctor hdfs://namenode:8020/datasets/flowers --queue images")
@click.argument("uri", required=False, default=default_data_place)
@click.option("--queue", metavar="NAME", help="A YARN queue that must exist.")
@click.option("--python-bin", metavar="PATH", help="The nodes' own Python, to be tried in place of the packed one.")
@click.option("--only", "groups", multiple=True, type=click.Choice(GROUPS), help="Only these checks; may be repeated.")
@click_options((*ENVIRONMENT_OPTIONS, JSON))
def doctor(uri: str, queue: str | None, python_bin: str | None, groups: tuple[str, ...], **values: Any) -> int:
    """Look whether all that the stages need works here: Python, Hadoop, the storage at URI, YARN, Horovod, GPUs.

    Exit status 0 if nothing fails, else 3. It leaves nothing behind. Without URI it takes $RINGSLICE_DATA, else ./data.
    """
    return diagnose(Context(uri, queue, python_bin), groups, values["json"])


@cli.command(epilog="Example: ringslice pipeline photos/by-class data/flowers --size 224 --workers 8")
@click.argument("source")
@root_argument
@config_option
@runner_option
@click_options((*INGEST_OPTIONS, *NORMALIZE_OPTIONS, *SHARD_OPTIONS, OVERWRITE, JSON, VERBOSE, *_JOB_OPTIONS))
def pipeline(source: str, root: str, **values: Any) -> None:
    """Run ingest, normalize, shard and verify, one after the other; what is done already is not done again."""
    as_json = values["json"]
    ingested = _ingest(source, root, values)
    if not as_json:
        ingested.show(as_json=False, verbose=values["verbose"])
    normalized = _run_job("mapreduce.normalize", NORMALIZE_OPTIONS, root, values, capture=as_json)
    sharded = _run_job("mapreduce.shard", SHARD_OPTIONS, root, values, capture=as_json)
    verified = _run_job("mapreduce.verify", VERIFY_OPTIONS, root, values, capture=as_json)
    if as_json:
        stages = [ingested.to_json(), *map(json.loads, (normalized, sharded, verified))]
        print(json.dumps(stages, ensure_ascii=False, allow_nan=False), flush=True)


def _ingest(source: str, root: str, values: Mapping[str, Any]) -> Summary:
    return run_ingest(open_place(source), open_place(root), parse_values(INGEST_OPTIONS, values), values["overwrite"])


def _run_job(
    module: str, options: tuple[Option, ...], root: str, values: Mapping[str, Any], capture: bool = False
) -> str:
    """Run a job as a child process, as `_run` does; returns its output if asked."""
    words = [
        "-r",
        values["runner"],
        *command_line((*options, *HADOOP_OPTIONS, CLUSTER_PYTHON, OVERWRITE, JSON, VERBOSE), values),
        root,
    ]
    return _run(module, words, capture)


def _run(module: str, words: Sequence[str], capture: bool = False) -> str:
    """Run a module as a child process; if it fails, this process ends with its status, because it has reported why."""
    status, output = run_module(module, words, capture)
    if status:
        sys.exit(status)
    return output


def main() -> NoReturn:
    """Entry point; exits 0, 1, 2, 3 or 130."""
    end_process(run_reporting(lambda: invoke(cli, "ringslice")))


if __name__ == "__main__":
    main()
