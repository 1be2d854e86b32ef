"""Read the files of a run (``ROOT/runs/NAME``); what is missing is None or empty."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from etl.formats.json_schema import Schema, schema_fault
from etl.stages.names import METRICS_FOLDER, RECIPE_FILE, RESULT_FILE, RUN_FILE
from etl.storage.place import Place
from train.report.metrics import Epoch, Metrics, damaged, numbers_of, read_metrics
from train.runs.confusion import Confusion, confusion_file

CONFUSION_FILE = confusion_file("test")
# Of their fields, those whose types the pages depend on
_RESULT: Schema = {
    "required": ["settings", "epochs"],
    "properties": {
        "settings": {"type": "object"},
        "epochs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["epoch"],
                "properties": {"epoch": {"type": "integer"}, "step": {"type": ["integer", "null"]}},
            },
        },
        "result": {
            "type": ["object", "null"],
            "patternProperties": {"_(accuracy|loss)$": {"type": ["number", "null"]}},
        },
        "steps": {"type": "integer"},
        "rolled_back_steps": {"type": ["integer", "null"]},
        "stopped": {"type": ["string", "null"]},
    },
}
_RECORD: Schema = {
    "properties": {
        "finished": {"type": ["string", "null"]},
        "command": {"type": ["array", "null"], "items": {"type": "string"}},
        "versions": {"type": "object"},
        "ranks": {"type": "array", "items": {"type": "object"}},
    },
}

T = TypeVar("T")


@dataclass(frozen=True)
class RunFiles:
    """``result`` is None until the run is finished; ``record`` is its ``run.json``."""

    folder: Place
    recipe: Mapping[str, Any]
    metrics: Metrics
    result: Mapping[str, Any] | None
    confusion: Confusion | None
    record: Mapping[str, Any]

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs that are over, by the metrics; of a run without any, by its result."""
        history = self.result["epochs"] if self.result and self.metrics.is_empty else []
        return self.metrics.epochs or [numbers_of(row) for row in history]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recipe; without one, the settings of the result."""
        return self.recipe or (self.result["settings"] if self.result else {})

    @property
    def missing(self) -> list[tuple[str, str]]:
        """(file, what the page lacks without it)."""
        found = (
            (RESULT_FILE, "the run is not finished: it goes on, or was stopped", self.result is not None),
            (f"{METRICS_FOLDER}/", "steps, waits and throughput are not known", not self.metrics.is_empty),
            (RECIPE_FILE, "of the recipe only what the result has is known", bool(self.recipe)),
            (CONFUSION_FILE, "which classes are taken for which is not known", self.confusion is not None),
            (RUN_FILE, "when and where it ran is not known", bool(self.record)),
        )
        return [(file, lack) for file, lack, is_there in found if not is_there]


def is_run(place: Place) -> bool:
    """True if this is the folder of a run."""
    return any((place / name).exists() for name in (METRICS_FOLDER, RESULT_FILE, RECIPE_FILE))


def read_run(folder: Place) -> RunFiles:
    """Read what there is. Raises DataError naming the file if one is damaged."""
    return RunFiles(
        folder,
        _read(folder / RECIPE_FILE, lambda place: tomllib.loads(place.read_bytes().decode())) or {},
        read_metrics(folder),
        _read(folder / RESULT_FILE, _result),
        _read(folder / CONFUSION_FILE, lambda place: Confusion.from_json(place.read_json())),
        _read(folder / RUN_FILE, _record) or {},
    )


def _read(place: Place, parse: Callable[[Place], T]) -> T | None:
    """What ``parse`` makes of a file; None if there is none. Raises DataError if it is damaged."""
    try:
        return parse(place) if place.exists() else None
    except (KeyError, TypeError, ValueError) as error:
        what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
        raise damaged(place, what) from None


def _result(place: Place) -> dict[str, Any]:
    result = place.read_json()
    if not str(result["format"]).startswith("ringslice.run/"):
        raise ValueError(f"its format is {result['format']!r}")
    _check(result, _RESULT)
    return result | {"result": result.get("result") or {}}


def _record(place: Place) -> dict[str, Any]:
    record = place.read_json()
    _check(record, _RECORD)
    if finished := record.get("finished"):
        datetime.fromisoformat(finished)
    return record


def _check(content: Mapping[str, Any], schema: Schema) -> None:
    if fault := schema_fault(content, schema):
        raise ValueError(fault)
