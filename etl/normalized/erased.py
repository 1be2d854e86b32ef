"""Generations of ``normalized`` that `ringslice erase` has deleted: slices that hold none of the images stay, and it is
known how theirs were normalised. They stand in ``ROOT/erased/generations.json``, the configuration by fingerprint."""

from collections.abc import Iterable
from typing import Any

from etl.stages.layout import ERASED_FOLDER
from etl.stages.marker import Generation
from etl.storage.atomic import replace_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place

GENERATIONS_FILE = "generations.json"


def erased_config(root: Place, fingerprint: str) -> dict[str, Any] | None:
    """The configuration of a generation that was deleted; None where it was not."""
    return _read(root).get(fingerprint)


def remember_generations(root: Place, attempts: Place, gone: Iterable[Generation]) -> None:
    """Remember generations that are about to be deleted."""
    known = _read(root)
    told = known | {each.fingerprint: each.marker["config"] for each in gone}
    if told != known:
        replace_bytes(_place(root), attempts, json_bytes(dict(sorted(told.items()))))


def _read(root: Place) -> dict[str, Any]:
    return _place(root).read_json() if _place(root).exists() else {}


def _place(root: Place) -> Place:
    return root / ERASED_FOLDER / GENERATIONS_FILE
