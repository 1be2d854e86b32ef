"""The command ``ringslice``: parse the options of a subcommand and run its stage."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from etl import __version__
from etl.doctor.check import Context, run_checks
from etl.doctor.command import GROUPS, checks_of
from etl.erase.command import erase as run_erase
from etl.erase.command import require_clean
from etl.errors import EnvironmentFailure, UsageError
from etl.options.click_command import COUNT, add_options, config_option, option_values, run_command
from etl.options.stage_options import (
    ENVIRONMENT_OPTIONS,
    HADOOP,
    HADOOP_OPTIONS,
    INGEST_OPTIONS,
    JSON,
    NORMALIZE_OPTIONS,
    OVERWRITE,
    RETRY_REJECTS,
    RUNNER_OPTIONS,
    SHARD_OPTIONS,
    VERBOSE,
    VERIFY_OPTIONS,
)
from etl.processes import exec_module
from etl.raw.ingest import ingest as run_ingest
from etl.slices.prune import KeptRuns
from etl.slices.prune import prune as run_prune
from etl.stages.layout import is_root
from etl.stages.summary import Summary
from etl.storage.place import Place, default_data_place, open_place
from etl.verify.inspection import inspect_slice

if TYPE_CHECKING:
    from mapreduce.jobs.stage_job import Show, StageJob

_JOB_OPTIONS = (*HADOOP_OPTIONS, *ENVIRONMENT_OPTIONS)
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
@add_options(*INGEST_OPTIONS, OVERWRITE, JSON, VERBOSE, *ENVIRONMENT_OPTIONS)
def ingest(source: str, root: str, **values: Any) -> None:
    """Pack the images of SOURCE into tar files under ROOT/raw, with an image list.

    SOURCE is a folder with a folder per class, a folder with IDX files (images and labels in pairs, plain or gzip),
    archives (tar and WebDataset shards, plain, gzip or zstd), Parquet files with image bytes, or a list of files (CSV
    or JSON Lines) with their labels.
    """
    _ingest(source, root, values, _printer(values))


@cli.command(epilog="Example: ringslice normalize data/flowers --size 224 --format jpeg")
@root_argument
@config_option
@add_options(*RUNNER_OPTIONS, *NORMALIZE_OPTIONS, RETRY_REJECTS, OVERWRITE, JSON, VERBOSE, *_JOB_OPTIONS)
def normalize(root: str, **values: Any) -> None:
    """Decode and resize the images in ROOT/raw.

    Unusable images go to ROOT/normalized/rejects with a reason; --retry-rejects retries them with looser limits: the
    same command with e.g. --max-seconds 60.
    """
    _run_job("normalize", root, values, _printer(values))


@cli.command(epilog="Example: ringslice shard data/flowers --workers 8 --split train=0.9,test=0.1")
@root_argument
@config_option
@add_options(*RUNNER_OPTIONS, *SHARD_OPTIONS, OVERWRITE, JSON, VERBOSE, *_JOB_OPTIONS)
def shard(root: str, **values: Any) -> None:
    """Write the normalized images as TFRecord slices to ROOT/slices/NAME."""
    _run_job("shard", root, values, _printer(values))


@cli.command(epilog="Example: ringslice verify data/flowers --every-stage --repair")
@root_argument
@config_option
@add_options(*RUNNER_OPTIONS, *VERIFY_OPTIONS, JSON, VERBOSE, *_JOB_OPTIONS)
def verify(root: str, **values: Any) -> None:
    """Check every byte of the slices against the manifest.

    Findings go to ROOT/verified/NAME; exit status 1 if there are any.
    """
    _run_job("verify", root, values, _printer(values))


@cli.command(epilog="Example: ringslice prune data/flowers --keep 7 --keep-runs 7 --dry-run")
@root_argument
@config_option
@click.option(
    "--keep",
    type=COUNT,
    metavar="N",
    help="Number of the newest slices to keep, beside the end of the lineage and slices of runs. Default: that of"
    " --keep-runs.",
)
@click.option(
    "--keep-runs",
    type=COUNT,
    metavar="N",
    help="Number of the newest runs to keep, of those whose name begins with --run-prefix, beside runs that are being"
    " trained, the champion and the 3 before it; others are deleted first, with their checkpoints. Default: all.",
)
@click.option(
    "--run-prefix",
    default="airflow-",
    show_default=True,
    help="Prefix of the names of runs that --keep-runs may delete; '' for all.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing; report what would be deleted, with bytes.")
@add_options(JSON, *ENVIRONMENT_OPTIONS)
def prune(root: str, keep: int | None, keep_runs: int | None, *, run_prefix: str, dry_run: bool, json: bool) -> None:
    """Delete old slices and the packs and parts that only they use.

    The N newest, the end of the lineage and slices of runs stay. With --keep-runs, older runs of a nightly job are
    deleted first, with their checkpoints. Deleted are ROOT/slices/NAME, ROOT/verified/NAME, and the generations of
    normalized and raw that no remaining slices were made from, with their packs and parts.
    """
    source = click.get_current_context().get_parameter_source("run_prefix")
    if keep_runs is None and source is click.core.ParameterSource.COMMANDLINE:
        raise UsageError(
            f"--run-prefix {run_prefix!r} is for --keep-runs N, without which no run is deleted; give both"
        )
    least = keep or keep_runs
    if least is None:
        raise UsageError("give --keep N, the number of the newest slices to keep; or --keep-runs N, for runs too")
    run_prune(open_place(root), least, dry_run, KeptRuns(keep_runs, run_prefix) if keep_runs else None).show(json)


@cli.command(epilog="Example: ringslice erase data/flowers --keys withdrawn.txt")
@root_argument
@config_option
@add_options(*RUNNER_OPTIONS)
@click.option("--keys", metavar="FILE", help="A text file of the keys of the images to erase, one on each line.")
@click.option("--dry-run", is_flag=True, help="Change nothing; report what would be erased.")
@add_options(JSON, *_JOB_OPTIONS)
def erase(root: str, keys: str | None, *, dry_run: bool, json: bool, **cluster: Any) -> None:
    """Delete images by key, with all of the same content, from raw and normalized; list the slices that contain them.

    Packs and parts with these images are rebuilt, and no earlier generation keeps them. While there are slices with
    these images, the exit status is 1: make new ones by the command that is printed, delete the old ones, and run
    this again. Delete the images in their source as well.
    """
    if keys is None:
        raise UsageError("give --keys FILE: a text file of the keys of the images to erase, one on each line")

    def run_job(stage: str, values: Mapping[str, Any]) -> None:
        _run_job(stage, root, {**cluster, **values}, lambda summary: None)

    summary = run_erase(open_place(root), open_place(keys), run_job, dry_run=dry_run)
    summary.show(json)
    require_clean(open_place(root), summary)


@cli.command(epilog="Example: ringslice report data/flowers/runs/horovod data/flowers/runs/ddp -o strategies.html")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@config_option
@click.option("--name", help="Name of the slices. Default: default")
@click.option("-o", "--output", metavar="FILE", help="Output file, also hdfs://. Default: ./NAME-report.html")
@add_options(JSON, *ENVIRONMENT_OPTIONS)
def report(places: tuple[str, ...], name: str | None, output: str | None, **values: Any) -> None:
    """Write an HTML report of slices or a run, or one that compares runs.

    PLACE is a dataset's root (balance, rejects, examples, costs of its slices), or a run's folder ROOT/runs/NAME,
    finished or not. Several runs are compared: curves, waits, bytes by rank, memory, different settings.
    """
    try:
        summary = _report([open_place(each) for each in places or [default_data_place()]], name, output)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise EnvironmentFailure(f"report needs {package}; run: pip install 'ringslice[report]'") from None
    summary.show(values["json"])


def _report(places: Sequence[Place], name: str | None, output: str | None) -> Summary:
    if len(places) == 1 and is_root(places[0]):
        from etl.report.dataset_page import report_slices  # only here: other commands do without its libraries

        return report_slices(places[0], "default" if name is None else name, output)
    if name is not None:
        raise UsageError(f"--name {name!r} is of slices, and {places[0]} is not the only root. Leave it out")
    from train.report.command import report_runs

    return report_runs(places, output)


@cli.command(epilog="Example: ringslice inspect data/flowers/slices/default/train/train-00000-of-00008 --index 3")
@click.argument("slice_", metavar="SLICE")
@click.option("--index", type=int, metavar="N", help="The example to show, by its number from 0.")
@click.option("--key", metavar="KEY", help="The example to show, by its key.")
@click.option("--save", metavar="FILE", help="Write that example's image to a file.")
@click.option("--force", is_flag=True, help="With --save: replace an existing file.")
@add_options(JSON, *ENVIRONMENT_OPTIONS)
def inspect(slice_: str, index: int | None, key: str | None, save: str | None, **values: Any) -> None:
    """Show a slice, or with --index or --key one example and its source.

    SLICE is a path or URI of a slice, with or without .tfrecord, or of a part under ROOT/normalized/parts.
    """
    if (index is not None and key is not None) or (save and index is None and key is None):
        raise UsageError("give either --index or --key" + (" with --save" if save else ""))
    if values["force"] and not save:
        raise UsageError("--force is for --save FILE; give both")
    inspect_slice(slice_, index, key, (save, values["force"]), values["json"])


def _start_ranks(words: tuple[str, ...]) -> None:
    """Run the command of this name of `train.start`, which has its options and its help."""
    exec_module("train.start", [click.get_current_context().info_name or "", *words])


for _name, _run, _help in (
    ("read-bench", lambda words: exec_module("train.read_bench", words), "Measure read throughput of training slices."),
    ("train", _start_ranks, "Train a model on the slices of ROOT, on ranks that the launcher of --strategy starts."),
    ("evaluate", _start_ranks, "Evaluate a checkpoint of a run of ROOT on one split."),
    ("promote", _start_ranks, "Make a run of ROOT the champion, if it is better than the one before."),
    ("export", _start_ranks, "Export a checkpoint of a run of ROOT as a SavedModel."),
):
    _settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    _words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    cli.add_command(click.Command(_name, _settings, _run, [_words], _help, add_help_option=False))


@cli.command(epilog="Example: ringslice convert-weights data/flowers --run nightly --to nightly-torch")
@root_argument
@click.option("--name", help="The slices that the run was trained on, which select one of several roots.")
@click.option("--run", help="Name of the run, under ROOT/runs. Default: the run of the highest number.")
@click.option("--to", required=True, metavar="RUN", help="The new run, under ROOT/runs.")
@click.option("--checkpoint", type=click.Choice(["newest", "best"]), help="Which of the run's. Default: newest.")
@add_options(JSON, *ENVIRONMENT_OPTIONS)
def convert_weights(root: str, *, json: bool, **values: Any) -> None:
    """Copy a run's checkpoint to a new run of the other framework: from TensorFlow to PyTorch, or back.

    train/main.py --resume --run RUN continues there, with a strategy of that framework.
    """
    given = (f"--{name}={values[name]}" for name in ("name", "run", "to", "checkpoint") if values[name] is not None)
    exec_module("train.convert_weights", [f"--data={root}", *given, *(["--json"] if json else [])])


@cli.command(epilog="Example: ringslice doctor hdfs://namenode:8020/datasets/flowers --queue images")
@click.argument("uri", required=False, default=default_data_place)
@click.option("--queue", metavar="NAME", help="A YARN queue that must exist.")
@click.option("--python-bin", metavar="PATH", help="A Python of the nodes, to be checked.")
@click.option("--only", "groups", multiple=True, type=click.Choice(GROUPS), help="Only these checks; may be repeated.")
@add_options(*ENVIRONMENT_OPTIONS, JSON)
def doctor(uri: str, queue: str | None, python_bin: str | None, groups: tuple[str, ...], **values: Any) -> int:
    """Check Python, Hadoop, the storage at URI, YARN, Horovod and GPUs on this machine.

    Exit status 0 if nothing fails, else 3. Temporary files are deleted. Default of URI: $RINGSLICE_DATA, else ./data.
    """
    if "tasks" in groups and python_bin is None:
        raise UsageError("--only tasks checks a Python of the nodes; give it by --python-bin PATH")
    context = Context(uri, queue, python_bin)
    return run_checks(context, checks_of(context), groups or GROUPS, values["json"])


@cli.command(epilog="Example: ringslice pipeline photos/by-class data/flowers --size 224 --workers 8")
@click.argument("source")
@root_argument
@config_option
@add_options(*RUNNER_OPTIONS, *INGEST_OPTIONS, *NORMALIZE_OPTIONS, *SHARD_OPTIONS, OVERWRITE, JSON, VERBOSE)
@add_options(*_JOB_OPTIONS)
def pipeline(source: str, root: str, **values: Any) -> None:
    """Run ingest, normalize, shard and verify, one after the other; finished stages are not run again."""
    summaries: list[Summary] = []
    show = summaries.append if values["json"] else _printer(values)
    try:
        _ingest(source, root, values, show)
        for stage in ("normalize", "shard", "verify"):
            _run_job(stage, root, values, show)
    finally:
        if values["json"]:  # of the stages before one that fails, too
            stages = [summary.to_json() for summary in summaries]
            print(json.dumps(stages, ensure_ascii=False, allow_nan=False), flush=True)


def _printer(values: Mapping[str, Any]) -> "Show":
    return lambda summary: summary.show(values["json"], values["verbose"])


def _ingest(source: str, root: str, values: Mapping[str, Any], show: "Show") -> None:
    show(run_ingest(open_place(source), open_place(root), values, values["overwrite"]))


def _run_job(stage: str, root: str, values: Mapping[str, Any], show: "Show") -> None:
    """Run the job of ``stage`` to its end; of its options that are not among ``values`` it takes the defaults."""
    from mapreduce.normalize import Normalize  # only here: other commands do without mrjob, which takes 0.2 s to import
    from mapreduce.shard import Shard
    from mapreduce.verify import Verify

    jobs: dict[str, type[StageJob]] = {"normalize": Normalize, "shard": Shard, "verify": Verify}
    python = ("--python-bin", values["python_bin"]) if values["python_bin"] and values["runner"] == HADOOP else ()
    job = jobs[stage].of_words("-r", values["runner"], *python, open_place(root).uri)  # its name may begin with a dash
    job.run_stage(option_values(job.OPTIONS) | dict(values), show)


def main() -> NoReturn:
    """Entry point; exits 0, 1, 2, 3 or 130."""
    run_command(cli, "ringslice")


if __name__ == "__main__":
    main()
