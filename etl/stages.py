"""The contract between stages: a folder, its marker, and what a second run of the same stage finds.

Stages meet only through files. Each writes one JSON marker last; a folder without its marker does not exist for any
reader. The marker is the stage's identity and result, equal wherever and whenever it was made; where, when and by what
it was made stands in ``run.json`` beside it. While a stage is at work its folder holds ``_work`` (the plan, the claim,
attempts), which goes when the marker has come.
"""

import enum
import getpass
import hashlib
import importlib.metadata
import platform
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from etl.claims import CLAIMS_FOLDER, Claim
from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.publishing import json_bytes, publish_bytes, replace_bytes
from etl.storage import Place

RAW_FORMAT = "ringslice.raw/1"
NORMALIZED_FORMAT = "ringslice.normalized/1"
SLICES_FORMAT = "ringslice.slices/2"

RUN_FILE = "run.json"
WORK_FOLDER = "_work"
PLAN_FILE = "plan.json"
_TASKS = "tasks-"
MAKERS = ("mrjob", "numpy", "pillow", "pyarrow", "protobuf", "crc32c")


class State(enum.Enum):
    """What `Stage.begin` found."""

    DONE = "done"
    RESUMED = "resumed"
    FRESH = "fresh"


@dataclass
class Stage:
    """One stage's folder. ``name`` is its command, ``marker_name`` its marker's file name.

    Whoever writes begins with `begin` and ends with `release`: in between it holds the stage's claim (`etl.claims`).
    """

    name: str
    folder: Place
    marker_name: str
    format: str

    def __post_init__(self) -> None:
        self._claim: Claim | None = None
        self.resumed = False

    @property
    def marker(self) -> Place:
        return self.folder / self.marker_name

    @property
    def work(self) -> Place:
        return self.folder / WORK_FOLDER

    @property
    def plan(self) -> Place:
        return self.work / PLAN_FILE

    @property
    def attempts(self) -> Place:
        """Where the run that holds the claim writes what it is about to publish."""
        assert self._claim is not None, "begin first"
        return self._claim.attempts

    def read_marker(self) -> dict[str, Any]:
        """The marker of this finished stage.

        Raises UsageError where the stage is not finished, or was written by another version of ringslice.
        """
        if not self.marker.exists():
            raise UsageError(
                f"{self.folder} holds no finished {self.name} (no {self.marker_name}); run: ringslice {self.name}"
            )
        marker = self.marker.read_json()
        if marker.get("format") != self.format:
            raise UsageError(f"{self.marker} has format {marker.get('format')!r}, this version reads {self.format!r}")
        return marker

    def fingerprint(self) -> str:
        """SHA-256 of the marker: what the next stage records as its input."""
        return hashlib.sha256(self.marker.read_bytes()).hexdigest()

    def begin(self, identity: dict[str, Any], overwrite: bool = False, listing: str | None = None) -> State:
        """Claim the folder and make it ready for a run whose ``config`` and ``input`` are those of ``identity``.

        DONE: the marker of the same identity is there, and nothing is claimed. RESUMED: an unfinished run of it was
        found, what it published can be kept. FRESH: the folder is empty but for the plan. ``listing`` is what an
        unfinished run must agree on besides, though it is not part of the identity.

        Raises UsageError where a finished stage of another identity is there and ``overwrite`` is not set, or files
        that no stage wrote; EnvironmentFailure where another run is at work on the stage.
        """
        finished = not overwrite and self.marker.exists()
        if finished:
            self._refuse_another(self.marker.read_json(), identity)
            if not self.work.exists():
                return State.DONE
        elif not overwrite:
            self._refuse_foreign_files()
        self._claim = Claim.take(self.work, f"ringslice {self.name} on {self.folder}")
        try:
            if not overwrite and self.marker.exists():  # only now nobody else can be replacing it
                self._refuse_another(self.marker.read_json(), identity)
                self._delete_work()
                return State.DONE
            return self._resume_or_clear({"identity": identity, "listing": listing}, overwrite)
        except BaseException:
            self.release()
            raise

    def _resume_or_clear(self, plan: dict[str, Any], overwrite: bool) -> State:
        planned = self.plan.read_json() if self.plan.exists() else None
        if planned == plan and not overwrite and not self._discard.exists():
            self.resumed = True
            return State.RESUMED
        self._clear()
        publish_bytes(self.plan, self.attempts, json_bytes(plan))
        self._discard.delete()
        return State.FRESH

    @property
    def _discard(self) -> Place:
        """While this file is there, all that lies in the folder is to be thrown away."""
        return self.work / "discard"

    def _clear(self) -> None:
        """Empty the folder but for `_discard`. A run that is killed in here is begun afresh by the next one."""
        assert self._claim is not None
        if not self._discard.exists():
            publish_bytes(self._discard, self.attempts, b"")
        kept = {WORK_FOLDER, CLAIMS_FOLDER, self._discard.name, self.attempts.name}
        self._claim.check()
        self.marker.delete()  # before anything that it tells of
        for folder in (self.folder, self.work):
            for info in folder.children():
                if info.base_name not in kept:
                    self._claim.check()
                    (folder / info.base_name).delete()

    def open_tasks(self) -> Place:
        """A new folder for what tasks are about to publish. The tasks of earlier runs can publish no more."""
        assert self._claim is not None
        for folder in self.task_folders():
            self._claim.check()
            folder.delete()
        return self._tasks_of(self._claim).make_folder()

    def _tasks_of(self, claim: Claim) -> Place:
        return self.work / f"{_TASKS}{claim.number:06d}-{claim.token}"

    def task_folders(self) -> list[Place]:
        """Folders of tasks, of earlier runs too."""
        names = [info.base_name for info in self.work.children()]
        return [self.work / name for name in names if name.startswith(_TASKS)]

    def commit(self, marker: dict[str, Any], run: "Run") -> None:
        """Write ``run.json``, then the marker, and remove the work folder and with it the claim."""
        replace_bytes(self.folder / RUN_FILE, self.attempts, json_bytes(run.finished()))
        publish_bytes(self.marker, self.attempts, json_bytes(marker))
        self._delete_work()

    def _delete_work(self) -> None:
        assert self._claim is not None
        self._claim.stop_beating()
        self._claim = None
        self.work.delete()

    def release(self) -> None:
        """Give up the claim, if this run still holds one; what it published stays for the next run to go on from."""
        if self._claim is not None:
            with suppress(OSError, EnvironmentFailure):  # what stays is fenced off by the next run
                self._tasks_of(self._claim).delete()
            self._claim.release()
            self._claim = None

    def read_run(self) -> dict[str, Any]:
        """What is known of the run that made this stage; empty where nothing is."""
        place = self.folder / RUN_FILE
        return place.read_json() if place.exists() else {}

    def _refuse_another(self, marker: dict[str, Any], identity: dict[str, Any]) -> None:
        for key, ours in identity.items():
            theirs = marker.get(key)
            if theirs == ours:
                continue
            if key == "config" and isinstance(theirs, dict):
                what = ", ".join(
                    f"{name} {theirs.get(name)} there, {ours.get(name)} asked"
                    for name in ours
                    if theirs.get(name) != ours.get(name)
                )
            elif key == "input":
                what = "made from other input"
            else:
                what = f"{key} {theirs!r} there, {ours!r} asked"
            raise UsageError(
                f"{self.folder} already holds another {self.name} ({what});"
                " use another place, or --overwrite to replace it"
            )

    def _refuse_foreign_files(self) -> None:
        if any(info.base_name != WORK_FOLDER for info in self.folder.children()) and not self.work.exists():
            raise UsageError(
                f"{self.folder} holds files but neither {self.marker_name} nor a plan;"
                " choose another place or remove it"
            )


