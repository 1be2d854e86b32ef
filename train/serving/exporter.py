"""The export of a run that has a checkpoint: from its weights and its slices' configuration to a SavedModel."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.normalized.erased import erased_config
from etl.stages.layout import normalized_stage
from etl.stages.stage import Run
from etl.stages.summary import Summary
from etl.storage.place import open_place
from train.config.settings import AUTO, CPU
from train.monitor.monitor import Monitor
from train.parallel.startup import hushed
from train.parallel.strategy import Horovod
from train.runs.folder import Dataset, choose_run, find_dataset
from train.serving import files
from train.serving.graph import SIGNATURE, Preprocessing, Serving
from train.tf_backend.devices import take_device
from train.trainer.evaluation import find_checkpoint, load, settings_of, weights_of
from train.trainer.session import Choice, open_session

FOLDER = "export"


@dataclass(frozen=True)
class Export:
    """What to export, and where to; the options of train/export.py say what each means."""

    data: str
    name: str | None
    run: str | None
    checkpoint: str
    output: str | None
    json: bool


def export_run(wanted: Export) -> None:
    """Export as ``wanted`` says.

    Raises UsageError where there is no such run or checkpoint, where it is not known any more how its images were
    normalised, or where the export would take the place of something else; DataError for a damaged checkpoint.
    """
    clock = Run()
    take_device(CPU)
    monitor = Monitor()
    strategy = Horovod(monitor)
    if strategy.size > 1:
        raise UsageError("train/export.py is one process: start it without horovodrun")
    dataset = find_dataset(wanted.data, wanted.name)
    run = choose_run(open_place(dataset.root), wanted.run, AUTO)
    marker = find_checkpoint(run, dataset, wanted.checkpoint).marker
    config = find_config(dataset)
    place = open_place(wanted.output) if wanted.output else run / FOLDER
    files.require_free(place)  # before the long work
    session = open_session(settings_of(marker, data=wanted.data), monitor, strategy, Choice(dataset, run.uri))
    load(session, marker)
    size = session.settings.picture_size(session.manifest)
    serving = Serving(session.model, Preprocessing(session.manifest, config, size), session.manifest.classes)
    facts: dict[str, Any] = {
        "run": run.name,
        **weights_of(marker),
        "model": session.settings.recipe.model,
        "size": list(size),
    }
    with TemporaryDirectory(prefix="ringslice-export-") as made:
        save(serving, made)
        told = files.write(
            Path(made), place, facts | {"normalize": config.to_json(), "classes": dataset.manifest["classes"]}
        )
    size_bytes = sum((place / name).info().size for name in told["files"])
    facts |= {"classes": len(told["classes"]), "bytes": size_bytes, "seconds": round(clock.seconds, 1)}
    Summary("export", str(place), False, facts).show(wanted.json)
    strategy.leave()


def find_config(dataset: Dataset) -> NormalizeConfig:
    """How the images of these slices were normalised. Raises UsageError where nobody knows any more."""
    root = open_place(dataset.root)
    stage = normalized_stage(root)
    marker, erased = stage.find_generation(dataset.manifest["input"]), erased_config(root, dataset.manifest["input"])
    if erased is not None:
        return NormalizeConfig.from_json(erased)
    if marker is None:
        raise UsageError(
            f"{stage.folder} does not say how the images of {dataset.folder} were normalised, for it is not what these"
            f" slices were made from; put back its {stage.marker_name} and generations, from where the slices were made"
        )
    return NormalizeConfig.from_json(marker["config"])


def save(serving: Serving, folder: str) -> None:
    """Write a SavedModel, without what TensorFlow tells of it."""
    with hushed():
        tf.saved_model.save(serving, folder, signatures={SIGNATURE: serving.serve})
