"""Parts: what becomes of one pack when it is normalised. A part is named by its pack, never by the task that made it.

``parts/PART.tfrecord`` holds the good images as examples, ``parts/PART.parquet`` a row for each, and only where there
are any, ``rejects/PART.tar`` the bytes of the unusable ones and ``rejects/PART.parquet`` their list. The table of rows
is published last: a part exists when its rows do, and its facts stand in their metadata.

A part is called like its pack. Where rejects of it were tried again, and something came of that, the part is made
once more as PACK.1, then PACK.2 (see `mapreduce.normalize`); its facts then say its ``pack``.

Parts never change; which of their rows are removed, because the source has their images no more or not like that, is in
a table that the markers of ``raw`` and ``normalized`` name. The others are *live*. A row is removed for good.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.records import Record, open_record, read_records
from etl.raw.packs import RemovedRows, content_sha256
from etl.sources.base import Content
from etl.storage.place import READ_BUFFER_BYTES, Place

LocalFile = pa.OSFile  # for the jobs, which import no pyarrow


def pack_of(part: Mapping[str, Any]) -> str:
    """The name of the pack that a part was made of; ``part`` are its facts, or its entry in a marker."""
    name: str = part.get("pack", part["part"])
    return name


@dataclass(frozen=True)
class Origin:
    """What a part is called, and of which bytes it is made: SHA-256 of its pack and of the pack's list, hexadecimal.

    ``file`` is the URI of a pack that is the source's own file.
    """

    part: str
    pack: str
    pack_sha256: str
    list_sha256: str
    file: str | None = None

    @classmethod
    def of_pack(cls, pack: Mapping[str, Any]) -> Self:
        """The first part of a pack, as raw's marker lists it."""
        return cls(pack["name"], pack["name"], pack["sha256"], pack["list_sha256"], pack.get("file"))

    @classmethod
    def of_part(cls, part: Mapping[str, Any]) -> Self:
        """A part that is there."""
        return cls(part["part"], pack_of(part), part["pack_sha256"], part["list_sha256"], part.get("file"))

    def next(self) -> Self:
        """The part that takes the place of this one."""
        number = int(self.part.removeprefix(self.pack).removeprefix(".") or 0)
        return replace(self, part=f"{self.pack}.{number + 1}")

    def to_json(self) -> dict[str, Any]:
        """As the part's facts have it."""
        own = {"part": self.part} | ({"pack": self.pack} if self.pack != self.part else {})
        own |= {"file": self.file} if self.file else {}
        return own | {"pack_sha256": self.pack_sha256, "list_sha256": self.list_sha256}


def rows_place(normalized: Place, part: str) -> Place:
    """The table of a part's good images, a row for each."""
    return normalized / "parts" / f"{part}.parquet"


def records_place(normalized: Place, part: str) -> Place:
    """The TFRecord file of a part's good images."""
    return normalized / "parts" / f"{part}.tfrecord"


def rejects_places(normalized: Place, part: str) -> tuple[Place, Place]:
    """The tar file of a part's rejects, and their list."""
    return normalized / "rejects" / f"{part}.tar", normalized / "rejects" / f"{part}.parquet"


def read_images(
    file: Place, images: Sequence[dict[str, Any]], remedy: str, column: str | None = None, *, most_bytes: int
) -> Iterator[tuple[dict[str, Any], Content]]:
    """The bytes of images in a file, front to back; each has its ``key``, ``offset``, ``size`` and ``sha256``.

    The file is a tar file, or a Parquet file with the images in ``column``, whose rows the offsets are then. A member
    of a tar file of more than ``most_bytes`` comes in pieces, to be taken before the next image is asked for, or left.

    Raises DataError, with the ``remedy``, if they are not those.
    """
    contents = _read_members(file, images, most_bytes) if column is None else _read_rows(file, images, column)
    for image in images:
        try:
            content = next(contents, b"")
        except FileNotFoundError:
            raise DataError(f"{file} is missing; {remedy}") from None
        where = f"{'offset' if column is None else 'row'} {image['offset']}"
        damaged = DataError(f"{file} is damaged at {where} ({image['key']}); {remedy}")
        if not isinstance(content, bytes):
            content = _checked(content, image["sha256"], damaged)
        elif content_sha256(content) != image["sha256"]:
            raise damaged
        yield image, content


