#!/usr/bin/env python3
"""Copy a run's newest checkpoint to a new run of the other framework: from TensorFlow to PyTorch, or back.

    train/convert_weights.py --data data/flowers --run nightly --to nightly-torch
    torchrun --nproc-per-node 2 -- train/main.py --strategy ddp --data data/flowers --run nightly-torch --resume

It needs neither framework.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import click

from etl.errors import UsageError
from etl.options.click_command import add_options, run_command
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from etl.stages.lease import lease_folder
from etl.stages.names import WORK_FOLDER
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.checkpoints.conversion import CONVERSIONS
from train.checkpoints.store import Checkpoint, DamagedError
from train.config.recipe import FLOAT16, NONE, Recipe
from train.config.run_options import CHECKPOINT, DATA, JSON, NAME_OF_RUN, TRAINED_RUN, script
from train.config.settings import AUTO, DDP, TENSORFLOW, TORCH
from train.evaluation.trained import find_with_slices
from train.runs.folder import choose_run

COMMAND = "train/convert_weights.py"


@script(COMMAND, f"{COMMAND} --data data/flowers --run nightly --to nightly-torch")
@DATA
@NAME_OF_RUN
@TRAINED_RUN
@click.option("--to", required=True, metavar="RUN", help="The new run, under ROOT/runs.")
@CHECKPOINT
@JSON
@add_options(*ENVIRONMENT_OPTIONS)
def command(data: str, name: str | None, run: str | None, *, to: str, checkpoint: str, json: bool) -> None:
    """Copy a checkpoint to a new run of the other framework: its weights, its optimizer's state, and its position.

    train/main.py --resume --run RUN continues there, with a strategy of that framework.
    """
    trained = find_with_slices(data, name, run, checkpoint)
    found = store.chosen(open_place(trained.folder), trained.marker)
    run_folder = choose_run(open_place(trained.dataset.root), to, AUTO, "--to")
    require_free(run_folder)
    made = convert(found, run_folder)
    facts = {"from": str(found.folder), "framework": made.marker["framework"], "step": made.step}
    Summary("convert-weights", str(made.folder), False, facts).show(json)


def require_free(run: Place) -> None:
    """Raise UsageError if the run has more than what a copy that failed has left: a part of a checkpoint."""
    others = {info.base_name for info in run.children()} - {WORK_FOLDER, store.FOLDER}
    if others or store.newest(run) is not None:
        raise UsageError(f"--to {run.name}: {run} already exists; give another name")


def convert(checkpoint: Checkpoint, run: Place) -> Checkpoint:
    """Write the checkpoint to a new run, for the framework that it is not of.

    The new run has neither --xla nor --compression, which only Horovod's steps support. Raises UsageError for a setting
    or a model that the other framework does not support, BusyError if a trainer is at work on the new run, DamagedError
    for a damaged checkpoint, EnvironmentFailure if its trainer has removed it meanwhile.
    """
    marker = checkpoint.marker
    settings = {**marker["settings"], "compression": NONE, "xla": False}
    framework = TENSORFLOW if marker["framework"] == TORCH else TORCH
    if settings["precision"] == FLOAT16:
        raise UsageError(
            f"{checkpoint.folder}: --precision float16 has a state of its own in each framework; use bfloat16"
        )
    if framework == TORCH:
        Recipe.of_run(settings).require_plain(DDP)
    try:
        groups = {group: checkpoint.read(group) for group in checkpoint.groups}
    except DamagedError:
        checkpoint.require_unchanged()
        raise
    converted = CONVERSIONS[framework](settings["model"], groups, checkpoint.step)
    facts = {name: value for name, value in marker.items() if name not in store.OWN_FACTS}
    facts |= {"framework": framework, "settings": settings}
    with lease_folder(run / WORK_FOLDER, f"{COMMAND} to {run}") as lease:
        require_free(run)  # again: to read a checkpoint may take minutes
        return store.write(run, lease.staging, checkpoint.step, converted, facts)


if __name__ == "__main__":
    run_command(command, COMMAND)
