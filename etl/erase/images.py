"""Images to erase: where they are below a root, and the next generation of ``raw`` without them.

Packs, parts and slices have an image if they have a row of its content. Every list that lies below the root is looked
into, also those of earlier generations and those that no marker names. In memory: one table, the keys and contents
that were found, and to repack the list of all live images.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.formats import parquet_tables
from etl.normalized.erased import Row, read_record
from etl.normalized.parts import live_rows, pack_of, read_images
from etl.raw.ingest import count_source
from etl.raw.packs import RemovedRows, copy_to_packs, list_place, pack_place, publish_removed
from etl.raw.source_diff import VERSIONS_FILE
from etl.slices.history import finished_slices
from etl.slices.manifest import table_file
from etl.sources.base import MAX_WHOLE_BYTES, Content, Source, SourceImage, fingerprint
from etl.stages.layout import PACKS, normalized_stage, raw_stage
from etl.stages.marker import Generation, fingerprint_of
from etl.stages.run import Run, RunRecord
from etl.storage.place import Place

IN_PACKS, IN_PARTS = "packs", "parts"  # kinds of lists

ENDING = ".parquet"
PACKS_AT_ONCE = 4
REMEDY = "its other images cannot be repacked; put the original back"

_COLUMNS = ["key", "label", "split", "columns", "offset", "size", "sha256"]


@dataclass(frozen=True)
class Occurrences:
    """Where the images with these ``keys``, and all with the same contents, are below a root.

    ``rows`` are keys and contents, with those that were erased before. ``packs`` and ``parts`` are names, also of
    earlier generations; ``examples`` those of each set of slices that has any, by split. ``images`` is how many rows of
    raw are live.
    """

    keys: tuple[str, ...]
    rows: frozenset[Row]
    packs: frozenset[str]
    parts: frozenset[str]
    examples: dict[str, dict[str, int]]
    images: int

    @property
    def contents(self) -> frozenset[bytes]:
        return frozenset(sha256 for _, sha256 in self.rows)

    @property
    def unknown(self) -> list[str]:
        """Keys that are neither in a list nor in the record of erased images."""
        known = {key for key, _ in self.rows}
        return [key for key in self.keys if key not in known]

    @property
    def copies(self) -> list[str]:
        """Other keys with the same contents."""
        return sorted({key for key, _ in self.rows}.difference(self.keys))

    def has_part(self, part: Mapping[str, Any]) -> bool:
        """True if a part, by its entry in a marker, has one of the images, or is made of a pack that has."""
        return part["part"] in self.parts or pack_of(part) in self.packs

    @property
    def is_anywhere(self) -> bool:
        return bool(self.packs or self.parts or self.examples)


def find_images(root: Place, keys: Sequence[str]) -> Occurrences:
    """Look for the images with these keys, and for all with the same contents.

    Raises DataError if a list is damaged.
    """
    asked = pa.array(keys, pa.string())
    contents = set[bytes]()
    for table in chain((table for _, _, table in _lists(root)), (table for _, table in _examples(root))):
        contents.update(table["sha256"].filter(pc.is_in(table["key"], value_set=asked)).to_pylist())
    rows, examples = find_examples(root, contents)
    holders, wanted = defaultdict[str, set[str]](set), _sorted(contents)
    for kind, name, table in _lists(root):
        if len(of_them := _rows_with(wanted, table)):
            rows |= _rows_of(of_them)
            holders[kind].add(name)
    packs, parts = frozenset(holders[IN_PACKS]), frozenset(holders[IN_PARTS])
    return Occurrences(tuple(keys), frozenset(rows), packs, parts, examples, _count_live(root, packs, contents))


def find_examples(root: Place, contents: Set[bytes]) -> tuple[set[Row], dict[str, dict[str, int]]]:
    """Keys and contents of the examples that have one of these contents; how many, by set of slices and by split."""
    rows, counts, wanted = set[Row](), defaultdict[str, Counter[str]](Counter), _sorted(contents)
    for name, table in _examples(root):
        if len(of_them := _rows_with(wanted, table)):
            rows |= _rows_of(of_them)
            counts[name].update(of_them["split"].to_pylist())
    return rows, {name: dict(sorted(by_split.items())) for name, by_split in sorted(counts.items())}


def _rows_of(table: pa.Table) -> set[Row]:
    return set(zip(table["key"].to_pylist(), table["sha256"].to_pylist(), strict=True))


def _rows_with(wanted: pa.Array, table: pa.Table) -> pa.Table:
    """The rows that have one of the contents ``wanted``."""
    return table.filter(pc.is_in(table["sha256"], value_set=wanted))


def _lists(root: Place) -> Iterator[tuple[str, str, pa.Table]]:
    """Yield kind, name (of a pack or part) and a table with the columns key and sha256.

    The first one, of no kind, has the images that were erased before.
    """
    yield "", "", read_record(root)
    folders = (("raw/packs", IN_PACKS), ("normalized/parts", IN_PARTS), ("normalized/rejects", IN_PARTS))
    for below, kind in folders:
        for info in (root / below).children():
            if info.base_name.endswith(ENDING):
                table = parquet_tables.read_table(root / below / info.base_name, ["key", "sha256"])
                yield kind, info.base_name.removesuffix(ENDING), table


def _examples(root: Place) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name of slices and a table of some of their examples, with the columns key, sha256 and split."""
    for stage in finished_slices(root):
        for table in parquet_tables.iterate_groups(stage.folder / table_file("examples"), ["key", "sha256", "split"]):
            yield stage.folder.name, table