def _checked(content: Iterator[bytes], sha256: bytes, damaged: DataError) -> Iterator[bytes]:
    """The pieces. Raises ``damaged`` behind the last if they are not those of this SHA-256."""
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
        yield piece
    if digest.digest() != sha256:
        raise damaged


def _read_members(tar: Place, images: Sequence[dict[str, Any]], most_bytes: int) -> Iterator[Content]:
    with tar.open_input() as file:
        stream, end = io.BufferedReader(file, READ_BUFFER_BYTES), file.size()
        for image in images:
            stream.seek(min(image["offset"], end))  # HDFS cannot seek behind the end
            is_whole = image["size"] <= most_bytes
            yield stream.read(image["size"]) if is_whole else _pieces(stream, image["size"])


def _pieces(stream: io.BufferedReader, size: int) -> Iterator[bytes]:
    """The next ``size`` bytes, or fewer where the file ends."""
    for start in range(0, size, READ_BUFFER_BYTES):
        yield stream.read(min(READ_BUFFER_BYTES, size - start))


def _read_rows(file: Place, images: Iterable[dict[str, Any]], column: str) -> Iterator[bytes]:
    from etl.sources.parquet_columns import read_cells  # most packs are tar files

    return (cell or b"" for cell in read_cells(file, column, [image["offset"] for image in images]))


def part_facts(rows: pa.Table, rejects: pa.Table, classes: int) -> dict[str, Any]:
    """What a part's good images (columns size, split, label) and its rejects (column reason) count up to.

    ``records``, ``bytes``, ``rejects`` (count, by_reason), and ``examples``: by the source's split ('' where it gave
    none), then by label.
    """
    examples: dict[str, list[int]] = {}
    for split, label in zip(rows["split"].to_pylist(), rows["label"].to_pylist(), strict=True):
        examples.setdefault(split or "", [0] * classes)[label] += 1
    by_reason = Counter(rejects["reason"].to_pylist())
    return {
        "records": rows.num_rows,
        "bytes": sum(rows["size"].to_pylist()),
        "rejects": {"count": rejects.num_rows, "by_reason": dict(sorted(by_reason.items()))},
        "examples": dict(sorted(examples.items())),
    }


def read_rows(normalized: Place, part: str, columns: list[str], sha256: str | None = None) -> pa.Table:
    """The rows of a part, in its order.

    Raises DataError if they are missing or damaged, or if ``sha256``, in hexadecimal, is not that of their table.
    """
    place = rows_place(normalized, part)
    rows = parquet_tables.read_table(place, columns, part_remedy(normalized.parent))
    if sha256 is not None:
        require_recorded(place, sha256)
    return rows


def require_recorded(place: Place, sha256: str) -> None:
    """Raise DataError if a file has not the SHA-256 that is recorded of it, in hexadecimal."""
    if place.sha256() != sha256:
        raise DataError(
            f"{place} is not as it was written, or another run has replaced it meanwhile; run again, or look with:"
            " ringslice verify ROOT --every-stage"
        )


def part_remedy(root: Place) -> str:
    """What to do if a part is missing or damaged."""
    return (
        f"put it back, or run: ringslice verify {root} --repair"
        f" (if nothing was sharded yet: ringslice normalize {root} --overwrite, with the same options)"
    )


def read_part(normalized: Place, part: str, rows: pa.Table) -> Iterator[Record]:
    """The records of a part, in the order of its ``rows`` (columns key, size and crc32c).

    Raises DataError if the records are not those of the rows.
    """
    place = records_place(normalized, part)
    with explain_part_errors(place), place.open_stream() as stream:
        records = read_records(stream, str(place))
        for key, size, crc in zip(*(rows[name].to_pylist() for name in ("key", "size", "crc32c")), strict=True):
            record = next(records, None)
            if record is None or (record.size, record.crc32c) != (size, crc):
                raise DataError(f"{place} does not contain the example {key} of its rows")
            yield record


