#!/usr/bin/env python3
"""Export a run's newest checkpoint, or its best, as a SavedModel: image files in, class names and probabilities out.

    train/export.py --data data/flowers --run nightly --checkpoint best

It is one process, and takes no GPU. The work itself is in train/serving/exporter.py.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import os
from typing import Any

import click

from etl.errors import UsageError
from etl.options.click_command import add_options, run_command
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from train.config.run_options import CHECKPOINT, DATA, JSON, NAME_OF_RUN, TRAINED_RUN, script
from train.monitor.launcher import launched_size, local_size
from train.parallel.cluster import several_in
from train.parallel.startup import prepare_import, require_framework

COMMAND = "train/export.py"


@script(
    COMMAND, "train/export.py --data data/flowers --run nightly --checkpoint best -o hdfs://namenode/models/flowers"
)
@DATA
@NAME_OF_RUN
@TRAINED_RUN
@CHECKPOINT
@click.option(
    "-o",
    "--output",
    metavar="PLACE",
    help="Where the export goes, hdfs:// too; one that is there is replaced. Default: ROOT/runs/NAME/export.",
)
@JSON
@add_options(*ENVIRONMENT_OPTIONS)
def command(**values: Any) -> None:
    """Export a checkpoint of a run as a SavedModel that takes image files and needs nothing of ours.

    What was done to the training images is in it: decoding, turning a JPEG by EXIF, cutting or padding to the slices'
    size, colour. Colour profiles are not applied. TensorFlow, which alone loads it, has no ops for PNM, TIFF, AVIF,
    JPEG 2000, BMP of other than 24 bits and WebP with transparency. train/predict.py uses it on files and folders.
    """
    require_one_process()
    with prepare_import(), require_framework(COMMAND):
        from train.serving.exporter import export_run
    export_run(**values)


def require_one_process() -> None:
    """Raise UsageError if a launcher started several processes: they would wait for each other, or do the same."""
    if max(launched_size(), local_size()) > 1 or several_in(os.environ.get("TF_CONFIG", "")):
        raise UsageError(f"{COMMAND} is one process: start it without horovodrun, torchrun or train/launch.py")


if __name__ == "__main__":
    run_command(command, COMMAND)
