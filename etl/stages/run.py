"""A run of a stage: it holds the stage's lease, and is the only one that writes to its folder.

Where, when and by what a stage was made is in ``run.json``, from which no bytes of data follow.
"""

import enum
import getpass
import importlib.metadata
import platform
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from etl.errors import EnvironmentFailure
from etl.stages.lease import Lease
from etl.stages.marker import fingerprint_of
from etl.stages.names import RUN_FILE, WORK_FOLDER
from etl.storage.atomic import publish_bytes, replace_bytes, withdraw
from etl.storage.place import Place, json_bytes

if TYPE_CHECKING:  # which imports this module
    from etl.stages.stage import Stage


# options of mrjob with NAME=VALUE, maybe a password, in the same word or the next: -D, also behind other letters
_SECRET = re.compile(r"(?:-[hqv]*D|--jobconf|--cmdenv|--hadoop-args?)=?(.*)", re.DOTALL)

MAKERS = ("mrjob", "numpy", "pillow", "pyarrow", "protobuf", "crc32c")


class RunRecord:
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
        """How long the run has taken so far."""
        return time.monotonic() - self._clock

    def finished(self) -> dict[str, Any]:
        """The content of ``run.json`` for a run that ends now."""
        return {
            "started": self._started.isoformat(timespec="milliseconds"),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds, 3),
            "host": socket.gethostname(),
            "user": _user(),
            "command": [_in_utf8(word) for word in masked(sys.argv)],
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in MAKERS},
            **self._facts,
        }


def masked(words: Iterable[str]) -> list[str]:
    """A command line with ``***`` behind the first ``=`` of what is given to Hadoop or to the tasks' environment."""
    shown, is_secret = list[str](), False
    for word in words:
        option = None if is_secret else _SECRET.fullmatch(word)
        start = option.start(1) if option else 0
        is_value = is_secret or option is not None
        shown.append(word[:start] + re.sub("=.*", "=***", word[start:], flags=re.DOTALL) if is_value else word)
        is_secret = option is not None and not option[1]
    return shown


def _in_utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _user() -> str:
    try:
        return _in_utf8(getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


class Mode(enum.Enum):
    """What `Run.commit` does with the marker that is there."""

    NEW = "there is none"
    RENEWAL = "keep it as an earlier generation"
    REWRITE = "replace it"


class Run:
    """A run of ``stage``, from `Stage.begin` to `commit`, `abandon` or `release`.

    ``staging`` is where it writes what it is about to publish. ``is_resumed`` is true if an unfinished run of the same
    plan was found.
    """

    def __init__(self, stage: "Stage", lease: Lease, mode: Mode) -> None:
        self.stage, self.folder, self.work, self.staging = stage, stage.folder, stage.work, lease.staging
        self.lease, self.mode, self.is_resumed, self._has_ended = lease, mode, False, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def prepare(self, plan: dict[str, Any], *, can_resume: bool) -> None:
        """Resume the unfinished run of this plan if there is one; else delete what is there, and write the plan."""
        planned = self.stage.read_plan()
        self.is_resumed = planned == plan and can_resume and not self.stage.discard.exists()
        if self.is_resumed:
            return
        self._clear()
        if self.mode is Mode.RENEWAL:
            self.delete(self.stage.find_obsolete(lambda _: True)[1])
        publish_bytes(self.stage.plan, self.staging, json_bytes(plan))
        self.delete([self.stage.discard])

    def begin_discard(self) -> None:
        """All that lies in the folder is to be deleted, also if this run is killed."""
        if not self.stage.discard.exists():
            publish_bytes(self.stage.discard, self.staging, b"")

    def _clear(self) -> None:
        """Empty the work folder but for leases and `Stage.discard`; without a marker that stays, the whole folder.

        A run that is killed in here is begun afresh by the next one.
        """
        if self.mode is Mode.NEW:
            self.begin_discard()
        self.delete(self.stage.task_folders())  # before results: a task that is still at work publishes no more
        if self.mode is Mode.NEW:
            withdraw(self.stage.marker, self.staging)  # before anything that it names
            self.folder.filesystem.sync_folder(self.folder.path)
            names = [info.base_name for info in self.folder.children()]
            self.delete(self.folder / name for name in names if name != WORK_FOLDER)
        names = [name for name in self.lease.names_to_delete() if name != self.stage.discard.name]
        self.delete([self.stage.plan, *(self.work / name for name in names)])  # the plan first: nothing is resumed

    def discard_unfinished(self) -> None:
        """Delete the work of a run that did not finish, and without a marker all that it published."""
        self._clear()
        self.delete([self.stage.discard])

    def delete(self, places: Iterable[Place]) -> None:
        """Delete files and folders, in this order.

        Raises ReplacedError if another run has taken the stage over: nothing that it made is deleted.
        """
        for place in places:
            withdraw(place, self.staging)

    def open_tasks(self) -> Place:
        """A new folder for what tasks are about to publish. The tasks of earlier runs can publish no more."""
        self.delete(self.stage.task_folders())
        folder = self.lease.tasks.make_folder()
        try:
            self.lease.check()
        except EnvironmentFailure:  # it came too late for the run that has taken over to find it
            folder.delete()
            raise
        return folder

    def commit(self, marker: dict[str, Any], record: RunRecord, beside: Mapping[str, bytes] | None = None) -> None:
        """Write ``run.json``, then the marker, and delete the work folder and with it the lease.

        A marker that is renewed is kept first. ``beside`` are files, by name, that may be there or not: they are
        written when the marker is.
        """
        replace_bytes(self.folder / RUN_FILE, self.staging, json_bytes(record.finished()))
        if self.mode is Mode.RENEWAL:
            current = self.stage.marker.read_bytes()
            publish_bytes(self.stage.kept_marker(fingerprint_of(current)), self.staging, current)
        write = publish_bytes if self.mode is Mode.NEW else replace_bytes
        write(self.stage.marker, self.staging, json_bytes(marker))
        for name, data in (beside or {}).items():
            replace_bytes(self.folder / name, self.staging, data)
        self.abandon()

    def abandon(self) -> None:
        """End a run that has nothing (more) to change: delete the work folder and with it the lease."""
        self.lease.delete_work()
        self._has_ended = True

    def release(self) -> None:
        """Give up the lease, if this run still holds it; what it published stays for the next run to go on from."""
        if not self._has_ended:
            with suppress(OSError, EnvironmentFailure):  # what stays is fenced off by the next run
                self.delete([self.lease.tasks])
            self.lease.release()
            self._has_ended = True
