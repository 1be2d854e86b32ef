"""Training runs that ``prune`` removes: the older ones of those that a job named.

A run is removed in one atomic step, with its checkpoints: its folder is moved to the work folder of ``ROOT/runs`` and
deleted there. A prune that was killed may leave files in that folder; the next one deletes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from etl.errors import DataError
from etl.progress import log
from etl.stages.champion import read_champions
from etl.stages.layout import folders, is_folder_name
from etl.stages.lease import BusyError, Lease, leased, require_free
from etl.stages.names import RUN_FILE, WORK_FOLDER
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
    """When a run ended, as its run.json has it; else when its folder was last changed. And its name, to sort by."""
    finished = read_record(run / RUN_FILE).get("finished")
    changed = max(info.mtime for info in (run.info(), *run.children())).astimezone(UTC)
    return finished if isinstance(finished, str) else changed.isoformat(timespec="milliseconds"), run.name


def _is_being_trained(run: Place) -> bool:
    try:
        require_free(run / WORK_FOLDER, str(run))
    except BusyError:
        return True
    return False


def remove_runs(root: Place, names: Iterable[str]) -> list[str]:
    """Remove runs, and what a prune before this one left; returns the names of those removed.

    A run whose training began meanwhile stays. Raises BusyError if another prune is at work.
    """
    names, runs = list(names), root / "runs"
    if not names and not (runs / WORK_FOLDER).exists():
        return []
    with leased(runs / WORK_FOLDER, f"ringslice prune on {runs}") as lease:
        return [name for name in names if _remove(runs / name, lease.staging)]


def _remove(run: Place, staging: Place) -> bool:
    try:
        lease = Lease.take(run / WORK_FOLDER, f"training of {run}")
    except BusyError as busy:
        log("prune", f"{run} stays as it is: {busy}")
        return False
    try:
        withdraw(run, staging)
    finally:
        lease.stop_renewing()
    return True


def read_record(file: Place) -> dict[str, Any]:
    """The JSON object in a file of a run; empty if there is none, or its trainer has just removed it.

    Raises DataError if it is damaged.
    """
    try:
        return file.read_json() if file.exists() else {}
    except FileNotFoundError:
        return {}
    except DataError as error:
        raise DataError(f"{error}. Remove the file or the run, and run prune again") from None
