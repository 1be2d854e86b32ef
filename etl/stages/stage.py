"""The contract between stages: a folder, its marker, and what a second run of the same stage finds.

Stages meet only through files. Each writes one JSON marker last; a folder without its marker does not exist for any
reader. The marker is the stage's identity and result, equal wherever and whenever it was made; where, when and by what
it was made stands in ``run.json`` beside it. While a stage is at work its folder holds ``_work`` (the plan, the claim,
attempts), which goes when the marker has come. A finished stage whose source has changed since can be renewed: see
`etl.stages.marker`.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.stages.lease import Claim
from etl.stages.marker import GENERATIONS_FOLDER, Finished, Renewal, fingerprint_of, kept_generations, unnamed_files
from etl.stages.marker import PLAN_FILE as PLAN_FILE
from etl.stages.marker import RUN_FILE as RUN_FILE
from etl.stages.marker import WORK_FOLDER as WORK_FOLDER
from etl.stages.run_record import Run as Run
from etl.storage.atomic import publish_bytes, replace_bytes, withdraw
from etl.storage.json_files import json_bytes
from etl.storage.place import Place

_TASKS = "tasks-"


class State(enum.Enum):
    """What `Stage.begin` found."""

    DONE = "done"
    RESUMED = "resumed"
    FRESH = "fresh"
    RENEWED = "renewed"


class Stage(Finished):
    """One stage's folder, to write it.

    Whoever writes begins with `begin` and ends with `release`: in between it holds the stage's claim
    (`etl.stages.lease`).
    """

    resumed = False
    _claim: Claim | None = None
    _renewed = _again = False

    @property
    def attempts(self) -> Place:
        """Where the run that holds the claim writes what it is about to publish."""
        assert self._claim is not None, "begin first"
        return self._claim.attempts

    def begin(
        self,
        identity: dict[str, Any],
        overwrite: bool = False,
        listing: str | None = None,
        *,
        renewal: Renewal | None = None,
        again: bool = False,
    ) -> State:
        """Claim the folder and make it ready for a run whose ``config`` and ``input`` are those of ``identity``.

        DONE: the marker of the same identity is there, and nothing is claimed. RESUMED: an unfinished run of it was
        found, what it published can be kept. FRESH: the folder is empty but for the plan. ``listing`` is what an
        unfinished run must agree on besides, though it is not part of the identity.

        With ``renewal`` a marker that differs in nothing but what that allows is RENEWED: it, and all that it names,
        stays for readers until `commit`; what an unfinished renewal of the same plan published is there too.

        With ``again`` a stage is never DONE: its marker, whatever its identity, and the files beside it stay until
        `commit` replaces the marker.

        Raises UsageError where a finished stage of another identity is there and ``overwrite`` is not set, or files
        that no stage wrote; EnvironmentFailure where another run is at work on the stage, or finished it meanwhile.
        """
        renewal, self._again = (None if overwrite else renewal), again
        if not overwrite and self.marker.exists():
            if self._judge(identity, renewal) is State.DONE and not self.work.exists():
                return State.DONE
        elif not overwrite:
            self._refuse_foreign_files()
        self._claim = Claim.take(self.work, f"ringslice {self.name} on {self.folder}")
        try:
            # only now nobody else can be replacing it
            found = self._judge(identity, renewal) if not overwrite and self.marker.exists() else State.FRESH
            if found is State.DONE:
                self._delete_work()
                return State.DONE
            if renewal is not None:
                self._require_parent(renewal)
            plan = {"identity": identity, "listing": listing, "parent": renewal.parent if renewal else None}
            self._renewed = found is State.RENEWED
            return self._resume_or_clear(plan, overwrite, renewal)
        except BaseException:
            self.release()
            raise

    def _judge(self, identity: dict[str, Any], renewal: Renewal | None) -> State:
        """What a run of this identity has to do where there is a marker."""
        if self._again:
            return State.FRESH
        marker = self.read_marker()
        differing = {key for key in identity if marker.get(key) != identity[key]}
        if renewal is None or differing - renewal.changes:
            self.refuse_another(marker, identity)
        return State.RENEWED if renewal is not None and (differing or renewal.wanted) else State.DONE

    def _require_parent(self, renewal: Renewal) -> None:
        current = self.fingerprint() if self.marker.exists() else None
        if current != renewal.parent:
            raise EnvironmentFailure(f"another run has written {self.marker} meanwhile; run again")

    def _resume_or_clear(self, plan: dict[str, Any], overwrite: bool, renewal: Renewal | None) -> State:
        planned = self.plan.read_json() if self.plan.exists() else None
        if planned == plan and not overwrite and not self._discard.exists():
            self.resumed = True
            return State.RENEWED if self._renewed else State.RESUMED
        if renewal is not None and self._renewed:
            self._clear_work()
            self.delete_checked(unnamed_files(self.folder, renewal, self._all_markers()))
        elif self._again and self.marker.exists():
            self._clear_work()
        else:
            self._clear()
        publish_bytes(self.plan, self.attempts, json_bytes(plan))
        self.delete_checked([self._discard])
        return State.RENEWED if self._renewed else State.FRESH

    @property
    def _discard(self) -> Place:
        """While this file is there, all that lies in the folder is to be thrown away."""
        return self.work / "discard"

    def _clear(self) -> None:
        """Empty the folder but for `_discard`. A run that is killed in here is begun afresh by the next one."""
        if not self._discard.exists():
            publish_bytes(self._discard, self.attempts, b"")
        withdraw(self.marker, self.attempts)  # before anything that it tells of
        self.folder.filesystem.sync_folder(self.folder.path)
        names = [info.base_name for info in self.folder.children()]
        self.delete_checked([self.folder / name for name in names if name != WORK_FOLDER])
        self._clear_work()

    def _clear_work(self) -> None:
        """Empty the work folder but for claims and `_discard`; the plan goes first, so that nothing is resumed."""
        assert self._claim is not None
        names = [name for name in self._claim.names_to_delete() if name != self._discard.name]
        self.delete_checked([self.plan, *(self.work / name for name in names)])

    def discard_unfinished(self) -> None:
        """Throw away the work of a run that did not finish, and without a marker all that it published.

        Who holds the claim deletes what no marker names.
        """
        if self.marker.exists():
            self._clear_work()
        else:
            self._clear()
            self._discard.delete()

    def delete_checked(self, places: Iterable[Place]) -> None:
        """Delete files and folders, in this order.

        Raises ReplacedError where another run has taken the stage over: nothing that it made is deleted.
        """
        for place in places:
            withdraw(place, self.attempts)

    def _all_markers(self) -> list[dict[str, Any]]:
        return [self.read_marker(), *(kept.marker for kept in kept_generations(self.folder))]

    def open_tasks(self) -> Place:
        """A new folder for what tasks are about to publish. The tasks of earlier runs can publish no more."""
        assert self._claim is not None
        self.delete_checked(self.task_folders())
        folder = self._tasks_of(self._claim).make_folder()
        try:
            self._claim.check()
        except EnvironmentFailure:  # it came too late for the run that has taken over to find it
            folder.delete()
            raise
        return folder

    def _tasks_of(self, claim: Claim) -> Place:
        return self.work / f"{_TASKS}{claim.number:06d}-{claim.token}"

    def task_folders(self) -> list[Place]:
        """Folders of tasks, of earlier runs too."""
        names = [info.base_name for info in self.work.children()]
        return [self.work / name for name in names if name.startswith(_TASKS)]

    def commit(self, marker: dict[str, Any], run: Run, beside: Mapping[str, bytes] | None = None) -> None:
        """Write ``run.json``, then the marker, and remove the work folder and with it the claim.

        A marker that is renewed is kept first. ``beside`` are files, by name, that may be there or not: they are
        written when the marker is.
        """
        replace_bytes(self.folder / RUN_FILE, self.attempts, json_bytes(run.finished()))
        if self._renewed:
            current = self.marker.read_bytes()
            kept = self.folder / GENERATIONS_FOLDER / f"{fingerprint_of(current)}.json"
            publish_bytes(kept, self.attempts, current)
        if self._renewed or self._again:
            replace_bytes(self.marker, self.attempts, json_bytes(marker))
        else:
            publish_bytes(self.marker, self.attempts, json_bytes(marker))
        for name, data in (beside or {}).items():
            replace_bytes(self.folder / name, self.attempts, data)
        self._delete_work()

    def leave(self) -> None:
        """End a renewal that has nothing to change: its marker stays, the work folder goes and with it the claim."""
        self._delete_work()

    @contextmanager
    def held(self) -> Iterator[Self]:
        """Hold the stage's claim while the block runs, for what is no run of the stage.

        Raises BusyError where another run is at work on it.
        """
        self._claim = Claim.take(self.work, f"ringslice {self.name} on {self.folder}")
        try:
            yield self
            if not self.plan.exists():
                self._delete_work()
        finally:
            self.release()

    def _delete_work(self) -> None:
        assert self._claim is not None
        self._claim.delete_work()
        self._claim = None

    def release(self) -> None:
        """Give up the claim, if this run still holds one; what it published stays for the next run to go on from."""
        if self._claim is not None:
            with suppress(OSError, EnvironmentFailure):  # what stays is fenced off by the next run
                self.delete_checked([self._tasks_of(self._claim)])
            self._claim.release()
            self._claim = None

    def _refuse_foreign_files(self) -> None:
        if any(info.base_name != WORK_FOLDER for info in self.folder.children()) and not self.work.exists():
            raise UsageError(
                f"{self.folder} holds files but neither {self.marker_name} nor a plan;"
                " choose another place or remove it"
            )


def require(condition: bool, message: str) -> None:
    """Raise DataError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise DataError(message)
