"""Compare a source with its packs: which images are the same, and which are missing or have changed.

The lists of the packs and of the source are joined by key, in memory. A file is read only if its time of change differs
from that of the ingest that packed or last compared it: ``raw/versions.parquet`` has the times. That file is only a
cache: no marker names it, every ingest replaces it, and without it all contents are compared once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables, schemas
from etl.progress import Progress, log
from etl.raw.packs import NO_COPY, Mask, RemovedRows, content_sha256, list_place
from etl.sources.base import Source, SourceImage
from etl.stages.marker import Generation
from etl.stages.stage import Stage, require
from etl.storage.place import Place, open_place

VERSIONS_FILE = "versions.parquet"
NO_IMAGE = -1

Integers = npt.NDArray[np.int64]

_COLUMNS = ["key", "label", "split", "size", "sha256", "columns"]
_REWRITTEN = "files were written again since they were packed; comparing their contents with the packs"


def plan_renewal(packs: Iterable[tuple[str, Integers]], images: int) -> tuple[dict[str, Integers], Integers]:
    """Choose which of ``packs`` stay, each a name and the image of each row (or `NO_IMAGE`): int64 of shape (rows,).

    A pack with more than half of its rows removed does not: its other images are packed again. Of two rows with the
    same image the second one is removed.

    Returns the packs that stay, in their order, each with its removed rows, and the images that are in none of them:
    int64, ascending.
    """
    packed = np.zeros(images, dtype=np.bool_)
    kept = dict[str, Integers]()
    for name, held in packs:
        live = _first_of_each(held) & ~packed[held]  # NO_IMAGE indexes the last image, and is never live
        removed = np.flatnonzero(~live)
        if 2 * len(removed) > len(held) or len(removed) == len(held):
            continue
        packed[held[live]] = True
        kept[name] = removed
    return kept, np.flatnonzero(~packed)


def _first_of_each(held: Integers) -> npt.NDArray[np.bool_]:
    first = np.zeros(len(held), dtype=np.bool_)
    first[np.unique(held, return_index=True)[1]] = True
    return first & (held != NO_IMAGE)


def _unchanged(stage: Stage, images: Sequence[SourceImage]) -> tuple[frozenset[str], Mask]:
    """Packs whose images have recorded versions, and whether the file of each of these ``images`` still has its own:
    bool of shape (images,). None and False if the record is missing or damaged.
    """
    place = stage.folder / VERSIONS_FILE
    try:
        generation = stage.find_generation(parquet_tables.read_facts(place)["generation"])
        table = parquet_tables.read_table(place, ["key", "version"])
        rows = pc.index_in(_keys(images), value_set=table["key"])
        same = pc.equal(pc.take(table["version"].combine_chunks(), rows), _versions(images)).fill_null(False)
    except (DataError, FileNotFoundError, LookupError, TypeError, pa.ArrowException):
        return frozenset(), np.zeros(len(images), dtype=np.bool_)
    packs = frozenset(generation.entries.column("name")) if generation else frozenset()
    return packs, same.to_numpy(zero_copy_only=False)


def has_known_versions(stage: Stage, listing: str, generation: str) -> bool:
    """True if the source of this listing was compared with this generation since its files were last written."""
    try:
        facts = parquet_tables.read_facts(stage.folder / VERSIONS_FILE)
    except (DataError, FileNotFoundError):
        return False
    return facts == {"listing": listing, "generation": generation}


def versions_bytes(images: Sequence[SourceImage], listing: str, generation: str) -> bytes:
    """The content of `VERSIONS_FILE` once every image of the source is packed."""
    table = pa.table({"key": _keys(images), "version": _versions(images)})
    return parquet_tables.table_bytes(table, {"listing": listing, "generation": generation})


def _keys(images: Sequence[SourceImage]) -> pa.Array:
    return pa.array([image.key for image in images], pa.string())


def _versions(images: Sequence[SourceImage]) -> pa.Array:
    return pa.array([image.version for image in images], pa.int64())


@dataclass(frozen=True)
class Comparison:
    """What a renewal keeps and packs, as `plan_renewal` gives it, and counts.

    ``removed_rows`` is the table of the removed rows of ``kept`` packs (`etl.formats.schemas.REMOVED`). ``known`` is
    the number of live rows; of their images ``missing`` are not in the source and ``changed`` differ.
    """

    kept: Mapping[str, Integers]
    unpacked: Integers
    removed_rows: pa.Table
    known: int = 0
    missing: int = 0
    changed: int = 0

    @classmethod
    def with_nothing(cls, images: int) -> "Comparison":
        """The comparison of so many images with no packs."""
        return cls({}, np.arange(images), schemas.REMOVED.empty_table())

    @property
    def is_the_same(self) -> bool:
        """True if the packs contain exactly the images of the source."""
        return not (self.missing or self.changed or len(self.unpacked))

    def require_most_known(self, max_removed: float, place: Place) -> None:
        """Raise UsageError if so many images are missing or changed that this may be another source."""
        if (self.missing + self.changed) / max(1, self.known) > max_removed:
            raise UsageError(
                f"of {self.known} images in {place} {self.missing} are missing in this source and {self.changed} have"
                f" changed, more than --max-removed {max_removed:g}; is this another source? Give --max-removed 1 if it"
                " is not, or --overwrite to replace them all"
            )


def compare(source: Source, root: Place, parent: Generation, stage: Stage) -> Comparison:
    """Compare ``source`` with the packs of a generation of ``stage``. Raises DataError if a list is damaged."""
    packs = list(parent.entries)
    bounds = np.cumsum([0, *(pack["images"] for pack in packs)])
    rows = _read_lists(root / "raw", packs)
    removed, spans = RemovedRows.read(root, parent.marker), list(pairwise(bounds.tolist()))
    own_keys = (rows["key"].slice(start, stop - start) for start, stop in spans)
    live_of = (removed.live(pack["name"], keys) for pack, keys in zip(packs, own_keys, strict=True))
    live = np.concatenate([np.zeros(0, np.bool_), *live_of])
    found = pc.index_in(rows["key"], value_set=_keys(source.images)).fill_null(NO_IMAGE).to_numpy()
    is_found = live & (found != NO_IMAGE)
    held = np.where(is_found & _has_same_facts(rows, source.images, found), found, NO_IMAGE)
    recorded, same = _unchanged(stage, source.images)
    is_recorded = np.array([pack["name"] in recorded for pack in packs], np.bool_)
    unsure = (held != NO_IMAGE) & ~(np.repeat(is_recorded, np.diff(bounds)) & same[held])
    moved = np.zeros(len(held), np.bool_)
    if parent.marker["config"]["in_place"]:
        held, moved = _without_changed_files(source, packs, bounds, held, unsure, sha256=rows["sha256"])
    elif unsure.any():
        log("ingest", _REWRITTEN)
        unsure[unsure] = ~_has_same_contents(source, rows["sha256"], held, np.flatnonzero(unsure))
        held = np.where(unsure, NO_IMAGE, held)
    starts = {pack["name"]: start for pack, start in zip(packs, bounds.tolist(), strict=False)}
    images_of_packs = ((pack["name"], held[slice(*each)]) for pack, each in zip(packs, spans, strict=True))
    kept, unpacked = plan_renewal(images_of_packs, len(source.images))
    missing, changed = int((live & ~is_found).sum()), int((is_found & (held == NO_IMAGE) & ~moved).sum())
    return Comparison(kept, unpacked, _removed_rows(rows["key"], kept, starts), int(live.sum()), missing, changed)


def _read_lists(raw: Place, packs: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of these packs' lists, one pack after the other."""
    tables = [schemas.IMAGES.empty_table().select(_COLUMNS)]
    with Progress("ingest", len(packs), "lists of packs read", begins=False) as progress:
        for pack in packs:
            place = list_place(raw, pack["name"])
            table = parquet_tables.read_table(place, _COLUMNS, NO_COPY)
            require(table.num_rows == pack["images"], f"{place} has {table.num_rows} rows, not {pack['images']}")
            tables.append(table.replace_schema_metadata(None))
            progress.advance()
    return pa.concat_tables(tables)


