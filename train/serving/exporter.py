"""The export of a run that has a checkpoint: from its weights and its slices' configuration to a SavedModel."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.normalized.erased import erased_config
from etl.stages.layout import normalized_stage
from etl.stages.run import RunRecord
from etl.stages.summary import Summary
from etl.storage.place import open_place
from train.config.settings import CPU
from train.evaluation.trained import find_with_slices
from train.monitor.monitor import Monitor
from train.parallel.startup import suppress_stderr
from train.runs.checkpointer import load_weights
from train.runs.folder import Dataset
from train.serving import files
from train.serving.graph import SIGNATURE, Preprocessing, Serving
from train.strategies.horovod_ring import Horovod
from train.tf_backend.devices import take_device


def export_run(
    *, data: str, name: str | None, run: str | None, checkpoint: str, output: str | None, json: bool
) -> None:
    """Export as the options of train/export.py ask.

    Raises UsageError if there is no such run or checkpoint, if it is not known any more how its images were
    normalised, or if the export would take the place of something else; DataError for a damaged checkpoint.
    """
    record = RunRecord()
    take_device(CPU)
    monitor = Monitor()
    strategy = Horovod(monitor)
    trained = find_with_slices(data, name, run, checkpoint)
    dataset = trained.dataset
    config = find_config(dataset)
    place = open_place(output) if output else open_place(trained.folder) / files.FOLDER
    files.require_free(place)  # before the long work
    exported = trained.run_on(dataset, trained.settings(data=data))
    settings, manifest = exported.settings, exported.manifest
    trainer = strategy.make_trainer(settings, manifest)
    load_weights(exported, trainer, trained.marker, monitor)
    size = settings.picture_size(manifest)
    serving = Serving(trainer.model, Preprocessing(manifest, config, size), manifest.classes)
    facts: dict[str, Any] = {
        "run": trained.name,
        **trained.weights,
        "model": settings.recipe.model,
        "size": list(size),
    }
    with TemporaryDirectory(prefix="ringslice-export-") as made:
        with suppress_stderr():  # TensorFlow's messages about it
            tf.saved_model.save(serving, made, signatures={SIGNATURE: serving.serve})
        trained.require_unchanged()  # the folder of a run that was removed meanwhile is not made again
        size_bytes = sum(each.stat().st_size for each in Path(made).rglob("*") if each.is_file())
        marker = files.write(
            Path(made), place, facts | {"normalize": config.to_json(), "classes": dataset.manifest["classes"]}
        )
    facts |= {"classes": len(marker["classes"]), "bytes": size_bytes, "seconds": round(record.seconds, 1)}
    Summary("export", str(place), False, facts).show(json)
    strategy.collective.close()


def find_config(dataset: Dataset) -> NormalizeConfig:
    """How the images of these slices were normalised. Raises UsageError if it is not known any more."""
    root = open_place(dataset.root)
    stage = normalized_stage(root)
    generation, erased = (
        stage.find_generation(dataset.manifest["input"]),
        erased_config(root, dataset.manifest["input"]),
    )
    if erased is not None:
        return NormalizeConfig.from_json(erased)
    if generation is None:
        raise UsageError(
            f"{stage.folder} does not record how the images of {dataset.folder} were normalised: these slices were made"
            f" from another; put back its {stage.marker_name} and generations, from where the slices were made"
        )
    return NormalizeConfig.from_json(generation.marker["config"])
