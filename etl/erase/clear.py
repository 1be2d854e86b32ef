"""What is cleared below a root: generations that name packs or parts of erased images, files that no marker names, and
what unfinished runs left."""

from collections.abc import Iterator

from etl.normalized.erased import remember_generations
from etl.normalized.parts import PART_FOLDERS, part_files
from etl.raw.packs import PACK_FOLDERS, pack_files
from etl.stages.layout import (
    VERIFIED_FOLDER,
    normalized_stage,
    raw_stage,
    slices_stage_in,
    verification_stage_in,
)
from etl.stages.marker import GENERATIONS_FOLDER, Generation, Renewal, kept_generations, unnamed_files
from etl.stages.stage import Stage
from etl.storage.place import Place

_RAW, _NORMALIZED = Renewal(None, PACK_FOLDERS, pack_files), Renewal(None, PART_FOLDERS, part_files)


def require_idle(root: Place) -> None:
    """Raise BusyError where a run is at work below ``root``; what finished runs left of their work is tidied up."""
    for stage in _stages(root):
        if stage.work.exists():
            with stage.held():
                pass


def _stages(root: Place) -> Iterator[Stage]:
    yield raw_stage(root)
    yield normalized_stage(root)
    yield from _slices(root)
    for name in _folders(root / VERIFIED_FOLDER):
        yield verification_stage_in(root / VERIFIED_FOLDER / name)


def _slices(root: Place) -> Iterator[Stage]:
    for name in _folders(root / "slices"):
        yield slices_stage_in(root / "slices" / name)


def _folders(place: Place) -> list[str]:
    return [info.base_name for info in place.children() if not info.is_file]


def clear_raw(held: Stage, packs: frozenset[str]) -> int:
    """Clear ``raw``, whose claim is held, of all that names these packs; returns how many generations are gone."""
    held.discard_unfinished()
    kept = list(kept_generations(held.folder))
    gone = [each for each in kept if any(pack["name"] in packs for pack in each.marker["packs"])]
    return _clear(held, _RAW, kept, gone)


def clear_normalized(root: Place, parts: frozenset[str]) -> int:
    """Clear ``normalized`` of all that names these parts; returns how many generations are gone.

    Raises BusyError where another run is at work on it.
    """
    stage = normalized_stage(root)
    if not (stage.marker.exists() or stage.work.exists()):
        return 0
    with stage.held():
        stage.discard_unfinished()
        if not stage.marker.exists():
            stage.folder.delete()
            return 0
        kept = list(kept_generations(stage.folder))
        gone = [each for each in kept if any(part["part"] in parts for part in each.marker["parts"])]
        remember_generations(root, stage.attempts, gone)
        return _clear(stage, _NORMALIZED, kept, gone)


def _clear(held: Stage, files: Renewal, kept: list[Generation], gone: list[Generation]) -> int:
    """Delete generations first, then what no marker names: whoever is killed in here left none that names no file."""
    held.delete_checked(held.folder / GENERATIONS_FOLDER / f"{each.fingerprint}.json" for each in gone)
    stay = [held.read_marker(), *(each.marker for each in kept if each not in gone)]
    held.delete_checked(unnamed_files(held.folder, files, stay))
    return len(gone)


def clear_unfinished_slices(root: Place) -> int:
    """Delete slices that were begun from normalised images that are gone now; returns how many sets these are.

    Raises BusyError where another run is at work on one.
    """
    normalized, cleared = normalized_stage(root), 0
    for stage in _slices(root):
        if stage.marker.exists() or not stage.work.exists():
            continue
        with stage.held():
            planned = stage.plan.read_json()["identity"]["input"] if stage.plan.exists() else ""
            if normalized.find_generation(planned) is None:
                stage.discard_unfinished()
                stage.folder.delete()
                cleared += 1
    return cleared