def _has_same_facts(rows: pa.Table, images: Sequence[SourceImage], found: Integers) -> Mask:
    """True if label, split, size and columns of each row are those of the image ``found`` for it."""
    same = np.ones(len(rows), dtype=np.bool_)
    values = {
        "label": pa.array([image.label for image in images], pa.int32()),
        "split": pa.array([image.split or "" for image in images], pa.string()),
        "size": pa.array([image.size_bytes for image in images], pa.int64()),
    }
    for name, own in values.items():
        recorded = rows[name].fill_null("") if name == "split" else rows[name]
        same &= pc.equal(recorded, own.take(pa.array(found % len(images)))).to_numpy()
    if rows["columns"].null_count < len(rows) or any(image.columns for image in images):
        recorded = rows["columns"].to_pylist()  # Arrow neither compares nor joins maps
        for row, (cell, number) in enumerate(zip(recorded, found.tolist(), strict=True)):
            same[row] &= (tuple(cell) if cell is not None else None) == images[number].columns
    return same


def _has_same_contents(source: Source, sha256: pa.ChunkedArray, held: Integers, unsure: Integers) -> Mask:
    """True for each of the rows ``unsure`` if the content of its image is the packed one: bool of shape (unsure,)."""
    numbers, which = np.unique(held[unsure], return_inverse=True)
    digests = []
    with Progress("ingest", len(numbers), "images compared", begins=False) as progress:
        for content in source.read_all([source.images[number] for number in numbers.tolist()]):
            digests.append(content_sha256(content))
            progress.advance()
    same = pc.equal(sha256.take(pa.array(unsure)), pa.array(digests, pa.binary(32)).take(pa.array(which)))
    return np.asarray(same)