def _count_live(root: Place, packs: frozenset[str], contents: Set[bytes]) -> int:
    """How many live rows of these packs have one of these contents."""
    stage = raw_stage(root)
    if not packs or not stage.marker.exists():
        return 0
    raw, live, wanted = stage.read_generation(), 0, _sorted(contents)
    removed = RemovedRows.read(root, raw.marker)
    for pack in raw.entries:
        if pack["name"] in packs:
            table = parquet_tables.read_table(list_place(root / "raw", pack["name"]), ["key", "sha256"])
            live += len(_rows_with(wanted, removed.filter(pack["name"], table)))
    return live


def _sorted(contents: Set[bytes]) -> pa.Array:
    return pa.array(sorted(contents), pa.binary(32))


def has_parts(root: Place, found: Occurrences) -> bool:
    """True if the current ``normalized`` has parts with these images."""
    stage = normalized_stage(root)
    return stage.marker.exists() and any(map(found.has_part, stage.read_generation().entries))


def has_all_good(root: Place, found: Occurrences, raw: Generation) -> bool:
    """True if ``normalized`` was made from this ``raw``, and all its good images are among those that were found."""
    stage = normalized_stage(root)
    if not stage.marker.exists() or (normalized := stage.read_generation()).marker["input"] != raw.fingerprint:
        return False
    wanted, good, removed = _sorted(found.contents), 0, RemovedRows.read(root, raw.marker)
    for part in normalized.entries:
        if part["part"] in found.parts:
            good += len(_rows_with(wanted, live_rows(stage.folder, part, removed, ["sha256"])))
    return good >= normalized.marker["counts"]["good"]


@dataclass
class PackedImages(Source):
    """Images of packs, as a source of new packs. A position is (index in `packs`, index in its rows)."""

    raw: Place
    packs: list[str]
    rows: list[list[dict[str, Any]]]
    images: list[SourceImage]
    classes: list[str]
    kind = "packs"

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """The bytes of these images, in their order. Raises DataError if a pack does not contain them."""
        for number, run in groupby(images, lambda image: image.position[0]):
            rows = [self.rows[number][image.position[1]] for image in run]
            pack = pack_place(self.raw, self.packs[number])
            for _, content in read_images(pack, rows, REMEDY, most_bytes=MAX_WHOLE_BYTES):
                yield content


def repack(root: Place, found: Occurrences) -> int:
    """Renew ``raw`` without the images that were found; returns how many packs are no longer in it.

    Raises DataError if a pack is damaged, BusyError if another run is at work on ``raw``.
    """
    stage = raw_stage(root)
    parent = stage.read_generation()
    marker = parent.marker
    gone = [name for name in parent.entries.column("name") if name in found.packs]
    if not gone:
        return 0
    kept = [pack for pack in parent.entries if pack["name"] not in found.packs]
    removed = RemovedRows.read(root, marker)
    rest = _live_of(stage.folder, gone, removed, marker["classes"], found.contents)
    images = _live_of(stage.folder, [pack["name"] for pack in kept], removed, marker["classes"]).images + rest.images
    identity = {"config": marker["config"], "input": fingerprint(images, marker["classes"])}
    listing = fingerprint_of(b"".join(sorted(found.contents)))
    record = RunRecord(packed=len(rest.images), erased=found.images, reused=len(kept))
    run = stage.renew(identity, parent.fingerprint, listing, force=True)
    assert run is not None
    with run:
        limits = {"pack_bytes": marker["config"]["pack_bytes"], "at_once": PACKS_AT_ONCE}
        written = copy_to_packs(run, rest, rest.images, marker["next_pack"], **limits)
        facts = {
            "parent": parent.fingerprint,
            "counts": count_source(images, marker["classes"], marker["counts"]["skipped"]),
            "removed": _removed_of(run, marker, [pack["name"] for pack in kept]),
            "next_pack": marker["next_pack"] + len(written),
            PACKS.name: PACKS.publish(run.folder, run.staging, [*kept, *written]),
        }
        run.delete([run.folder / VERSIONS_FILE])  # it has the keys; the next `ingest` compares all contents once
        run.commit(marker | identity | facts, record)
    return len(gone)


def _live_of(
    raw: Place, packs: list[str], removed: RemovedRows, classes: list[str], contents: frozenset[bytes] = frozenset()
) -> PackedImages:
    """The live images of these packs, in their order, without those of these contents."""
    rows_of, images = list[list[dict[str, Any]]](), list[SourceImage]()
    without = _sorted(contents)
    for number, pack in enumerate(packs):
        table = removed.filter(pack, parquet_tables.read_table(list_place(raw, pack), _COLUMNS))
        table = table.filter(pc.invert(pc.is_in(table["sha256"], value_set=without)))
        rows = table.to_pylist()
        for place, row in enumerate(rows):
            columns = tuple(row["columns"]) if row["columns"] is not None else None
            facts = (row["key"], row["label"], row["split"], row["size"])
            images.append(SourceImage(*facts, columns=columns, position=(number, place)))
        rows_of.append(rows if contents else [])
    return PackedImages(raw, packs, rows_of, images, classes)


def _removed_of(run: Run, marker: Mapping[str, Any], kept: list[str]) -> dict[str, Any] | None:
    """Publish the table of removed rows of the packs that are kept."""
    if marker["removed"] is None:
        return None
    table = parquet_tables.read_table(run.folder / marker["removed"]["file"])
    is_kept = pc.is_in(table["pack"], value_set=pa.array(kept, pa.string()))
    return publish_removed(run.folder, run.staging, table.filter(is_kept).combine_chunks())
