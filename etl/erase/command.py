"""The command ``erase``: images are deleted, with all that was made of them, everywhere below a root.

First ``raw`` is renewed without them, then ``normalized``; then the generations that name their packs and parts are
deleted, with the files; then slices are made anew. What was done is not done again, so an erasure that was stopped goes
on when the command is run again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.erase.clear import clear_normalized, clear_raw, clear_unfinished_slices, require_idle
from etl.erase.find import Found, find_images, has_parts
from etl.erase.record import add_to_record
from etl.erase.remake import finish_moves, remake
from etl.erase.repack import pack_anew
from etl.errors import DataError, UsageError, report
from etl.progress import log
from etl.slices.key_list import read_keys
from etl.stages.layout import erasure_stage, is_root, normalized_stage, raw_stage
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place

MOST_NAMED = 10
KEYS_FILE = "keys.txt"

RunJob = Callable[[str, Mapping[str, Any]], None]


def erase(root: Place, listed: Place, run_job: RunJob, *, slices: bool = False, dry_run: bool = False) -> Summary:
    """Erase the images whose keys are ``listed``, and all with the same contents; with ``slices`` from slices too.

    ``run_job`` runs the job of a stage on the root, with these option values.

    Raises UsageError where no key is known, or the images cannot be erased; BusyError where a run is at work.
    """
    if not is_root(root):
        raise UsageError(f"{root} is no dataset's root (no raw, no slices); give ROOT")
    keys = read_keys(listed, "--keys")
    if not keys:
        raise UsageError(f"--keys {listed}: no key is in it; give those of the images to erase, one on each line")
    found = find_images(root, keys)
    _refuse(root, found, listed)
    if dry_run:
        return _summary(root, found, _Done(), dry_run=True)
    with erasure_stage(root).held() as stage:
        finish_moves(root)
        found = find_images(root, keys)  # only now nobody else can be at it
        _refuse(root, found, listed)
        done = _Eraser(root, found, stage, run_job).erase(slices)
    if not found.is_anywhere:
        log("erase", f"nothing below {root} has these images")
    log("erase", "delete these images in SOURCE too: where it still has them, the next ingest packs them again")
    return _summary(root, found, done)


def require_clean(summary: Summary) -> None:
    """Raise DataError where slices still hold the images."""
    held = summary.facts["slices_that_hold_them"]
    if held and not summary.facts["dry_run"]:
        raise DataError(
            f"{len(held)} sets of slices still hold these images ({', '.join(held)}); raw and normalized are clean;"
            " run erase again with --slices; remove a set that cannot be made anew"
        )


@dataclass
class _Done:
    packs: int = 0
    generations: int = 0
    unfinished: int = 0
    remade: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Eraser:
    """Erases what was ``found``; ``stage`` is the erasure, whose claim is held."""

    root: Place
    found: Found
    stage: Stage
    run_job: RunJob

    def erase(self, slices: bool) -> _Done:
        root, found, done = self.root, self.found, _Done()
        require_idle(root)
        add_to_record(root, self.stage.attempts, found.rows)
        raw = raw_stage(root)
        if raw.marker.exists():
            done.packs = pack_anew(root, found)
            with raw.held():
                done.generations = self._make_parts() + clear_raw(raw, found.packs)
        else:
            done.generations = self._make_parts()
        done.unfinished = clear_unfinished_slices(root)
        if slices:
            done.remade = tuple(self._make_slices())
        return done

    def _make_parts(self) -> int:
        """Make the parts of new packs; returns how many generations of ``normalized`` are gone."""
        if has_parts(self.root, self.found):
            self.run_job("normalize", {"as_before": True, "max_rejects": 1.0})
        return clear_normalized(self.root, self.found.parts)

    def _make_slices(self) -> Iterator[str]:
        """Make slices anew; gives the names of those that could be."""
        keys, file = list(self.found.keys), self.stage.work / KEYS_FILE
        replace_bytes(file, self.stage.attempts, "".join(f"{key}\n" for key in keys).encode())

        def make(name: str) -> bool:
            try:
                self.run_job("shard", {"as_before": True, "name": name, "remove": file.uri})
            except (DataError, UsageError) as error:
                report(error)
                return False
            return True

        for name in self.found.examples:
            if remake(self.root, name, keys, make):
                yield name


def _refuse(root: Place, found: Found, listed: Place) -> None:
    """Raise UsageError for what cannot be erased, before anything is changed."""
    if not found.rows:
        told = f"none of its {len(found.keys)} keys is known in {root}: {_few(found.unknown)}"
        raise UsageError(f"--keys {listed}: {told}; give keys as image lists and examples.parquet have them")
    raw, normalized = raw_stage(root), normalized_stage(root)
    if not raw.marker.exists():
        if raw.folder.exists():
            raise UsageError(f"{raw.folder} was begun and not finished; run: ringslice ingest, then erase again")
        if found.parts:
            raise UsageError(f"{normalized.folder} holds these images, but no raw is there to make it anew; remove it")
        return
    marker = raw.read_marker()
    for pack in marker["packs"]:
        if pack["name"] in found.packs and "file" in pack:
            raise UsageError(
                f"{pack['file']} holds these images and is no file of ours (--in-place); remove them there, run ingest"
                " and normalize, then erase again"
            )
    if found.images and found.images >= marker["counts"]["images"]:
        raise UsageError(f"these are all images of {root}; remove the whole folder")
    if has_parts(root, found) and raw.find_generation(normalized.read_marker()["input"]) is None:
        raise UsageError(
            f"{normalized.folder} was made from other packs than {raw.folder} has; run: ringslice normalize --overwrite"
        )


def _few(names: Sequence[str]) -> str:
    few = ", ".join(map(repr, names[:MOST_NAMED]))
    return few + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _summary(root: Place, found: Found, done: _Done, dry_run: bool = False) -> Summary:
    held = {name: sum(counts.values()) for name, counts in found.examples.items() if name not in done.remade}
    facts: dict[str, Any] = {
        "keys": len(found.keys),
        "unknown_keys": len(found.unknown),
        "unknown": found.unknown[:MOST_NAMED],
        "contents": len(found.contents),
        "copies": len(found.copies),
        "copied_keys": found.copies[:MOST_NAMED],
        "images": found.images,
        "packs_made_anew": done.packs,
        "removed_generations": done.generations,
        "removed_unfinished_slices": done.unfinished,
        "slices_made_anew": list(done.remade),
        "slices_that_hold_them": held,
        "dry_run": dry_run,
    }
    rows = [[name, split, count] for name in held for split, count in found.examples[name].items()]
    tables = [("slices that hold these images", ["slices", "split", "examples"], rows)] if held else []
    return Summary("erase", str(root), not found.is_anywhere, facts, tables)
