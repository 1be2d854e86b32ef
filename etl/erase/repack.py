"""The next generation of ``raw``, without certain images: the packs that contain them are not in it, and what else is
live in these packs is in new ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.erase.find import Found
from etl.errors import DataError
from etl.formats import parquet_tables
from etl.normalized.parts import read_images
from etl.raw.ingest import count_source
from etl.raw.packs import Removed, copy_to_packs, list_place, pack_place, publish_removed
from etl.raw.source_diff import VERSIONS_FILE
from etl.sources.base import MAX_WHOLE_BYTES, Content, Source, SourceImage, fingerprint
from etl.stages.layout import PACKS, raw_stage
from etl.stages.marker import fingerprint_of
from etl.stages.run import Run, RunRecord
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place, json_bytes

AT_ONCE = 4
REMEDY = "its other images cannot be repacked; put the original back"

_COLUMNS = ["key", "label", "split", "columns", "offset", "size", "sha256"]


@dataclass
class PackedImages(Source):
    """Images of packs, as a source of new packs. A position is the number of a pack, and that of a row there."""

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


def repack(root: Place, found: Found) -> int:
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
    removed = Removed.read(root, marker)
    rest = _live_of(stage.folder, gone, removed, marker["classes"], found.contents)
    images = _live_of(stage.folder, [pack["name"] for pack in kept], removed, marker["classes"]).images + rest.images
    identity = {"config": marker["config"], "input": fingerprint(images, marker["classes"], versions=False)}
    listing = fingerprint_of(b"".join(sorted(found.contents)))
    record = RunRecord(packed=len(rest.images), removed=found.images, reused=len(kept))
    run = stage.renew(identity, parent.fingerprint, listing, force=True)
    assert run is not None
    with run:
        pack_bytes = marker["config"]["pack_bytes"]
        written = copy_to_packs(run, rest, rest.images, marker["next_pack"], pack_bytes=pack_bytes, at_once=AT_ONCE)
        facts = {
            "parent": parent.fingerprint,
            "counts": count_source(images, marker["classes"], marker["counts"]["skipped"]),
            "removed": _removed_of(run, marker, [pack["name"] for pack in kept]),
            "next_pack": marker["next_pack"] + len(written),
            PACKS.name: PACKS.publish(run.folder, run.staging, [*kept, *written]),
        }
        renewed = marker | identity | facts
        _note_generation(run, parent.fingerprint, fingerprint_of(json_bytes(renewed)), found)
        run.commit(renewed, record)
    return len(gone)


def _live_of(
    raw: Place, packs: list[str], removed: Removed, classes: list[str], contents: frozenset[bytes] = frozenset()
) -> PackedImages:
    """The live images of these packs, in their order, without those of these contents."""
    rows_of, images = list[list[dict[str, Any]]](), list[SourceImage]()
    without = pa.array(sorted(contents), pa.binary(32))
    for number, pack in enumerate(packs):
        table = removed.filter(pack, parquet_tables.read_table(list_place(raw, pack), _COLUMNS))
        table = table.filter(pc.invert(pc.is_in(table["sha256"], value_set=without)))
        rows = table.to_pylist()
        images += map(partial(_image, number), range(len(rows)), rows)
        rows_of.append(rows if contents else [])
    return PackedImages(raw, packs, rows_of, images, classes)


def _image(pack: int, number: int, row: Mapping[str, Any]) -> SourceImage:
    columns = tuple(row["columns"]) if row["columns"] is not None else None
    return SourceImage(row["key"], row["label"], row["split"], row["size"], columns=columns, position=(pack, number))


def _removed_of(run: Run, marker: Mapping[str, Any], kept: list[str]) -> dict[str, Any] | None:
    """Publish the table of removed rows of the packs that are kept."""
    if marker["removed"] is None:
        return None
    table = parquet_tables.read_table(run.folder / marker["removed"]["file"])
    is_kept = pc.is_in(table["pack"], value_set=pa.array(kept, pa.string()))
    return publish_removed(run.folder, run.staging, table.filter(is_kept).combine_chunks())


def _note_generation(run: Run, before: str, after: str, found: Found) -> None:
    """Have what is known of the files' times of change, less the images erased, said of the next generation.

    It is advice: until that generation is there, the next `ingest` compares all contents.
    """
    place = run.folder / VERSIONS_FILE
    try:
        table, facts = parquet_tables.read_with_facts(place)
    except (DataError, FileNotFoundError):
        return
    if facts["generation"] == before:
        erased = pa.array(sorted({key for key, _ in found.rows}), pa.string())
        table = table.filter(pc.invert(pc.is_in(table["key"], value_set=erased))).replace_schema_metadata(None)
        data = parquet_tables.table_bytes(table, {"listing": "", "generation": after})
        replace_bytes(place, run.staging, data)
