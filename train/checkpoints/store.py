"""Checkpoints of a run, on any root: plain arrays, and a JSON marker that names them, written last. No pickle, no code.

    runs/NAME/checkpoints/step-00000150/model.safetensors
                                        optimizer.safetensors
                                        checkpoint.json         format, step, files with SHA-256, facts, checksum

A folder without its marker is not a checkpoint: its trainer is writing it, or was killed. `amend` replaces the marker
of a checkpoint whose arrays stay, for example by one with the epoch's score. Every file is written to a
name in its owner's staging folder, and every marker leaves by way of it, so a trainer that was replaced can
neither finish a checkpoint nor remove one.
"""

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.progress import log
from etl.storage.atomic import publish_bytes, replace_bytes, replace_stream, withdraw
from etl.storage.place import Place, json_bytes, with_checksum
from train.checkpoints.safetensors_file import PIECE_BYTES, Arrays, parse, pieces

FORMAT = "ringslice.checkpoint/4"  # of every format the checksum is that of `with_checksum`
FOLDER = "checkpoints"
MARKER = "checkpoint.json"
OWN_FACTS = {"format", "step", "files", "checksum"}

SYNCED_PIECES = (256 << 20) // PIECE_BYTES
READ_BYTES = 8 << 20
OnProgress = Callable[[], None]  # called now and then while bytes come and go

_SUFFIX = ".safetensors"
_FILE_NAME = re.compile(rf"[a-z][a-z0-9_]*{re.escape(_SUFFIX)}")


class DamagedError(DataError):
    """A checkpoint that cannot be used: a file is missing, or is not as it was written."""