def _without_changed_files(
    source: Source,
    packs: Sequence[Mapping[str, Any]],
    bounds: Integers,
    held: Integers,
    unsure: Mask,
    *,
    sha256: pa.ChunkedArray,
) -> tuple[Integers, Mask]:
    """``held``, with `NO_IMAGE` for all rows of a pack in place if its file is another one or was changed; and which of
    these rows have the same image at another place: bool of shape (rows,).

    A file that is a pack must be the same as a whole, because offsets and rows in it are recorded.
    """
    files = [file.place.uri for file in source.large_files()]
    file_of = np.array([image.position[0] for image in source.images])
    sha256_of = cache(lambda file: open_place(file).sha256())  # several packs may share a file
    before, moved, in_changed = held, np.zeros(len(held), np.bool_), np.zeros(len(held), np.bool_)
    held, has_logged = held.copy(), False
    for pack, (start, stop) in zip(packs, pairwise(bounds.tolist()), strict=True):
        own = held[start:stop]
        there = {files[number] for number in np.unique(file_of[own[own != NO_IMAGE]]).tolist()}
        if there <= {pack["file"]} and not unsure[start:stop].any():
            continue
        if not has_logged:
            log("ingest", _REWRITTEN)
            has_logged = True
        is_same = len(there) == 1 and sha256_of(*there) == pack["sha256"]
        if not is_same or there != {pack["file"]}:
            (moved if is_same else in_changed)[start:stop] = own != NO_IMAGE
            own[:] = NO_IMAGE
    if in_changed.any():
        moved[in_changed] = _has_same_contents(source, sha256, before, np.flatnonzero(in_changed))
    return held, moved


def _removed_rows(keys: pa.ChunkedArray, kept: Mapping[str, Integers], starts: Mapping[str, int]) -> pa.Table:
    """Pack and key of every removed row of the packs that are kept, in their order."""
    rows = np.concatenate([np.zeros(0, np.int64), *(starts[name] + removed for name, removed in kept.items())])
    names = [name for name, removed in kept.items() for _ in removed]
    columns = [pa.array(names, pa.string()), keys.take(pa.array(rows)).combine_chunks()]
    return pa.Table.from_arrays(columns, schema=schemas.REMOVED)
