"""Checkpoints: plain arrays in one ``.npz`` file and a JSON marker beside it, written last. No pickle, no code."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.errors import DataError, UsageError
from etl.publishing import json_bytes, publish_bytes, replace_bytes
from etl.storage import Place

FORMAT = "ringslice.checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint: its epoch, and what its marker says."""

    folder: Place
    epoch: int
    marker: dict[str, Any]

    @property
    def name(self) -> str:
        return f"epoch-{self.epoch:04d}"


def save(run: Place, attempts: Place, epoch: int, variables: Sequence[Any], facts: dict[str, Any]) -> None:
    """Write the values of ``variables`` as the checkpoint of ``epoch``, by way of the folder ``attempts``."""
    buffer = io.BytesIO()
    np.savez(buffer, **{_name(number, each): each.numpy() for number, each in enumerate(variables)})
    data, folder = buffer.getvalue(), run / "checkpoints"
    # a trainer that was killed may have left arrays without a marker, of another number of ranks even
    replace_bytes(folder / f"epoch-{epoch:04d}.npz", attempts, data)
    marker = {"format": FORMAT, "epoch": epoch, "sha256": hashlib.sha256(data).hexdigest(), **facts}
    publish_bytes(folder / f"epoch-{epoch:04d}.json", attempts, json_bytes(marker))


def history(run: Place) -> list[dict[str, Any]]:
    """The metrics of every epoch so far, as the checkpoints' markers tell them."""
    return [{"epoch": marker["epoch"], **marker["metrics"]} for marker in map(Place.read_json, _markers(run))]


def newest(run: Place) -> Checkpoint | None:
    """The finished checkpoint of the latest epoch; None where there is none."""
    markers = _markers(run)
    if not markers:
        return None
    marker = markers[-1].read_json()
    if marker.get("format") != FORMAT:
        raise UsageError(f"{markers[-1]} has format {marker.get('format')!r}, this version reads {FORMAT!r}")
    return Checkpoint(run / "checkpoints", marker["epoch"], marker)


def load(checkpoint: Checkpoint, variables: Sequence[Any]) -> None:
    """Set ``variables`` to the values of the checkpoint.

    Raises DataError where its file is damaged, UsageError where it holds another model's variables.
    """
    place = checkpoint.folder / f"{checkpoint.name}.npz"
    if not place.exists() or place.sha256() != checkpoint.marker["sha256"]:
        raise DataError(f"{place} is missing or damaged; remove it and its .json, and resume from the one before")
    with np.load(io.BytesIO(place.read_bytes()), allow_pickle=False) as arrays:
        for number, variable in enumerate(variables):
            name = _name(number, variable)
            if name not in arrays or arrays[name].shape != tuple(variable.shape) or len(arrays) != len(variables):
                raise UsageError(
                    f"{place} is of another model or optimizer ({name} does not fit);"
                    " resume with the options it was made with"
                )
            variable.assign(arrays[name])


def _markers(run: Place) -> list[Place]:
    folder = run / "checkpoints"
    return [folder / info.base_name for info in folder.children() if info.base_name.endswith(".json")]


def _name(number: int, variable: Any) -> str:
    return f"{number:04d}-{variable.name}"  # not its path, which counts the models that a process made before
