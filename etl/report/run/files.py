"""What a run left in its folder (``ROOT/runs/NAME``), read and checked; whatever is missing is None or empty."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.report.run.metrics import Epoch, Metrics, epochs_of, read_metrics
from etl.stages.run_files import CONFUSION_FORMAT, METRICS_FOLDER, RECIPE_FILE, RESULT_FILE, confusion_file
from etl.stages.stage import RUN_FILE
from etl.storage.place import Place

CONFUSION_FILE = confusion_file("test")

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Confusion:
    """What a split's examples were taken for: ``counts`` of shape (true classes, predicted classes)."""

    split: str
    classes: tuple[str, ...]
    counts: Counts


@dataclass(frozen=True)
class RunFiles:
    """All that is known of a run. ``result`` is None until it is finished; ``record`` is its ``run.json``."""

    folder: Place
    recipe: Mapping[str, Any]
    metrics: Metrics
    result: Mapping[str, Any] | None
    confusion: Confusion | None
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs that are over, by the metrics; of a run without any, by its result."""
        history = self.result.get("epochs", []) if self.result and not self.metrics.lines else []
        return self.metrics.epochs or epochs_of(history)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """(file, what the page lacks without it)."""
        return [
            (file, lack)
            for file, lack, is_there in (
                (RESULT_FILE, "the run is not finished: it is at work, or was stopped", self.result is not None),
                (f"{METRICS_FOLDER}/", "steps, waits and throughput are not known", bool(self.metrics.lines)),
                (RECIPE_FILE, "of the recipe only what the result tells is known", bool(self.recipe)),
                (CONFUSION_FILE, "which classes are taken for which is not known", self.confusion is not None),
                (RUN_FILE, "when and where it ran is not known", bool(self.record)),
            )
            if not is_there
        ]


def is_run(place: Place) -> bool:
    """Whether this is the folder of a run."""
    return any((place / name).exists() for name in (METRICS_FOLDER, RESULT_FILE, RECIPE_FILE))


def read_run(folder: Place) -> RunFiles:
    """Read what there is.

    Raises DataError naming the file, and of metrics the line, where one is damaged; EnvironmentFailure where one that
    is written whole or not at all is no JSON.
    """
    result = _read_json(folder / RESULT_FILE)
    files = RunFiles(
        folder,
        _read_recipe(folder / RECIPE_FILE),
        read_metrics(folder),
        result,
        _read_confusion(folder / CONFUSION_FILE),
        _read_json(folder / RUN_FILE) or {},
    )
    if result is not None:
        _check_result(folder / RESULT_FILE, files)
    return files


def _read_json(place: Place) -> dict[str, Any] | None:
    told = place.read_json() if place.exists() else None
    if not isinstance(told, dict | None):
        raise _damaged(place, ValueError("it is no object"))
    return told


def _check_result(place: Place, files: RunFiles) -> None:
    result = files.result
    try:
        if not isinstance(result, dict) or not str(result["format"]).startswith("ringslice.run/"):
            raise ValueError("no result of a run")
        for value in result["result"].values():
            float(value)
        epochs_of(result["epochs"])
        dict(result["settings"])
        int(result["steps"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(place, error) from None


def _read_recipe(place: Place) -> dict[str, Any]:
    if not place.exists():
        return {}
    try:
        return tomllib.loads(place.read_bytes().decode())
    except ValueError as error:
        raise _damaged(place, error) from None


def _read_confusion(place: Place) -> Confusion | None:
    told = _read_json(place)
    if told is None:
        return None
    try:
        if told["format"] != CONFUSION_FORMAT:
            raise ValueError(f"its format is {told['format']!r}, not {CONFUSION_FORMAT!r}")
        classes = tuple(map(str, told["classes"]))
        counts = np.array(told["counts"])
        if counts.shape != (len(classes), len(classes)):
            raise ValueError(f"counts of shape {counts.shape} for {len(classes)} classes")
        if counts.dtype.kind != "i" or (counts < 0).any():
            raise ValueError("counts must be whole numbers from 0")
        return Confusion(str(told["split"]), classes, counts.astype(np.int64))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(place, error) from None


def _damaged(place: Place, error: Exception) -> DataError:
    what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
    return DataError(f"{place} is damaged ({what}); put back a sound copy, or move it away to see the rest")
