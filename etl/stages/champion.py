"""``ROOT/models/champion.json``: the run and checkpoint in use, and those before; ``ringslice promote`` writes it.

Who writes it holds the lease of ``ROOT/runs``, under which ``ringslice prune`` removes runs: no run is promoted and
removed at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.stages.lease import lease_folder
from etl.stages.names import WORK_FOLDER
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place, has_checksum, json_bytes, with_checksum

CHAMPION = "champion"  # in place of a run's name: the run in use
FORMAT = "ringslice.champion/1"

Promoted = dict[str, Any]  # run, checkpoint, its SHA-256, its slices, and the comparison that it was promoted by


def champion_file(root: Place) -> Place:
    """The file that records the champion; it may be missing."""
    return root / "models" / "champion.json"


def read_champions(root: Place) -> list[Promoted]:
    """The champion and those before it, newest first; empty if there is none yet.

    Raises DataError if the file was edited or damaged.
    """
    place = champion_file(root)
    if not place.exists():
        return []
    record = place.read_json()
    if record.get("format") != FORMAT or not has_checksum(record):
        raise DataError(f"{place} is damaged, or of another version; put it back, or remove it to start again")
    return [record["champion"], *record["history"]]


def read_champion(root: Place) -> Promoted:
    """Raises UsageError if there is none."""
    if champions := read_champions(root):
        return champions[0]
    raise UsageError(f"{root} has no champion; make one with: ringslice promote {root} RUN")


def publish_champions(
    root: Place,
    before: Sequence[Promoted],
    champions: Sequence[Promoted],
    check: Callable[[], object] = lambda: None,
) -> None:
    """Replace the file, in one atomic step, by one with these ``champions``, newest first; ``before`` are those read.

    ``check`` raises an error if the first of them cannot be promoted any more; no run is removed meanwhile.

    Raises EnvironmentFailure if another process changed the file meanwhile, or is removing runs.
    """
    place = champion_file(root)
    with lease_folder(root / "runs" / WORK_FOLDER, f"ringslice promote on {place}") as lease:
        check()
        is_unchanged = read_champions(root) == list(before)
        if is_unchanged:
            content = {"format": FORMAT, "champion": champions[0], "history": list(champions[1:])}
            replace_bytes(place, lease.staging, json_bytes(with_checksum(content)))
    if not is_unchanged:
        raise EnvironmentFailure(f"{place} was changed by another process meanwhile; run again")