def nothing(*arguments: object) -> None:
    """Do nothing: the default of what is called back."""


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint: its folder and the content of its marker."""

    folder: Place
    marker: dict[str, Any]

    @property
    def step(self) -> int:
        """The step of the optimizer after which it was written."""
        return int(self.marker["step"])

    @property
    def name(self) -> str:
        """The name of its folder, as `name_of` gives it."""
        return self.folder.name

    @property
    def groups(self) -> list[str]:
        """The names of its groups of arrays, one for each file."""
        return [name.removesuffix(_SUFFIX) for name in self.marker["files"]]

    def read(self, group: str, progress: OnProgress = nothing) -> Arrays:
        """The arrays of a group, every byte checked.

        Raises UsageError if it has no such group, DamagedError if its file is missing or another one.
        """
        if group not in self.groups:
            raise UsageError(f"{self.folder} has no {group!r}, it has {', '.join(self.groups)}")
        place = self.folder / f"{group}{_SUFFIX}"
        try:
            data = _read_checked(place, self.marker["files"][place.name], progress)
        except FileNotFoundError:
            raise DamagedError(f"{place} is missing") from None
        try:
            return parse(data)
        except ValueError as error:
            raise DamagedError(f"{place} contains no arrays ({error})") from None

    def require_unchanged(self) -> None:
        """Raise EnvironmentFailure if it was removed, or its arrays were replaced, since its marker was read."""
        run = self.folder.parent.parent
        try:
            files = open_checkpoint(run, self.step).marker["files"]
        except DamagedError:
            files = None
        if files != self.marker["files"]:
            raise EnvironmentFailure(f"{run}: {self.name} was removed or replaced meanwhile; run again")


def write(
    run: Place,
    staging: Place,
    step: int,
    groups: Mapping[str, Arrays],
    facts: dict[str, Any],
    *,
    progress: OnProgress = nothing,
    before_file: Callable[[Place], None] = nothing,
) -> Checkpoint:
    """Write the checkpoint of ``step``, a file for each group, by way of the folder ``staging``; returns it.

    What is there of this step, of a trainer that was killed or with another number of ranks, is replaced: until the new
    marker is there, the newest checkpoint is the one before.

    Raises EnvironmentFailure if ``staging`` is gone, UsageError for arrays that cannot be kept.
    """
    _refuse_own(facts)
    folder = _folder(run, step)
    withdraw(folder / MARKER, staging)
    files = {}
    for group, arrays in groups.items():
        name = f"{group}{_SUFFIX}"
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{group!r} is not a name of a group; give lower-case letters, digits and _")
        before_file(folder / name)
        with replace_stream(folder / name, staging) as output:
            for number, piece in enumerate(pieces(arrays), 1):
                output.write(piece)
                if number % SYNCED_PIECES == 0:  # or all the waiting comes at the end, without progress
                    output.sync()
                progress()
        files[name] = {"sha256": output.sha256, "size_bytes": output.size_bytes}
    marker = _marker(step, files, facts)
    before_file(folder / MARKER)
    publish_bytes(folder / MARKER, staging, json_bytes(marker))
    return Checkpoint(folder, marker)


def amend(run: Place, staging: Place, step: int, facts: dict[str, Any]) -> Checkpoint:
    """Replace the marker of the checkpoint of ``step`` by one with these facts, in one atomic step; returns it.

    The arrays stay as they are. Raises DamagedError if there is no such checkpoint, EnvironmentFailure if ``staging``
    is gone.
    """
    _refuse_own(facts)
    checkpoint = open_checkpoint(run, step)
    marker = _marker(step, checkpoint.marker["files"], facts)
    replace_bytes(checkpoint.folder / MARKER, staging, json_bytes(marker))
    return Checkpoint(checkpoint.folder, marker)


def _refuse_own(facts: dict[str, Any]) -> None:
    if taken := OWN_FACTS & facts.keys():
        raise ValueError(f"a checkpoint records its {', '.join(sorted(taken))} itself")


def _marker(step: int, files: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    content = {"format": FORMAT, "step": step, "files": files, **facts}
    return with_checksum(json.loads(json_bytes(content)))  # as it will be read: with texts for keys, and lists


def steps(run: Place) -> list[int]:
    """The steps of the checkpoints whose marker is there, ascending.

    Raises UsageError if the run has checkpoints of the version before this one.
    """
    folder = run / FOLDER
    names = [info.base_name for info in folder.children()]
    for name in names:
        if name.endswith(".json"):
            raise UsageError(f"{folder / name} is of an earlier version of ringslice; give another --run")
    found = ((name, _step_of(name)) for name in names)
    return sorted(step for name, step in found if step is not None and (folder / name / MARKER).exists())


def open_checkpoint(run: Place, step: int) -> Checkpoint:
    """The checkpoint of ``step``; no array is read.

    Raises DamagedError if its marker is missing or not as it was written, UsageError if it is of another format.
    """
    place = _folder(run, step) / MARKER
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{place} is missing") from None
    marker = _parse_marker(data)
    if marker is None:
        raise DamagedError(f"{place} is damaged: its checksum is not that of its content")
    if marker.get("format") != FORMAT:
        raise UsageError(
            f"{place} has format {marker.get('format')!r}, this version reads {FORMAT!r};"
            " go on with the version that wrote it, or give another --run"
        )
    if marker.get("step") != step or not all(map(_FILE_NAME.fullmatch, marker.get("files", [""]))):
        raise DamagedError(f"{place} is the marker of something else")
    return Checkpoint(place.parent, marker)


def chosen(run: Place, marker: dict[str, Any]) -> Checkpoint:
    """The checkpoint of ``run`` with this marker, which was read before; nothing is read now."""
    return Checkpoint(_folder(run, marker["step"]), marker)


def newest(run: Place) -> Checkpoint | None:
    """The newest checkpoint with a sound marker; None if there is none. Its arrays may still be damaged.

    Raises UsageError if it is of another format.
    """
    for step in reversed(steps(run)):
        try:
            return open_checkpoint(run, step)
        except DamagedError:
            continue
    return None


def best(run: Place) -> Checkpoint | None:
    """The checkpoint with the highest score, of equals the earliest; None if none has a score."""
    found = _sound(run)
    step = _best(_scores(found))
    return None if step is None else found[step]


def restore(run: Place, staging: Place, progress: OnProgress = nothing) -> tuple[Checkpoint, dict[str, Arrays]] | None:
    """The newest checkpoint that is whole, and its arrays by group; None if the run has none at all.

    Each damaged one is reported and removed, so that it is never met again: call it in the process that has the run's
    lease, whose staging folder ``staging`` is.

    Raises DataError, and removes nothing, if every one is damaged; UsageError if one is of another format.
    """
    damaged: dict[int, DamagedError] = {}
    for step in reversed(steps(run)):
        try:
            checkpoint = open_checkpoint(run, step)
            groups = {group: checkpoint.read(group, progress) for group in checkpoint.groups}
        except DamagedError as error:
            if not (_folder(run, step) / MARKER).exists():  # its trainer has a newer one, and has removed it
                return restore(run, staging, progress)
            damaged[step] = error
            continue
        for bad, why in damaged.items():
            log("train", f"{why}; {_folder(run, bad).name} is removed, {checkpoint.name} is taken instead")
            remove(run, staging, bad)
        return checkpoint, groups
    for why in damaged.values():
        raise DataError(f"{why}; no other checkpoint of {run} is whole: give another --run, or remove {run / FOLDER}")
    return None


def kept(scores: Mapping[int, float | None], keep: int) -> set[int]:
    """Which steps' checkpoints stay: the ``keep`` (at least 1) newest, and the best."""
    best = _best(scores)
    return {*sorted(scores)[-keep:]} | ({best} if best is not None else set())


