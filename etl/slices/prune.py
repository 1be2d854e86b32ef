"""The command ``prune``: removes old runs if asked, old slices, and then what only they were made from.

Slices that one of the runs names stay, whatever their age, and so do those that are worked on. Markers go before the
files that they name, so what a prune that was killed left is no longer there for any reader; the next one removes it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from etl.errors import EnvironmentFailure, UsageError
from etl.normalized.parts import PART_FOLDERS, part_files
from etl.progress import log
from etl.raw.packs import PACK_FOLDERS, pack_files
from etl.slices.lineage import finished_at, finished_slices, lineage_ends
from etl.slices.prune_runs import KeptRuns, choose_runs, remove_runs, run_names
from etl.stages.layout import (
    VERIFIED_FOLDER,
    is_root,
    normalized_stage,
    raw_stage,
    slices_stage_in,
    verification_stage,
)
from etl.stages.lease import BusyError
from etl.stages.marker import GENERATIONS_FOLDER, Renewal, kept_generations, unnamed_files
from etl.stages.run_files import RESULT_FILE, RUN_SLICES_FILE
from etl.stages.stage import RUN_FILE, WORK_FOLDER, Stage
from etl.stages.summary import Summary
from etl.storage.place import Place


@dataclass
class Freed:
    """What was removed, or would be; runs and slices by name, with their bytes."""

    runs: dict[str, int] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    generations: int = 0
    files: int = 0
    bytes: int = 0


def prune(root: Place, keep: int, dry_run: bool = False, runs: KeptRuns | None = None) -> Summary:
    """Remove the runs that do not stay by ``runs`` (None: all do); then the finished slices that no run names, except
    the ``keep`` newest; then the generations of ``normalized`` and ``raw`` that nothing which stays was made from.

    With ``dry_run`` nothing is removed, but the summary is the same. Raises UsageError if there is no root.
    """
    if not is_root(root):
        raise UsageError(f"{root} is no dataset's root (no raw, no slices); give ROOT")
    pruner = _Pruner(root, dry_run)
    kept_runs = choose_runs(root, runs) if runs else {}
    if runs:
        pruner.remove_runs([name for name in run_names(root) if name not in kept_runs])
    stays = choose_slices(root, keep, pruner.freed.runs)
    for stage in finished_slices(root):
        if stage.folder.name not in stays:
            pruner.remove_slices(stage)
    pruner.remove_leftovers()
    inputs = pruner.inputs_of_slices()
    inputs = pruner.remove_generations(normalized_stage(root), Renewal(None, PART_FOLDERS, part_files), inputs)
    pruner.remove_generations(raw_stage(root), Renewal(None, PACK_FOLDERS, pack_files), inputs)
    kept = ({"kept_runs": kept_runs} if runs else {}) | {"kept_slices": stays}
    removed = {f"removed_{name}": value for name, value in asdict(pruner.freed).items()}
    return Summary("prune", str(root), False, kept | removed | {"dry_run": dry_run})


def choose_slices(root: Place, keep: int, removed_runs: Collection[str] = ()) -> dict[str, str]:
    """The names of the finished slices that stay, newest first, each with the reason."""
    runs = dict(_slices_of_runs(root, [name for name in run_names(root) if name not in removed_runs]))
    sources = {plan["identity"]["config"].get("splits_from") for plan in _unfinished_plans(root)}
    ends = {stage.folder for stage in lineage_ends(root)}
    stays = {}
    for number, stage in enumerate(sorted(finished_slices(root), key=finished_at, reverse=True)):
        name, fingerprint = stage.folder.name, stage.fingerprint()
        if number < keep:
            stays[name] = "among the newest"
        elif stage.folder in ends:
            stays[name] = "end of the lineage: the next slices take their splits from it"
        elif fingerprint in runs or None in runs:
            stays[name] = f"named by {runs.get(fingerprint) or runs[None]}"
        elif fingerprint in sources or stage.plan.exists():
            stays[name] = "worked on"
    return stays


def _slices_of_runs(root: Place, names: Iterable[str]) -> Iterator[tuple[str | None, str]]:
    """The fingerprints of slices that runs name, with the run; None from one that has begun and names none yet."""
    for name in names:
        run = root / "runs" / name
        files = [run / info.base_name for info in run.children() if info.is_file and _is_ours(info.base_name)]
        files += [run / "checkpoints" / each / "checkpoint.json" for each in _folders(run / "checkpoints")]
        files += [run / WORK_FOLDER / RUN_SLICES_FILE]
        named = {record["slices"] for record in map(_read_if_there, files) if isinstance(record.get("slices"), str)}
        if not named and (run / WORK_FOLDER).exists():
            yield None, f"{run}, perhaps"
        for fingerprint in named:
            yield fingerprint, str(run)


def _is_ours(name: str) -> bool:
    """Whether a trainer or an evaluation wrote the file of this name; people may keep others beside them."""
    return name in (RUN_FILE, RESULT_FILE) or (name.startswith("evaluation-") and name.endswith(".json"))


def _read_if_there(file: Place) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none, or its trainer has just removed it."""
    try:
        return file.read_json() if file.exists() else {}
    except FileNotFoundError:
        return {}


