"""The contract between stages: a folder, its marker, and what a second run of the same stage finds.

Stages meet only through files. Each writes one JSON marker last; a folder without its marker does not exist for any
reader. The marker is the stage's identity and result, equal wherever and whenever it was made; where, when and by what
it was made is in ``run.json`` beside it. While a stage is at work its folder has ``_work`` (the plan, the lease,
staging), which is deleted after the marker is written. A finished stage whose source has changed since can be renewed:
see `etl.stages.marker`. `etl.stages.run` has what writes.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.formats.json_schema import schema_fault
from etl.stages.lease import TASKS, Lease
from etl.stages.marker import FINGERPRINT, TABLES_FOLDER, EntryTable, Generation, difference, fingerprint_of
from etl.stages.names import GENERATIONS_FOLDER, PLAN_FILE, RUN_FILE, STAGE_FOLDERS, WORK_FOLDER
from etl.stages.run import Mode, Run
from etl.storage.place import Place

_RUN_SCHEMA = {  # of what is read again
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        **{name: {"type": "object"} for name in ("counters", "versions")},
        **{name: {"type": "number"} for name in ("seconds", "packed", "removed", "decoded", "reused")},
    }
}


@dataclass(frozen=True)
class Stage:
    """One stage's folder. ``name`` is its command, ``marker_name`` its marker's file name, ``hint`` what to do for
    another one beside it.

    A stage with ``entries``, packs or parts, has their files in ``file_folders``; files there that no entry names are
    what a killed run left. ``schema`` is the JSON Schema of its marker.
    """

    name: str
    folder: Place
    marker_name: str
    format: str
    hint: str = "use another place"
    file_folders: tuple[str, ...] = ()
    entries: EntryTable | None = None
    schema: Path | None = None

    @property
    def marker(self) -> Place:
        """The file that is written last."""
        return self.folder / self.marker_name

    @property
    def work(self) -> Place:
        """The folder of the run that is at work: lease, plan, staging."""
        return self.folder / WORK_FOLDER

    @property
    def plan(self) -> Place:
        """The file that says what an unfinished run was about to do."""
        return self.work / PLAN_FILE

    @property
    def discard(self) -> Place:
        """While this file is there, all that lies in the folder is to be deleted."""
        return self.work / "discard"

    def kept_marker(self, fingerprint: str) -> Place:
        """Where an earlier marker of this fingerprint is kept."""
        return self.folder / GENERATIONS_FOLDER / f"{fingerprint}.json"

    @property
    def command(self) -> str:
        """The command that makes this stage, without its options."""
        above = self.folder.parent
        if self.name in ("ingest", "normalize"):
            return f"ringslice {self.name} {'SOURCE ' if self.name == 'ingest' else ''}{above}"
        root = above.parent if above.name in STAGE_FOLDERS else "ROOT"
        return f"ringslice {self.name} {root} --name {self.folder.name}"

    def read_marker(self) -> dict[str, Any]:
        """The marker of this finished stage.

        Raises UsageError if the stage is not finished, or was written by another version of ringslice, DataError if
        the marker was damaged.
        """
        return self.read_generation().marker

    def read_generation(self) -> Generation:
        """The current marker with its fingerprint. Raises as `read_marker` does."""
        if not self.marker.exists():
            raise UsageError(f"{self.folder} has no finished {self.name} (no {self.marker_name}); run: {self.command}")
        return self._checked(self.marker, self._read(self.marker))

    def find_generation(self, fingerprint: str) -> Generation | None:
        """The generation with this fingerprint, the current or an earlier one; None if there is none.

        Raises UsageError if it was written by another version of ringslice, DataError if it was damaged.
        """
        is_name = FINGERPRINT.fullmatch(fingerprint) is not None  # what a manifest says may be anything
        for place in (self.marker, *([self.kept_marker(fingerprint)] if is_name else ())):
            if place.exists():
                found = self._read(place)
                if found.fingerprint == fingerprint:
                    return self._checked(place, found)
        return None

    def earlier_generations(self) -> Iterator[Generation]:
        """The earlier generations, by fingerprint; other files beside them do not count.

        Raises UsageError if one was written by another version of ringslice, DataError if it was damaged.
        """
        for info in (self.folder / GENERATIONS_FOLDER).children():
            name, _, ending = info.base_name.partition(".")
            if ending == "json" and FINGERPRINT.fullmatch(name):
                place = self.kept_marker(name)
                yield self._checked(place, self._read(place))

    def _read(self, place: Place) -> Generation:
        data = place.read_bytes()
        return Generation(place.parse_json(data), fingerprint_of(data), self.folder, self.entries)

    def find_obsolete(self, is_kept: Callable[[Generation], bool]) -> tuple[list[Generation], list[Place]]:
        """The earlier generations of this finished stage that are not kept, and what to delete, in this order: their
        markers, then the files that no generation which stays names.
        """
        kept, gone = [self.read_generation()], list[Generation]()
        for each in self.earlier_generations():
            (kept if is_kept(each) else gone).append(each)
        markers = [self.kept_marker(each.fingerprint) for each in gone]
        named = {name for generation in kept for name in self._named_files(generation)}
        folders = (*self.file_folders, TABLES_FOLDER)
        files = (f"{below}/{info.base_name}" for below in folders for info in (self.folder / below).children())
        return gone, [*markers, *(self.folder / name for name in files if name not in named)]

    def _named_files(self, generation: Generation) -> Iterator[str]:
        """The files in `file_folders` and `TABLES_FOLDER` that a generation needs, as paths below the stage's."""
        if self.entries is None:
            return
        for entry in generation.entries:
            yield from self.entries.files(entry)
        for table in (generation.marker[self.entries.name], generation.marker["removed"]):
            if table is not None:
                yield table["file"]

    def _checked(self, place: Place, found: Generation) -> Generation:
        if found.marker.get("format") != self.format:
            options = {"verify": "", "shard": " --overwrite, which assigns its splits again"}
            raise UsageError(
                f"{place} has format {found.marker.get('format')!r}, this version reads {self.format!r}; make it again"
                f" with: {self.command}{options.get(self.name, ' --overwrite')} (or use the ringslice that wrote it)"
            )
        if self.entries is not None:  # others have a checksum
            self.require_shape(found.marker, place)
        return found

    def require_shape(self, marker: dict[str, Any], place: Place) -> None:
        """Raise DataError if ``marker``, that of the file ``place``, has not the fields and types of `schema`."""
        if self.schema and (fault := schema_fault(marker, json.loads(self.schema.read_text()))):
            raise DataError(f"{place} was edited or damaged: {fault}; put the original back")

    def fingerprint(self) -> str:
        """SHA-256 of the marker: what the next stage records as its input."""
        return self.marker.sha256()

    def require_generation(self, fingerprint: str) -> None:
        """Raise EnvironmentFailure if there is no generation of this fingerprint any more."""
        if self.find_generation(fingerprint) is None:
            raise EnvironmentFailure(f"another run has replaced {self.marker} meanwhile; run again")

    def read_run(self) -> dict[str, Any]:
        """What is known of the run that made this stage; empty if nothing is, or the file was edited or damaged."""
        place = self.folder / RUN_FILE
        try:
            found = place.read_json()
            datetime.fromisoformat(found.get("finished") or "0001-01-01")
        except (FileNotFoundError, DataError, TypeError, ValueError):
            return {}
        return {} if schema_fault(found, _RUN_SCHEMA) else found

    def read_plan(self) -> dict[str, Any] | None:
        """The plan of the run that has begun and not finished; None if there is none, or it has just ended."""
        try:
            return self.plan.read_json() if self.plan.exists() else None
        except FileNotFoundError:
            return None

    def read_identity(self) -> dict[str, Any] | None:
        """The configuration and input that `read_plan` has. Raises EnvironmentFailure if another version wrote it."""
        if (plan := self.read_plan()) is None:
            return None
        identity = plan.get("identity")
        if not isinstance(identity, dict) or not {"config", "input"} <= identity.keys():
            raise EnvironmentFailure(f"{self.plan} is not a plan of this version; remove its folder")
        return identity

    def task_folders(self) -> list[Place]:
        """Folders of tasks, of earlier runs too."""
        names = [info.base_name for info in self.work.children()]
        return [self.work / name for name in names if name.startswith(TASKS)]

    def refuse_another(self, marker: dict[str, Any], identity: dict[str, Any]) -> None:
        """Raise UsageError if ``marker`` differs from ``identity``."""
        if what := difference(marker, identity):
            raise UsageError(
                f"{self.folder} already has another {self.name} ({what}); {self.hint}, or --overwrite to replace it"
            )

    def begin(self, identity: dict[str, Any], *, overwrite: bool = False) -> Run | None:
        """Lease the folder and prepare it for a run whose ``config`` and ``input`` are those of ``identity``; None,
        and no lease, if the marker of this identity is there.

        What an unfinished run of the same plan published is kept unless ``overwrite`` is set, all else is deleted.

        Raises UsageError if a finished stage of another identity is there and ``overwrite`` is not set, or files that
        no stage wrote; BusyError if another run is at work on the stage.
        """
        return self.renew(identity, None, changes=frozenset(), overwrite=overwrite)

    def renew(
        self,
        identity: dict[str, Any],
        parent: str | None,
        listing: str | None = None,
        *,
        force: bool = False,
        changes: frozenset[str] = frozenset({"input"}),
        overwrite: bool = False,
    ) -> Run | None:
        """As `begin`, but a marker that differs only in ``changes`` is renewed: it, and all that it names, stays for
        readers until `Run.commit`, and is an earlier generation then.

        ``parent`` is the fingerprint of the marker that the renewal was planned from, None if there was none or it is
        overwritten. ``listing`` is what plans must agree on too, though it is not part of the identity. With ``force``
        there is something to renew though the identity is the same.

        Raises EnvironmentFailure if another run has written a marker meanwhile, else as `begin` does.
        """

        def is_done() -> bool:
            if overwrite:
                return False
            current = self.read_generation() if self.marker.exists() else None
            if current is not None:
                differing = {key for key in identity if current.marker.get(key) != identity[key]}
                if differing - changes:
                    self.refuse_another(current.marker, identity)
                if not (differing or force):
                    return True
            if (current and current.fingerprint) != parent:
                raise EnvironmentFailure(f"another run has written {self.marker} meanwhile; run again")
            return False

        return self._begin(Mode.NEW if overwrite else Mode.RENEWAL, self._plan_of(identity, listing, parent), is_done)

    def reopen(self, identity: dict[str, Any]) -> Run:
        """As `begin`, but for a run that is never done already: a marker, whatever its identity, and the files beside
        it stay for readers until `Run.commit` replaces the marker.
        """
        run = self._begin(Mode.REWRITE, self._plan_of(identity), lambda: False)
        assert run is not None
        return run

    def _begin(self, mode: Mode, plan: dict[str, Any], is_done: Callable[[], bool]) -> Run | None:
        if is_done() and not self.work.exists():
            return None
        if not self.marker.exists():
            self._refuse_foreign_files()
        run = self._take_lease(mode)
        try:
            if is_done():  # only now nobody else can be replacing it
                run.abandon()
                return None
            run.prepare(plan, can_resume=mode is not Mode.NEW)
        except BaseException:
            run.release()
            raise
        return run

    def _plan_of(
        self, identity: dict[str, Any], listing: str | None = None, parent: str | None = None
    ) -> dict[str, Any]:
        return {"stage": self.name, "identity": identity, "listing": listing, "parent": parent}

    def _take_lease(self, mode: Mode) -> Run:
        lease = Lease.take(self.work, f"ringslice {self.name} on {self.folder}")
        return Run(self, lease, mode if self.marker.exists() else Mode.NEW)

    @contextmanager
    def lease(self) -> Iterator[Run]:
        """Hold the stage's lease while the block runs, for work that is not a run of the stage.

        Raises BusyError if another run is at work on it.
        """
        with self._take_lease(Mode.REWRITE) as run:
            yield run
            if not (self.plan.exists() or self.discard.exists()):
                run.abandon()

    def _refuse_foreign_files(self) -> None:
        """A run publishes its plan before any file, and its marker before the plan goes."""
        has_files = any(info.base_name != WORK_FOLDER for info in self.folder.children())
        plan = self.read_plan()
        is_own = plan is not None and plan.get("stage", self.name) == self.name
        if has_files and not (is_own or self.discard.exists() or self.marker.exists()):
            raise UsageError(
                f"{self.folder} has files but neither {self.marker_name} nor a plan of {self.name}; choose another"
                " place, or move them away"
            )


def require(condition: bool, message: str) -> None:
    """Raise DataError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise DataError(message)