def _best(scores: Mapping[int, float | None]) -> int | None:
    """The step with the highest score, of equals the earliest; None and NaN are never best."""
    known = {step: score for step, score in sorted(scores.items()) if score is not None and not math.isnan(score)}
    return max(known, key=known.__getitem__, default=None)


def prune(run: Place, staging: Place, keep: int) -> None:
    """Remove all checkpoints but the `kept` ones, by the fact ``score`` of each, and older folders without a sound
    marker.
    """
    stays = kept(_scores(_sound(run)), keep)
    folders = (_step_of(info.base_name) for info in (run / FOLDER).children())
    for folder in folders:
        if folder is not None and folder not in stays and folder < max(stays, default=0):
            remove(run, staging, folder)


def _sound(run: Place) -> dict[int, Checkpoint]:
    """The checkpoints whose marker is sound, by step."""
    found: dict[int, Checkpoint] = {}
    for step in steps(run):
        with suppress(DamagedError):
            found[step] = open_checkpoint(run, step)
    return found


def _scores(found: Mapping[int, Checkpoint]) -> dict[int, float | None]:
    return {step: each.marker.get("score") for step, each in found.items()}


def remove(run: Place, staging: Place, step: int) -> None:
    """Remove the checkpoint of ``step``, its marker first."""
    folder = _folder(run, step)
    withdraw(folder / MARKER, staging)
    withdraw(folder, staging)


def _folder(run: Place, step: int) -> Place:
    return run / FOLDER / name_of(step)


def name_of(step: int) -> str:
    """What the checkpoint of ``step`` is called."""
    return f"step-{step:08d}"


def _step_of(name: str) -> int | None:
    """The step of the folder called ``name``; None if it is none of ours."""
    digits = name.removeprefix("step-")
    return int(digits) if digits.isascii() and digits.isdigit() and name == name_of(int(digits)) else None


def _parse_marker(data: bytes) -> dict[str, Any] | None:
    """The marker whose text is ``data``; None if it is not, byte for byte, what `write` made."""
    try:
        marker = json.loads(data)
        return marker if json_bytes(with_checksum(marker)) == data else None
    except (ValueError, AttributeError, RecursionError):  # not JSON, not an object, too deep
        return None


def _read_checked(place: Place, recorded: Mapping[str, Any], progress: OnProgress) -> bytes:
    """The bytes of a file, of the ``recorded`` size and SHA-256. Raises DamagedError, FileNotFoundError."""
    info = place.info()
    if info.type == fs.FileType.File and info.size != recorded["size_bytes"]:
        raise DamagedError(f"{place} is damaged: it has {info.size:,} bytes instead of {recorded['size_bytes']:,}")
    data, digest = io.BytesIO(), hashlib.sha256()
    with place.filesystem.explain_errors(place.path), place.open_input() as stream:
        while chunk := stream.read(READ_BYTES):
            data.write(chunk)
            digest.update(chunk)
            progress()
    if digest.hexdigest() != recorded["sha256"]:
        raise DamagedError(f"{place} is damaged: its SHA-256 is not that of its marker")
    return data.getvalue()  # no copy
