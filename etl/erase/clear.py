"""What is deleted below a root: generations that name packs or parts of erased images, files that no marker names, and
what unfinished runs left."""

from etl.normalized.erased import record_generations
from etl.stages.layout import folders, normalized_stage, raw_stage, slices_below, verification_stage
from etl.stages.names import VERIFIED_FOLDER
from etl.stages.run import Run
from etl.storage.place import Place


def require_idle(root: Place) -> None:
    """Raise BusyError if a run is at work below ``root``; what finished runs left of their work is deleted."""
    verified = (verification_stage(root, name) for name in folders(root / VERIFIED_FOLDER))
    for stage in (raw_stage(root), normalized_stage(root), *slices_below(root), *verified):
        if stage.work.exists():
            with stage.lease():
                pass


def clear_raw(run: Run, packs: frozenset[str]) -> int:
    """Delete all of ``raw`` that names these packs; returns how many generations are gone."""
    run.discard_unfinished()
    gone, places = run.stage.find_obsolete(lambda each: packs.isdisjoint(each.entries.column("name")))
    run.delete(places)
    return len(gone)


def clear_normalized(root: Place, parts: frozenset[str]) -> int:
    """Delete all of ``normalized`` that names these parts; returns how many generations are gone.

    Raises BusyError if another run is at work on it.
    """
    stage = normalized_stage(root)
    if not (stage.marker.exists() or stage.work.exists()):
        return 0
    with stage.lease() as run:
        run.discard_unfinished()
        if not stage.marker.exists():
            stage.folder.delete()
            return 0
        gone, places = stage.find_obsolete(lambda each: parts.isdisjoint(each.entries.column("part")))
        record_generations(root, run.staging, gone)
        run.delete(places)
        return len(gone)


def clear_unfinished_slices(root: Place) -> int:
    """Delete slices that were begun from normalised images that are gone now; returns how many sets these are.

    Raises BusyError if another run is at work on one.
    """
    normalized, cleared = normalized_stage(root), 0
    for stage in slices_below(root):
        if stage.marker.exists() or not stage.work.exists():
            continue
        with stage.lease() as run:
            planned = stage.plan.read_json()["identity"]["input"] if stage.plan.exists() else ""
            if normalized.find_generation(planned) is None:
                run.discard_unfinished()
                stage.folder.delete()
                cleared += 1
    return cleared
