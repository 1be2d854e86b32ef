"""One part: its rows and rejects are the images of its pack's list, and the markers have the facts that they give.

Facts stand in the metadata of the tables, too, whose SHA-256 the markers have: both are compared.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, EnvironmentFailure, RingsliceError
from etl.formats import parquet_tables, schemas
from etl.formats.example import parse
from etl.formats.records import read_records
from etl.normalized.parts import (
    Origin,
    pack_of,
    part_facts,
    read_images,
    records_place,
    rejects_places,
    rows_place,
)
from etl.raw.packs import RemovedRows, list_place, pack_place
from etl.storage.place import READ_BUFFER_BYTES, Place
from etl.verify.findings import DATASET, RAW_DATASET, Finding, What, differences, marker_fault, table_difference
from etl.verify.join import LineResult

RECORD_COLUMNS = ("key", "label", "width", "height", "offset", "size", "crc32c")

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class PartCheck:
    """A part below ``root``, and what the markers record of it and of its pack (None if that is not known).

    ``removed`` are the removed images of all packs; ``image`` has what all images of these parts have: height and width
    (None if they differ) and channels. Findings go to ``result``.
    """

    result: LineResult
    root: Place
    part: Entry
    pack: Entry | None
    removed: RemovedRows
    image: Entry

    @property
    def name(self) -> str:
        """The name of the part."""
        return str(self.part["part"])

    @property
    def pack_name(self) -> str:
        """The name of its pack."""
        return pack_of(self.part)

    def check(self, every_stage: bool) -> pa.Table | None:
        """Compare the tables of part and pack with each other and with the markers, and with ``every_stage`` the files
        with the tables. Returns the part's rows, None if they are in doubt.
        """
        result, rejects = self.result, self.part["rejects"]
        normalized, raw = self.root / "normalized", self.root / "raw"
        images = self._read(What.LIST, list_place(raw, self.pack_name), schemas.IMAGES, self.part["list_sha256"])
        rows = self._read(What.ROWS, rows_place(normalized, self.name), schemas.ROWS, self.part["rows_sha256"])
        tar, listed = rejects_places(normalized, self.name)
        bad: pa.Table | None = schemas.REJECTS.empty_table()
        if "list_sha256" in rejects:
            bad = self._read(What.REJECTS, listed, schemas.REJECTS, rejects["list_sha256"])
        if every_stage:
            file = self.part.get("file")
            pack = pack_place(raw, self.pack_name, file)
            self._check_file(What.PART, records_place(normalized, self.name), self.part["sha256"], rows)
            # a file of the source may be many packs: it is hashed by a line of work of its own
            self._check_file(What.PACK, pack, None if file else self.part["pack_sha256"], images)
            if "sha256" in rejects:
                self._check_file(What.REJECTS, tar, rejects["sha256"], bad)
        result.unreadable.update(lists=images is None, rejects=bad is None)
        if images is not None:
            result.findings += self._list_findings(images)
            _count_images(result, self.live(images))
        if rows is None or bad is None:
            return None
        if fault := self._row_fault(images, rows, bad):
            result.find(What.INPUT, self.name, f"{self.name}: {fault}")
            return None
        result.findings += self._entry_findings(rows, bad)
        result.counts["rejects"] += self.live(bad).num_rows
        return rows

    def live(self, table: pa.Table) -> pa.Table:
        """The rows of the images that are not removed."""
        return self.removed.filter(self.pack_name, table)

    def _read(self, what: str, place: Place, schema: pa.Schema, sha256: str) -> pa.Table | None:
        """A table; None, and a finding, if it is not the one that was written, or was written with a defect."""
        name, defect = (self.pack_name, What.LIST) if what == What.LIST else (self.name, What.INPUT)
        if not self.result.require_sha256(what, name, place, sha256):
            return None
        return self.result.read(defect, name, place, schema)

    def _check_file(self, what: What, place: Place, sha256: str | None, table: pa.Table | None) -> None:
        """A file against its SHA-256 (None: checked elsewhere), and against the table of what is in it (None: not
        known).
        """
        name, defect = (self.pack_name, What.LIST) if what == What.PACK else (self.name, What.INPUT)
        defect = defect if sha256 else what
        fault = _records_fault if what == What.PART else _images_fault
        is_written = sha256 is None or self.result.require_sha256(what, name, place, sha256)
        if is_written and table is not None and (line := fault(place, table)):
            self.result.find(defect, name, line)

    def _list_findings(self, images: pa.Table) -> Iterator[Finding]:
        """The list of the pack against its own facts, the table of removed images, and the marker of the packs."""
        name, facts = self.pack_name, parquet_tables.facts_of(images)
        removed = self.removed.number(name)
        due = facts | {"name": name, "images": images.num_rows}
        others = (pack for pack in pc.unique(images["pack"]).to_pylist() if pack != name)
        found = [*differences(due, facts, "its facts"), *(f"it has an image of {pack}" for pack in others)]
        yield from (Finding(What.LIST, name, f"the list of {name}: {line}") for line in found[:1])
        if images.num_rows - self.live(images).num_rows != removed:
            yield Finding(What.REMOVED, name, f"the table of removed images has some that {name} does not have")
        if self.pack is not None and not found:
            due |= {"list_sha256": self.part["list_sha256"], "removed": removed}
            yield from (marker_fault(line, RAW_DATASET) for line in differences(due, self.pack, name))

    def _row_fault(self, images: pa.Table | None, rows: pa.Table, rejects: pa.Table) -> str | None:
        """Why ``images``, those of the pack (None if its list is damaged), are not the good ones and the rejects of the
        part, or these do not give the facts in the table of rows, or pixels are impossible; None if all is right.
        """
        if images is not None:
            own = pa.concat_tables([table.select(schemas.IMAGE_COLUMNS) for table in (rows, rejects)]).sort_by("key")
            if line := table_difference(images.select(schemas.IMAGE_COLUMNS).sort_by("key"), own):
                counts = f"{len(images)} images of {self.pack_name}, {len(rows)} good + {len(rejects)} rejects"
                return f"{counts}, by key: {line}"
        facts = parquet_tables.facts_of(rows)
        try:
            due = self._facts(facts, rows, rejects)
        except (KeyError, TypeError, AttributeError):
            return "its rows have no facts"
        return next(differences(due, facts, "its facts"), None) or _pixel_fault(rows, self.image)

    def _entry_findings(self, rows: pa.Table, rejects: pa.Table) -> Iterator[Finding]:
        """What the marker of the normalised images records of the part, against rows and rejects without a fault."""
        due = parquet_tables.facts_of(rows) | {"removed": self.removed.number(self.pack_name)}
        due |= {name: self.part[name] for name in ("rows_sha256", "limits") if name in self.part}
        if due["removed"]:
            due["live"] = _counts(self.live(rows), self.live(rejects), self.part.get("live", {}).get("examples", {}))
        yield from (marker_fault(line, DATASET) for line in differences(due, self.part, self.name))

    def _facts(self, facts: Entry, rows: pa.Table, rejects: pa.Table) -> dict[str, Any]:
        """The facts that a part of these rows has; of ``facts``, hashes, and how many classes there were, are taken."""
        own = {} if self.pack is None else replace(Origin.of_pack(self.pack), part=self.name).to_json()
        due = {**facts, **own, "input": rows.num_rows + rejects.num_rows, **_counts(rows, rejects, facts["examples"])}
        if rejects.num_rows:
            due["rejects"] |= {name: facts["rejects"][name] for name in ("sha256", "list_sha256")}
        return due


def _counts(rows: pa.Table, rejects: pa.Table, examples: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """`part_facts` for as many classes as ``examples`` has, or more if there are such labels."""
    classes = max(map(len, examples.values()), default=0)
    return part_facts(rows, rejects, max(classes, 1 + (pc.max(rows["label"]).as_py() or 0)))


def _count_images(result: LineResult, live: pa.Table) -> None:
    result.live.update({"images": live.num_rows, "bytes": sum(live["size"].to_pylist())})
    for name in ("label", "split"):
        counted = live[name].value_counts().to_pylist()
        result.live.update({f"{name} {each['values']}": each["counts"] for each in counted})


def _pixel_fault(rows: pa.Table, image: Entry) -> str | None:
    """Why sizes or sums of pixels cannot be; only decoding the images could compare them."""
    for name in ("height", "width"):
        sides, of_source = (set(rows[each].to_pylist()) for each in (name, f"source_{name}"))
        if min(sides | of_source, default=1) < 1 or (sides - {image[name]} and image[name] is not None):
            return f"a row has another {name} than its images have"
    values = (rows[name].to_pylist() for name in ("key", "height", "width", "sums", "squares"))
    for key, height, width, *counted in zip(*values, strict=True):
        is_whole = all(len(each) == image["channels"] and None not in each for each in counted)
        if not is_whole or not all(_is_possible(height * width, *pair) for pair in zip(*counted, strict=True)):
            return f"{key} has sums of pixels that no image has"
    return None


def _is_possible(pixels: int, total: int, squares: int) -> bool:
    """True if so many values from 0 to 255 can have this sum and this sum of squares."""
    return 0 <= total <= squares <= 255 * total and total * total <= squares * pixels and (total - squares) % 2 == 0


def _records_fault(place: Place, rows: pa.Table) -> str | None:
    """Why the records of a part, in this file, are not those of its rows (`RECORD_COLUMNS`), if so."""
    expected = zip(*(rows[name].to_pylist() for name in RECORD_COLUMNS), strict=True)
    try:
        with place.open_stream() as stream:
            for record in read_records(stream, str(place)):
                found = parse(record.data)
                facts = (found.key, found.label, found.width, found.height, record.offset, record.size, record.crc32c)
                if next(expected, None) != facts:
                    return f"{place} at offset {record.offset}: {found.key} is not as in its rows"
    except DataError as error:
        return str(error)
    left = next(expected, None)
    return f"{place} has no {left[0]}, which its rows have" if left else None


def _images_fault(place: Place, images: pa.Table) -> str | None:
    """Why a pack, a file of the source or the file of rejects does not have the images of its list, if so."""
    facts = parquet_tables.facts_of(images)
    column, total = facts.get("column"), facts.get("bytes")
    if total not in (None, size := place.info().size):
        return f"{place} has {size} bytes, its list records {total}" if size is not None else f"{place} is missing"
    starts, ends = images["offset"], pc.add(images["offset"], images["size"])
    if column is None and pc.any(pc.or_(pc.less(ends, starts), pc.greater(ends, size))).as_py():
        return f"the list of {place} has an image outside of it"
    try:
        contents = read_images(place, images.to_pylist(), "put the original back", column, most_bytes=READ_BUFFER_BYTES)
        for _, content in contents:
            if not isinstance(content, bytes):
                deque(content, maxlen=0)  # its SHA-256 is known behind its last piece
    except (EnvironmentFailure, MemoryError):
        raise
    except (RingsliceError, pa.ArrowException, ValueError, IndexError, OSError) as error:
        return f"{place} does not match its list: {str(error).splitlines()[0]}"
    return None
