"""The command ``erase``: images are deleted from raw and normalized, and the slices that have them are listed.

First ``raw`` is renewed without them, then ``normalized``; then the generations that name their packs and parts are
deleted, with the files. Slices that have the images are listed until they are deleted. What was done is not done again,
so an erasure that was stopped goes on when the command is run again.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from etl.erase.images import Occurrences, find_examples, find_images, has_all_good, has_parts, repack
from etl.errors import DataError, UsageError
from etl.normalized.erased import keys_file, record_generations, record_images
from etl.partition.config import ShardConfig
from etl.progress import log
from etl.slices.history import describe_unknown, lineage_ends, read_finished, read_keys
from etl.slices.manifest import read_manifest
from etl.stages.layout import (
    erasure_stage,
    folders,
    normalized_stage,
    raw_stage,
    require_root,
    slices_below,
    slices_stage,
    verification_stage,
)
from etl.stages.names import VERIFIED_FOLDER
from etl.stages.run import Run
from etl.stages.summary import Summary
from etl.storage.place import Place
from etl.values import MAX_NAMED, name_some

RunJob = Callable[[str, Mapping[str, Any]], None]

DONE = ("rebuilt_packs", "removed_generations", "removed_unfinished_slices")  # what a summary counts


def erase(root: Place, listed: Place, run_job: RunJob, *, dry_run: bool = False) -> Summary:
    """Erase the images whose keys are ``listed``, and all with the same contents, from raw and normalized.

    ``run_job`` runs the job of a stage on the root, with these option values. The summary has the slices that contain
    the images.

    Raises UsageError if no key is known, or the images cannot be erased; BusyError if a run is at work.
    """
    require_root(root)
    keys = read_keys(listed, "--keys")
    if not keys:
        raise UsageError(f"--keys {listed}: no key is in it; give those of the images to erase, one on each line")
    found = find_images(root, keys)
    _refuse(root, found, listed)
    if dry_run:
        return _summary(root, found, dict.fromkeys(DONE, 0), dry_run=True)
    with erasure_stage(root).lease() as run:
        found = find_images(root, keys)  # only now nobody else can be at it
        _refuse(root, found, listed)
        done = _erase(root, found, run, run_job)
        # a run of shard may have ended meanwhile; none can commit from now on
        _, left = find_examples(root, found.contents)
    if found.unknown:
        log("erase", describe_unknown(found.unknown, keys))
    if not found.is_anywhere:
        log("erase", f"no file below {root} has these images")
    log("erase", "delete these images in SOURCE too: if it still has them, the next ingest packs them again")
    return _summary(root, replace(found, examples=left), done)


def require_clean(root: Place, summary: Summary) -> None:
    """Raise DataError if slices still have the images; log the commands that make new ones without them."""
    left = summary.facts["remaining_slices"]
    if left and not summary.facts["dry_run"]:
        ends = [slices.folder.name for slices in lineage_ends(read_finished(root))] or list(left)
        commands = [_shard_again(root, name) for name in left if name in ends]
        for command in commands:
            log("erase", f"new slices without these images: {command}")
        first = "Make new ones by the command above, delete" if commands else "Delete"
        raise DataError(
            f"{len(left)} sets of slices still contain these images ({', '.join(left)}); raw and normalized are clean."
            f" {first} these folders below slices and verified, and run erase again"
        )


def _shard_again(root: Place, name: str) -> str:
    """The command that makes slices with the options of those called ``name``, without the images that are erased."""
    config = ShardConfig(**read_manifest(slices_stage(root, name))["config"])
    split = config.split
    values = {
        **{"name": f"{name}-erased", "splits_from": name, "remove": str(keys_file(root))},
        **config.option_values(),
        "split": split if isinstance(split, str) else ",".join(f"{each}={share}" for each, share in split.items()),
    }
    words = ["ringslice", "shard", str(root)]
    for option, value in values.items():
        if value is not None and value is not False:
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def _erase(root: Place, found: Occurrences, run: Run, run_job: RunJob) -> dict[str, int]:
    """Erase what was found; ``run`` is that of the erasure. Returns what was done, by the names of `DONE`."""
    _require_idle(root)
    record_images(root, run.staging, found.rows)
    raw, packs, run_of_raw = raw_stage(root), 0, None
    with ExitStack() as stack:
        if raw.marker.exists():
            packs = repack(root, found)
            run_of_raw = stack.enter_context(raw.lease())
        if has_parts(root, found):
            run_job("normalize", {"recorded_options": True, "max_rejects": 1.0})
        generations = _clear_normalized(root, found)
        generations += _clear_raw(run_of_raw, found.packs) if run_of_raw else 0
    return dict(zip(DONE, (packs, generations, _clear_unfinished_slices(root)), strict=True))


def _require_idle(root: Place) -> None:
    """Raise BusyError if a run is at work below ``root``; what finished runs left of their work is deleted."""
    verified = (verification_stage(root, name) for name in folders(root / VERIFIED_FOLDER))
    for stage in (raw_stage(root), normalized_stage(root), *slices_below(root), *verified):
        if stage.work.exists():
            with stage.lease():
                pass


def _clear_raw(run: Run, packs: frozenset[str]) -> int:
    """Delete all of ``raw`` that names these packs; returns how many generations are gone."""
    run.discard_unfinished()
    gone, places = run.stage.find_obsolete(lambda each: packs.isdisjoint(each.entries.column("name")))
    run.delete(places)
    return len(gone)


def _clear_normalized(root: Place, found: Occurrences) -> int:
    """Delete all of ``normalized`` that names the parts found, or others of the packs, which a run of normalize may
    have made meanwhile; returns how many generations are gone.
    """
    stage = normalized_stage(root)
    if not (stage.marker.exists() or stage.work.exists()):
        return 0
    with stage.lease() as run:
        run.discard_unfinished()
        if not stage.marker.exists():
            stage.folder.delete()
            return 0
        gone, places = stage.find_obsolete(lambda each: not any(map(found.has_part, each.entries)))
        record_generations(root, run.staging, gone)
        run.delete(places)
        return len(gone)


def _clear_unfinished_slices(root: Place) -> int:
    """Delete slices that were begun from normalised images that are gone now; returns how many sets these are."""
    normalized, cleared = normalized_stage(root), 0
    for stage in slices_below(root):
        if stage.marker.exists() or not stage.work.exists():
            continue
        with stage.lease() as run:
            if stage.marker.exists():  # it was finished meanwhile
                continue
            identity = stage.read_identity()
            if identity is None or normalized.find_generation(identity["input"]) is None:
                run.discard_unfinished()
                stage.folder.delete()
                cleared += 1
    return cleared


def _refuse(root: Place, found: Occurrences, listed: Place) -> None:
    """Raise UsageError for what cannot be erased, before anything is changed; and what `read_finished` raises, which
    the command for new slices needs.
    """
    read_finished(root)
    if not found.rows:
        few = f"none of its {len(found.keys)} keys is known in {root}: {name_some(list(map(repr, found.unknown)))}"
        raise UsageError(f"--keys {listed}: {few}; give keys as image lists and examples.parquet have them")
    raw, normalized = raw_stage(root), normalized_stage(root)
    if not raw.marker.exists():
        if raw.folder.exists():
            raise UsageError(
                f"{raw.folder} was begun and not finished; run: ringslice ingest SOURCE {root}, then erase again"
            )
        if found.parts:
            raise UsageError(f"{normalized.folder} has these images, but there is no raw to rebuild it; remove it")
        return
    current = raw.read_generation()
    for pack in current.entries:
        if pack["name"] in found.packs and "file" in pack:
            raise UsageError(
                f"{pack['file']} has these images and was not written by ringslice (--in-place); remove them there, run"
                f" ingest and normalize on {root}, then erase again"
            )
    if found.images and found.images >= current.marker["counts"]["images"]:
        raise UsageError(f"these are all images of {root}; remove the whole folder")
    if has_all_good(root, found, current):
        raise UsageError(f"these are all images of {root} that are usable; remove the whole folder")
    if has_parts(root, found) and raw.find_generation(normalized.read_marker()["input"]) is None:
        raise UsageError(
            f"{normalized.folder} was made from other packs than {raw.folder} has; run:"
            f" ringslice normalize {root} --overwrite"
        )


def _summary(root: Place, found: Occurrences, done: Mapping[str, int], *, dry_run: bool = False) -> Summary:
    left = {name: sum(counts.values()) for name, counts in found.examples.items()}
    facts: dict[str, Any] = {
        "keys": len(found.keys),
        "unknown_keys": len(found.unknown),
        "unknown": found.unknown[:MAX_NAMED],
        "contents": len(found.contents),
        "copies": len(found.copies),
        "copied_keys": found.copies[:MAX_NAMED],
        "images": found.images,
        **done,
        "remaining_slices": left,
        "dry_run": dry_run,
    }
    rows = [[name, split, count] for name in left for split, count in found.examples[name].items()]
    tables = [("slices that contain these images", ["slices", "split", "examples"], rows)] if left else []
    return Summary("erase", str(root), not found.is_anywhere, facts, tables)
