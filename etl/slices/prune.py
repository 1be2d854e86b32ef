"""The command ``prune``: removes old runs if asked, old slices, and then what only they were made from.

Slices that one of the runs names stay, whatever their age, and so do those that are worked on. Markers go before the
files that they name, so what a prune that was killed left is no longer there for any reader; the next one removes it.

A run is removed in one atomic step, with its checkpoints: its folder is moved to the work folder of ``ROOT/runs`` and
deleted there. A prune that was killed may leave files in that folder; the next one deletes them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from etl.errors import DataError
from etl.progress import log
from etl.slices.history import ended_at, finished_at, finished_slices, lineage_ends, read_finished
from etl.stages.champion import read_champions
from etl.stages.layout import (
    folders,
    is_folder_name,
    normalized_stage,
    raw_stage,
    require_root,
    slices_below,
    slices_stage_in,
    verification_stage,
)
from etl.stages.lease import BusyError, Lease, lease_folder, require_free
from etl.stages.names import RESULT_FILE, RUN_FILE, RUN_SLICES_FILE, VERIFIED_FOLDER, WORK_FOLDER
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import withdraw
from etl.storage.place import Place

KEPT_CHAMPIONS = 3  # before the one in use


@dataclass(frozen=True)
class KeptRuns:
    """Of the runs whose name begins with ``prefix`` the ``number`` newest stay; all others stay, too."""

    number: int
    prefix: str


def run_names(root: Place) -> list[str]:
    """The names of the folders of runs, sorted."""
    return [name for name in folders(root / "runs") if is_folder_name(name)]


def choose_runs(root: Place, kept: KeptRuns) -> dict[str, str]:
    """The names of the runs that stay, newest first, each with the reason."""
    promoted = [each["run"] for each in read_champions(root)[: 1 + KEPT_CHAMPIONS]]
    stays, number = dict[str, str](), 0
    for name in sorted(run_names(root), key=lambda name: _trained_at(root / "runs" / name), reverse=True):
        run = root / "runs" / name
        if not name.startswith(kept.prefix):
            stays[name] = f"its name does not begin with {kept.prefix!r}"
            continue
        if name in promoted:
            stays[name] = "the champion" if name == promoted[0] else "a champion before this one"
        elif number < kept.number:
            stays[name] = "among the newest"
        elif _is_being_trained(run):
            stays[name] = "being trained"
        number += 1
    return stays


def _trained_at(run: Place) -> tuple[str, str]:
    """When a run ended, as its run.json has it; else when its folder was last changed. And its path, to sort by."""
    changed = [info.mtime for info in (run.info(), *run.children()) if info.mtime is not None]
    return ended_at(_read_record(run / RUN_FILE), max(changed, default=None), run)


def _is_being_trained(run: Place) -> bool:
    try:
        require_free(run / WORK_FOLDER, str(run))
    except BusyError:
        return True
    return False


def remove_runs(root: Place, names: Sequence[str], kept: KeptRuns) -> list[str]:
    """Remove runs, and what a prune before this one left; returns the names of those removed.

    Those stay that are trained, were promoted or are among the newest by now. Raises BusyError if another prune or a
    promote is at work.
    """
    runs = root / "runs"
    if not names and not (runs / WORK_FOLDER).exists():
        return []
    with lease_folder(runs / WORK_FOLDER, f"ringslice prune on {runs}") as lease:
        ended = {name: _trained_at(runs / name) for name in names}
        stays = choose_runs(root, kept)
        for name in (name for name in names if name in stays):
            log("prune", f"{runs / name} stays as it is: {stays[name]}")
        return [name for name in names if name not in stays and _remove(runs / name, ended[name], lease.staging)]


def _remove(run: Place, ended: tuple[str, str], staging: Place) -> bool:
    try:
        if _trained_at(run) != ended:
            raise BusyError("it was trained meanwhile")
        lease = Lease.take(run / WORK_FOLDER, f"training of {run}")
    except BusyError as busy:
        log("prune", f"{run} stays as it is: {busy}")
        return False
    try:
        withdraw(run, staging)
    finally:
        lease.stop_renewing()
    return True


def _read_record(file: Place) -> dict[str, Any]:
    """The JSON object in a file of a run; empty if there is none, or its trainer has just removed it."""
    try:
        return file.read_json() if file.exists() else {}
    except FileNotFoundError:
        return {}
    except DataError as error:
        raise DataError(f"{error}. Remove the file or the run, and run prune again") from None


def prune(root: Place, keep: int, dry_run: bool = False, runs: KeptRuns | None = None) -> Summary:
    """Remove the runs that do not stay by ``runs`` (None: all do); then the finished slices that no run names, except
    the ``keep`` newest; then the generations of ``normalized`` and ``raw`` that nothing which stays was made from.

    With ``dry_run`` nothing is removed, but the summary is the same. Raises UsageError if there is no root, DataError
    if a file of a run that stays is damaged; nothing is removed then.
    """
    require_root(root)
    pruner = _Pruner(root, keep, dry_run)
    kept_runs = choose_runs(root, runs) if runs else {}
    if runs:
        gone = [name for name in run_names(root) if name not in kept_runs]
        choose_slices(root, keep, gone)  # what is damaged is found before anything is removed
        pruner.remove_runs(gone, runs)
    finished = list(finished_slices(root))  # those that end later stay
    stays = choose_slices(root, keep, pruner.runs)
    for stage in (each for each in finished if each.folder.name not in stays):
        pruner.remove_slices(stage)
    pruner.remove_leftovers()
    inputs = pruner.remove_generations(normalized_stage(root), pruner.inputs_of_slices())
    pruner.remove_generations(raw_stage(root), inputs)
    kept = ({"kept_runs": kept_runs} if runs else {}) | {"kept_slices": stays}
    counted = ("runs", "slices", "generations", "files", "bytes")
    removed = {f"removed_{name}": getattr(pruner, name) for name in counted}
    return Summary("prune", str(root), False, kept | removed | {"dry_run": dry_run})


def choose_slices(root: Place, keep: int, removed_runs: Collection[str] = ()) -> dict[str, str]:
    """The names of the finished slices that stay, newest first, each with the reason."""
    sources = {identity["config"].get("splits_from") for identity in _begun_slices(root)}
    finished = sorted(read_finished(root), key=lambda slices: finished_at(slices.stage), reverse=True)
    ends = {slices.folder for slices in lineage_ends(finished)}
    runs = dict(_slices_of_runs(root, [name for name in run_names(root) if name not in removed_runs]))
    stays = {}
    for number, slices in enumerate(finished):
        name, fingerprint = slices.folder.name, slices.fingerprint
        if number < keep:
            stays[name] = "among the newest"
        elif slices.folder in ends:
            stays[name] = "end of the lineage: the next slices take their splits from it"
        elif fingerprint in runs or None in runs:
            stays[name] = f"named by {runs.get(fingerprint) or runs[None]}"
        elif fingerprint in sources or slices.stage.plan.exists():
            stays[name] = "worked on"
    return stays


def _slices_of_runs(root: Place, names: Iterable[str]) -> Iterator[tuple[str | None, str]]:
    """The fingerprints of slices that runs name, with the run; None for one that has begun and names none yet."""
    for name in names:
        run = root / "runs" / name
        files = [run / info.base_name for info in run.children() if info.is_file and _is_record(info.base_name)]
        files += [run / "checkpoints" / each / "checkpoint.json" for each in folders(run / "checkpoints")]
        files += [run / WORK_FOLDER / RUN_SLICES_FILE]
        named = {record["slices"] for record in map(_read_record, files) if isinstance(record.get("slices"), str)}
        if not named and (run / WORK_FOLDER).exists():
            yield None, f"{run}, perhaps"
        for fingerprint in named:
            yield fingerprint, str(run)


def _is_record(name: str) -> bool:
    """True if a trainer or an evaluation wrote the file of this name; people may keep others beside them."""
    return name in (RUN_FILE, RESULT_FILE) or (name.startswith("evaluation-") and name.endswith(".json"))


def _begun_slices(root: Place) -> Iterator[dict[str, Any]]:
    """The identities of slices that have begun and not finished."""
    return filter(None, (stage.read_identity() for stage in slices_below(root)))


@dataclass
class _Pruner:
    """Removes what is below ``root``, except the ``keep`` newest slices, and counts it; runs and slices by name, with
    their bytes.
    """

    root: Place
    keep: int
    dry_run: bool
    runs: dict[str, int] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    generations: int = 0
    files: int = 0
    bytes: int = 0

    def remove_runs(self, names: Sequence[str], kept: KeptRuns) -> None:
        """Remove runs, each in one atomic step."""
        sizes = {name: _sizes(self.root / "runs" / name) for name in names}
        gone = names if self.dry_run else remove_runs(self.root, names, kept)
        self.runs = {name: self._count_freed(sizes[name]) for name in gone}

    def remove_slices(self, stage: Stage) -> None:
        """Remove finished slices, what their verification left, and their report if it is in the root."""
        name = stage.folder.name
        verification = verification_stage(self.root, name)
        stages = (verification, stage) if verification.folder.exists() else (stage,)
        freed = self._delete(*stages, stays=lambda: choose_slices(self.root, self.keep, self.runs).get(name))
        if freed is None:
            return
        report = self.root / f"{name}-report.html"
        self.slices[name] = freed + (self._count_freed(_sizes(report)) if report.exists() else 0)
        if not self.dry_run:
            report.delete()

    def remove_leftovers(self) -> None:
        """Remove slices whose marker is gone already, and verifications of slices that are gone."""
        for stage in slices_below(self.root):
            if stage.work.exists() and not _begun(stage):
                self._delete(stage, stays=partial(_begun, stage))
        for name in folders(self.root / VERIFIED_FOLDER):
            slices, verification = slices_stage_in(self.root / "slices" / name), verification_stage(self.root, name)
            is_ours = verification.marker.exists() or verification.work.exists()
            if is_ours and not _begun(slices) and not slices.work.exists():
                self._delete(verification, stays=partial(_begun, slices))

    def inputs_of_slices(self) -> set[str]:
        """The fingerprints of the ``normalized`` that the slices which stay, or are worked on, were made from."""
        begun = [identity["input"] for identity in _begun_slices(self.root)]  # first: they may end meanwhile
        stay = [slices for slices in read_finished(self.root) if slices.folder.name not in self.slices]
        return {*begun, *(slices.marker["input"] for slices in stay)}

    def remove_generations(self, stage: Stage, named: set[str]) -> set[str]:
        """Remove the generations of ``stage`` that are neither current nor ``named``, and the files of no other.

        Returns the inputs of those that stay.
        """
        identity = stage.read_identity()
        planned = {identity["input"]} if identity else set()
        if not stage.marker.exists():
            return planned
        gone = set[str]()

        def find() -> list[Place]:
            if stage.plan.exists():  # no marker names what it has made so far
                log("prune", f"{stage.folder} stays as it is: {stage.name} was begun and not finished; run it again")
                return []
            obsolete, places = stage.find_obsolete(lambda each: each.fingerprint in named)
            gone.update(each.fingerprint for each in obsolete)
            return places

        self._delete(stage, find=find)
        self.generations += len(gone)
        current = stage.read_marker()  # first: it may become an earlier one meanwhile
        stay = [each.marker for each in stage.earlier_generations() if each.fingerprint not in gone]
        return planned | {marker["input"] for marker in [current, *stay]}

    def _delete(
        self,
        *stages: Stage,
        find: Callable[[], list[Place]] | None = None,
        stays: Callable[[], str | None] = lambda: None,
    ) -> int | None:
        """Delete these stages, or only what ``find`` gives of each, the last one first; returns the bytes.

        If another command is at work on one of them, or ``stays``, asked under the leases, gives a reason to keep them,
        nothing is deleted, and None is returned.
        """
        freed = 0
        try:
            with ExitStack() as stack:
                runs = [None if self.dry_run else stack.enter_context(stage.lease()) for stage in stages]
                if not self.dry_run and (reason := stays()):
                    log("prune", f"{stages[-1].folder} stays as it is: {reason}")
                    return None
                for stage, run in zip(reversed(stages), reversed(runs), strict=True):
                    places = find() if find else _all_files(stage)
                    freed += self._count_freed(size for place in places for size in _sizes(place))
                    if run is not None:
                        if find is None:
                            run.begin_discard()
                        run.delete(places)
                        if find is None:
                            stage.folder.delete()
        except BusyError as busy:
            log("prune", f"{stages[-1].folder} stays as it is: {busy}")
            return None
        return freed

    def _count_freed(self, sizes: Iterable[int]) -> int:
        """Count files of these ``sizes`` as freed; returns their bytes."""
        listed = list(sizes)
        self.files += len(listed)
        self.bytes += sum(listed)
        return sum(listed)


def _begun(stage: Stage) -> str | None:
    """Why a stage is not a leftover: it is finished, or can go on. None if it is one."""
    return "it was begun" if stage.plan.exists() or stage.marker.exists() else None


def _all_files(stage: Stage) -> list[Place]:
    names = [info.base_name for info in stage.folder.children()]
    return [stage.marker, *(stage.folder / name for name in names if name not in (WORK_FOLDER, stage.marker_name))]


def _sizes(place: Place) -> list[int]:
    """The bytes of each file at this place."""
    info = place.info()
    files = [info] if info.is_file else [each for each in place.children(recursive=True) if each.is_file]
    return [each.size for each in files]
