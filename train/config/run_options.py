"""The command line of a run, and the options that it shares with other scripts.

It imports no TensorFlow: --help and a wrong option answer at once.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import click

from etl.options.click_command import ParsedText, add_options
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from etl.storage.place import DATA_PLACE, default_data_place
from train.config.reader_options import reading_options
from train.config.recipe import Recipe
from train.config.recipe_options import RECIPE_OPTIONS, option, refuse_given_without_effect
from train.config.settings import (
    AUTO,
    BEST,
    CPU,
    DDP,
    DIVIDED,
    EPOCHS,
    GPIPE,
    GPU,
    HOROVOD,
    MICRO_BATCHES,
    MIRRORED,
    MULTI_WORKER,
    NEWEST,
    OF_TORCH,
    ONE_F_ONE_B,
    PIPELINE,
    SERVED,
    Settings,
)
from train.config.stopping import Stopping, Time
from train.monitor.monitor import STALL_TIMEOUT_S, Monitor, parse_stall_timeout
from train.monitor.rank_process import with_monitor
from train.reader.config import ReaderOptions

# RINGSLICE_EPOCHS=3 is --epochs 3; an option whose parameter has another name gives its variable itself
ENVIRONMENT_PREFIX = "RINGSLICE"


def script(name: str, example: str) -> Callable[[Any], click.Command]:
    """A decorator that makes the command of a script, whose options are also environment variables."""
    settings = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": ENVIRONMENT_PREFIX}
    return click.command(name, context_settings=settings, epilog=f"Example: {example}")


DATA = click.option(
    "--data",
    default=default_data_place,
    metavar="ROOT",
    help=f"The dataset's root, or a folder of roots. Default: ${DATA_PLACE}, else ./data.",
)
NAME = click.option("--name", help="Name of the slices. Default: the newest finished ones.")
NAME_OF_RUN = click.option("--name", help="The slices that the run was trained on, which select one of several roots.")
STALL_TIMEOUT = click.option(
    "--stall-timeout",
    "stall_timeout_s",
    envvar="RINGSLICE_STALL_TIMEOUT",
    type=ParsedText(parse_stall_timeout),
    default=STALL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="End all ranks, and name the one that is late, when it has made no progress for so long; 0: wait forever.",
)
TRAINED_RUN = click.option("--run", help="Name of the run, under ROOT/runs. Default: the run of the highest number.")
CHECKPOINT = click.option(
    "--checkpoint",
    type=click.Choice([NEWEST, BEST]),
    default=NEWEST,
    show_default=True,
    help="Which of the run's checkpoints: best is the one with the best accuracy after an epoch.",
)
STRATEGIES = click.Choice([HOROVOD, MIRRORED, MULTI_WORKER, *SERVED, *OF_TORCH])
EVALUATION_STRATEGY = click.option(
    "--strategy",
    type=STRATEGIES,
    default=HOROVOD,
    callback=lambda context, parameter, strategy: DDP if strategy in OF_TORCH else HOROVOD,
    metavar=f"[{HOROVOD}|{DDP}]",
    help="TensorFlow on ranks of horovodrun (the default), or PyTorch on those of torchrun; others mean one of these.",
)
JSON = click.option("--json", is_flag=True, help="Print the summary as JSON on standard output.")
VERBOSE = click.option("--verbose", is_flag=True, help="Print the share of each rank, and every count of the summary.")

_option = partial(option, Settings)
_OPTIONS = (
    DATA,
    click.option(
        "--name",
        help="Name of the slices. Default: the newest finished ones; of a run that is resumed without a result, its"
        " own.",
    ),
    click.option(
        "--strategy",
        type=STRATEGIES,
        default=HOROVOD,
        show_default=True,
        help="How to train in parallel: horovod, on the ranks that horovodrun started; mirrored, in one process with a"
        " copy of the model on each GPU of this host; multi-worker-mirrored, in several such processes"
        " (train/launch.py -np N); parameter-server and synchronous-parameter-server, in workers whose weights are on"
        " servers (train/launch.py --workers W --servers P); ddp, with PyTorch, on the ranks that torchrun started;"
        " pipeline and tensor-parallel, likewise, but each rank has a part of the model: consecutive layers; or"
        " some branches, and parts of pairs of linear layers. A run can go on with another one of the same framework.",
    ),
    _option(
        "model_ranks",
        f"Ranks that share one copy of the model, of --strategy {' and '.join(DIVIDED)}: N ranks have N/M"
        " copies, each with its own share of the data. Default: all ranks share one.",
        metavar="M",
    ),
    _option(
        "micro_batches",
        f"Parts of a batch that --strategy {PIPELINE} computes at the same time. Default: {MICRO_BATCHES}.",
        metavar="N",
    ),
    click.option(
        "--pipeline-schedule",
        type=click.Choice([ONE_F_ONE_B, GPIPE]),
        help=f"Order of the micro-batches: {ONE_F_ONE_B} (default) has activations of few of them, {GPIPE} of all.",
    ),
    _option(
        "replicas",
        "Copies of the model of --strategy mirrored. Default: one for each GPU; without a GPU, one.",
        metavar="N",
    ),
    _option(
        "group",
        "Train on the slices of one group of workers only, from 0 (ringslice shard --groups). Default: all.",
        metavar="N",
    ),
    *RECIPE_OPTIONS,
    option(Stopping, "epochs", "Passes over the training split.", default=EPOCHS),
    option(Stopping, "max_steps", "Stop after this many steps, in mid-epoch too.", metavar="N"),
    option(
        Stopping,
        "until_accuracy",
        "Stop after the epoch with this accuracy on the validation split (the test split if there is none).",
        metavar="FRACTION",
    ),
    option(
        Stopping,
        "patience",
        "Stop when so many epochs in a row were no better than one before. The result is that of the best weights.",
        metavar="EPOCHS",
    ),
    click.option(
        "--max-time",
        "max_time_s",
        envvar="RINGSLICE_MAX_TIME",
        type=Time(),
        metavar="TIME",
        help="Stop after so long a time, in mid-epoch too: seconds, or as in 90m or 1.5h. --resume goes on as"
        " long again.",
    ),
    click.option("--run", help="Name of the run, under ROOT/runs. Default: the next number."),
    click.option(
        "--resume",
        is_flag=False,
        flag_value=AUTO,
        type=click.Choice([AUTO]),
        help="Go on with the run (that of the highest number without --run) from its newest checkpoint that is whole,"
        " if it has any; in mid-epoch too, and with any number of ranks. --resume alone is --resume auto.",
    ),
    _option(
        "checkpoint_steps",
        "Leave a checkpoint every N steps, in the background. Default: at the end of each epoch only.",
        metavar="N",
        show_default=False,
    ),
    _option(
        "keep",
        "Checkpoints to keep: the N newest, and the one with the best accuracy on the validation split (the test"
        " split if there is none).",
        metavar="N",
    ),
    _option(
        "checkpoint_failures",
        "End when so many checkpoints in a row could not be written. The next checkpoint is the next try; the last"
        " one of a run must be written.",
        metavar="N",
    ),
    _option(
        "commit_steps",
        "In an elastic run: steps between commits. A rank that dies costs the steps since the last one.",
        metavar="N",
    ),
    STALL_TIMEOUT,
    click.option(
        "--device",
        type=click.Choice([AUTO, CPU, GPU]),
        default=AUTO,
        show_default=True,
        help="Where to train: auto takes a GPU for each rank if the framework sees any; gpu fails if it sees none.",
    ),
    _option(
        "deterministic",
        "The same weights bit for bit each time, with the same number of ranks and of cores for each.",
        show_default=False,
    ),
    _option(
        "audit",
        "Every rank writes down the keys of the examples it consumed, under the run.",
        show_default=False,
    ),
    JSON,
    VERBOSE,
    click.option("--local-rank", type=int, hidden=True, expose_value=False),  # of python -m torch.distributed.launch
)


def command(start: Callable[[Settings, Monitor], None]) -> click.Command:
    """The command line; ``start`` is called with the settings and the monitor of this rank."""

    @script("train/main.py", "horovodrun -np 8 train/main.py --data data/flowers --recipe fashion --epochs 20")
    @add_options(*_OPTIONS)
    @reading_options
    @add_options(*ENVIRONMENT_OPTIONS)
    @with_monitor
    def run(monitor: Monitor, /, reading: ReaderOptions, **values: Any) -> None:
        """Train a model on the slices of a dataset, on as many ranks as horovodrun starts.

        After each epoch it evaluates on the validation split (the test split if there is none), and writes a checkpoint
        under ROOT/runs; at the end it evaluates every example of the test split exactly once.

        With PyTorch: torchrun --nproc-per-node 8 -- train/main.py --strategy ddp

        Elastic, with ranks that come and go: horovodrun -np 4 --min-np 2 --max-np 8 --host-discovery-script SCRIPT
        train/main.py
        """
        recipe, stopping = ({each.name: values.pop(each.name) for each in fields(of)} for of in (Recipe, Stopping))
        settings = Settings(recipe=Recipe(**recipe), stopping=Stopping(**stopping), reading=reading, **values)
        refuse_given_without_effect(settings.recipe)
        start(settings, monitor)

    return run