class Run:
    """Where, when and by what a stage was made: the content of ``run.json``."""

    def __init__(self, runner: str | None = None, **facts: object) -> None:
        self._clock = time.monotonic()
        self._started = datetime.now(UTC)
        self._facts = {"runner": runner, **facts}

    def note(self, **facts: object) -> None:
        """Add to what is known of the run."""
        self._facts |= facts

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._clock

    def finished(self) -> dict[str, Any]:
        """The content of ``run.json`` for a run that ends now."""
        return {
            "started": self._started.isoformat(timespec="milliseconds"),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds, 3),
            "host": socket.gethostname(),
            "user": _user(),
            "command": sys.argv,
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in MAKERS},
            **self._facts,
        }


def raw_stage(root: Place) -> Stage:
    return Stage("ingest", root / "raw", "dataset.json", RAW_FORMAT)


def normalized_stage(root: Place) -> Stage:
    return Stage("normalize", root / "normalized", "dataset.json", NORMALIZED_FORMAT)


def slices_stage(root: Place, name: str) -> Stage:
    """The slices called ``name``. Raises UsageError for a name that is no plain file name."""
    if not is_folder_name(name):
        raise UsageError(f"--name {name!r} is no plain folder name; give something like 'default' or 'eight-workers'")
    return slices_stage_in(root / "slices" / name)


def slices_stage_in(folder: Place) -> Stage:
    """The slices in this folder."""
    return Stage("shard", folder, "manifest.json", SLICES_FORMAT)


def is_folder_name(name: str) -> bool:
    """Whether people may call slices or runs so: one folder, neither hidden nor one of our own."""
    return bool(name) and not name.startswith((".", "_")) and "/" not in name


def require(condition: bool, message: str) -> None:
    """Raise DataError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise DataError(message)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