def read_record(place: Place, offset: int, size: int) -> Record:
    """The record that these bytes of a file are; nothing else is read. Raises DataError if it is not there, whole."""
    with place.open_input() as file:
        framed = file.read_at(size, offset) if offset + size <= file.size() else b""  # HDFS cannot seek behind the end
    return open_record(framed, offset, str(place))


@contextmanager
def explain_part_errors(place: Place) -> Iterator[None]:
    """Add what to do to a DataError about the records of a part in ``place``; that they are missing is one, too.

    A failure of the storage names the file.
    """
    remedy = part_remedy(place.parent.parent.parent)
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{place} is missing; {remedy}") from None
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None
    except OSError as error:
        if error.errno:  # one without a number shows nothing but its text
            error.filename = str(place)
        raise


def live_rows(normalized: Place, part: Mapping[str, Any], removed: RemovedRows, columns: list[str]) -> pa.Table:
    """These columns of the rows of a part that are live, in its order. ``part`` is its entry in the marker."""
    if not part["removed"]:
        return read_rows(normalized, part["part"], columns)
    rows = read_rows(normalized, part["part"], list(dict.fromkeys(["key", *columns])))
    return removed.filter(pack_of(part), rows).select(columns)


def live_facts(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """``records``, ``bytes``, ``rejects`` (count, by_reason) and ``examples`` of a part, of its live images alone."""
    live: Mapping[str, Any] = part.get("live", part)
    return live


def read_entry(normalized: Place, origin: Origin, images: int, removed: RemovedRows, classes: int) -> dict[str, Any]:
    """The marker's entry of the part that a job has made of ``origin``, a pack of so many ``images``.

    Raises DataError if it is missing, or was made of other images.
    """
    rows = rows_place(normalized, origin.part)
    if not rows.exists():
        raise DataError(f"{rows} is missing though the job ended; run again")
    facts = parquet_tables.read_facts(rows)
    if facts | origin.to_json() | {"input": images} != facts:
        raise DataError(f"{rows} was made from other images; normalize again with --overwrite")
    return with_live(normalized, facts | {"rows_sha256": rows.sha256()}, removed, classes)


def with_live(normalized: Place, part: Mapping[str, Any], removed: RemovedRows, classes: int) -> dict[str, Any]:
    """The entry of a part, with how many of its images are removed, and what the others count up to if some are."""
    pack = pack_of(part)
    entry = {name: value for name, value in part.items() if name != "live"} | {"removed": removed.number(pack)}
    if not entry["removed"]:
        return entry
    rejects = schemas.REJECTS.empty_table()
    if part["rejects"]["count"]:
        remedy, place = part_remedy(normalized.parent), rejects_places(normalized, part["part"])[1]
        listed = parquet_tables.read_table(place, ["key", "reason"], remedy)
        rejects = removed.filter(pack, listed)
    rows = live_rows(normalized, entry, removed, ["split", "label", "size"])
    return entry | {"live": part_facts(rows, rejects, classes)}


def count_live_images(parts: Iterable[Mapping[str, Any]], classes: int) -> dict[str, Any]:
    """What the marker counts of the live images of all ``parts``, its entries.

    Raises ValueError if a part has more classes; one that was made when there were fewer has none of the later ones.
    """
    reasons: Counter[str] = Counter()
    by_class = np.zeros(classes, dtype=np.int64)
    good = size_bytes = 0
    for part in parts:
        live = live_facts(part)
        good, size_bytes = good + live["records"], size_bytes + live["bytes"]
        reasons.update(live["rejects"]["by_reason"])
        for counts in live["examples"].values():
            by_class[: len(counts)] += np.asarray(counts, dtype=np.int64)
    rejects = reasons.total()
    return {
        "input": good + rejects,
        "good": good,
        "rejects": rejects,
        "rejects_by_reason": dict(sorted(reasons.items())),
        "bytes": size_bytes,
        "by_class": by_class.tolist(),
    }