def _unfinished_plans(root: Place) -> Iterator[dict[str, Any]]:
    for name in _folders(root / "slices"):
        plan = slices_stage_in(root / "slices" / name).plan
        if plan.exists():
            told = plan.read_json()
            if not {"config", "input"} <= dict(told.get("identity", {})).keys():
                raise EnvironmentFailure(f"{plan} is no plan of this version; remove the folder that it lies in")
            yield told


def _folders(place: Place) -> list[str]:
    return [info.base_name for info in place.children() if not info.is_file]


@dataclass
class _Pruner:
    root: Place
    dry_run: bool
    freed: Freed = field(default_factory=Freed)

    def remove_runs(self, names: list[str]) -> None:
        """Remove runs, each in one atomic step."""
        sizes = {name: self._count(self.root / "runs" / name) for name in names}
        gone = names if self.dry_run else remove_runs(self.root, names)
        self.freed.runs = {name: self._free(sizes[name]) for name in gone}

    def remove_slices(self, stage: Stage) -> None:
        """Remove finished slices, and what their verification left."""
        verification = verification_stage(self.root, stage.folder.name)
        verified = verification.folder.exists()

        def remove() -> None:
            before = self.freed.bytes
            self._remove_folder(stage)
            if verified:
                self._remove_folder(verification)
            self.freed.slices[stage.folder.name] = self.freed.bytes - before

        if verified:
            self._claiming(verification, lambda: self._claiming(stage, remove))
        else:
            self._claiming(stage, remove)

    def remove_leftovers(self) -> None:
        """Remove slices whose marker is gone already, and verifications of slices that are gone."""
        left = [slices_stage_in(self.root / "slices" / name) for name in _folders(self.root / "slices")]
        for stage in left:
            if stage.work.exists() and not stage.plan.exists() and not stage.marker.exists():
                self._claiming(stage, partial(self._remove_folder, stage))
        for name in _folders(self.root / VERIFIED_FOLDER):
            slices, stage = slices_stage_in(self.root / "slices" / name), verification_stage(self.root, name)
            if not (slices.marker.exists() or slices.work.exists()):
                self._claiming(stage, partial(self._remove_folder, stage))

    def inputs_of_slices(self) -> set[str]:
        """The fingerprints of the ``normalized`` that the slices which stay, or are worked on, were made from."""
        stay = [stage for stage in finished_slices(self.root) if stage.folder.name not in self.freed.slices]
        plans = [plan["identity"]["input"] for plan in _unfinished_plans(self.root)]
        return {*plans, *(stage.marker.read_json()["input"] for stage in stay)}

    def remove_generations(self, stage: Stage, renewal: Renewal, named: set[str]) -> set[str]:
        """Remove the generations of ``stage`` that are neither current nor ``named``, and the files of no other.

        Returns the inputs of those that stay.
        """
        planned = {stage.plan.read_json()["identity"]["input"]} if stage.plan.exists() else set()
        if not stage.marker.exists():
            return planned
        stay: list[dict[str, Any]] | None = None

        def remove() -> None:
            nonlocal stay
            if stage.plan.exists():  # what it has made so far, no marker names
                log("prune", f"{stage.folder} stays as it is: {stage.name} was begun and not finished; run it again")
                return
            kept = list(kept_generations(stage.folder))
            stay = [stage.read_marker(), *(each.marker for each in kept if each.fingerprint in named)]
            gone = [each.fingerprint for each in kept if each.fingerprint not in named]
            self._delete(stage, [stage.folder / GENERATIONS_FOLDER / f"{each}.json" for each in gone])
            self._delete(stage, unnamed_files(stage.folder, renewal, stay))
            self.freed.generations += len(gone)

        self._claiming(stage, remove)
        if stay is None:
            stay = [stage.read_marker(), *(each.marker for each in kept_generations(stage.folder))]
        return planned | {marker["input"] for marker in stay}

    def _claiming(self, stage: Stage, remove: Callable[[], None]) -> None:
        """Remove what nobody else can be at work on meanwhile; what somebody is at work on stays."""
        if self.dry_run:
            remove()
            return
        try:
            with stage.held():
                remove()
        except BusyError as busy:
            log("prune", f"{stage.folder} stays as it is: {busy}")

    def _remove_folder(self, stage: Stage) -> None:
        names = [info.base_name for info in stage.folder.children()]
        others = [stage.folder / name for name in names if name not in (WORK_FOLDER, stage.marker_name)]
        self._delete(stage, [stage.marker, *others])
        if not self.dry_run:
            stage.folder.delete()

    def _delete(self, stage: Stage, places: Iterable[Place]) -> None:
        listed = list(places)
        for place in listed:
            self._free(self._count(place))
        if not self.dry_run:
            stage.delete_checked(listed)

    @staticmethod
    def _count(place: Place) -> list[int]:
        """The bytes of each file at this place."""
        info = place.info()
        files = [info] if info.is_file else [each for each in place.children(recursive=True) if each.is_file]
        return [each.size for each in files]

    def _free(self, sizes: list[int]) -> int:
        """Count files of these ``sizes`` as freed; returns their bytes."""
        self.freed.files += len(sizes)
        self.freed.bytes += sum(sizes)
        return sum(sizes)
