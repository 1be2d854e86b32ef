#!/usr/bin/env python3
"""Classify images by an exported model.

    train/predict.py data/flowers/runs/nightly/export photos/ one-more.jpg --top 3
    train/predict.py champion photos/ --data data/flowers

The work itself is in train/serving/predictor.py.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import os

import click

from etl.options.click_command import add_options, run_command
from etl.options.stage_options import ENVIRONMENT_OPTIONS
from etl.stages.champion import CHAMPION
from etl.storage.place import open_place
from train.config.run_options import DATA, script
from train.parallel.startup import prepare_import, require_framework
from train.serving import files
from train.serving.image_files import find_images

COMMAND = "train/predict.py"


@script(COMMAND, "train/predict.py data/flowers/runs/nightly/export photos/ one-more.jpg --top 3")
@click.argument("export", metavar="EXPORT|champion")
@click.argument("places", metavar="FILE|FOLDER...", nargs=-1, required=True)
@DATA
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="Print the K likeliest classes."
)
@click.option("--json", "as_json", envvar="RINGSLICE_JSON", is_flag=True, help="Print a line of JSON for each image.")
@click.option(
    "--batch",
    allow_from_autoenv=False,  # RINGSLICE_BATCH is that of a training
    type=click.IntRange(1),
    default=32,
    show_default=True,
    metavar="N",
    help="Images in one call of the model.",
)
@add_options(*ENVIRONMENT_OPTIONS)
def command(export: str, places: tuple[str, ...], *, data: str, top: int, as_json: bool, batch: int) -> None:
    """Classify images: a line for each with its path, class and probability, separated by tabs.

    EXPORT is what train/export.py made; "champion" is the export of the run that was promoted, below ROOT. Of a folder
    every file below it is classified, except hidden ones. A file that cannot be used is named on standard error, and
    the others go on; the exit status is 1 then.
    """
    images = find_images(places)
    place = files.champion_export(open_place(data)) if export == CHAMPION else open_place(export)
    with files.fetch_export(place) as (folder, marker):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what it logs of a damaged image is in our one line
        with prepare_import(), require_framework(COMMAND):
            from train.serving.predictor import Predictor, predict
        predict(Predictor(folder, marker), images, top=top, batch=batch, as_json=as_json)


if __name__ == "__main__":
    run_command(command, COMMAND)
