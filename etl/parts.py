"""Parts: what becomes of one pack when it is normalised. A part is named by its pack, never by the task that made it.

``parts/PART.tfrecord`` holds the good images as examples, ``parts/PART.parquet`` a row for each, and only where there
are any, ``rejects/PART.tar`` the bytes of the unusable ones and ``rejects/PART.parquet`` their list. The table of rows
is published last: a part exists when its rows do, and its facts stand in their metadata.

A part is called like its pack. Where rejects of it were tried again, and something came of that, the part is made
once more as PACK.1, then PACK.2 (see `etl.retried`); its facts then say its ``pack``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from etl import tables
from etl.config import NormalizeConfig
from etl.errors import DataError
from etl.example import ImageExample, serialize
from etl.image_helper import ImageHelper
from etl.normalized import Normalized
from etl.packs import TarWriter, content_sha256, list_place, pack_place
from etl.publishing import OutputFile, publishing
from etl.records import Record, frame, read_records
from etl.rejects import Reject
from etl.storage import READ_BUFFER_BYTES, Place

PART_FOLDERS = ("parts", "rejects")

Row = dict[str, Any]


def pack_of(part: Mapping[str, Any]) -> str:
    """The name of the pack that a part was made of; ``part`` are its facts, or what a marker says of it."""
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
        """The first part of a pack, which is what raw's marker tells of it."""
        return cls(pack["name"], pack["name"], pack["sha256"], pack["list_sha256"], pack.get("file"))

    @classmethod
    def of_part(cls, part: Mapping[str, Any]) -> Self:
        """A part that is there."""
        return cls(part["part"], pack_of(part), part["pack_sha256"], part["list_sha256"], part.get("file"))

    def next(self) -> Self:
        """The part that takes the place of this one."""
        number = int(self.part.removeprefix(self.pack).removeprefix(".") or 0)
        return replace(self, part=f"{self.pack}.{number + 1}")

    def to_json(self) -> Row:
        """As the part's facts have it."""
        own = {"part": self.part} | ({"pack": self.pack} if self.pack != self.part else {})
        own |= {"file": self.file} if self.file else {}
        return own | {"pack_sha256": self.pack_sha256, "list_sha256": self.list_sha256}


def rows_place(normalized: Place, part: str) -> Place:
    return normalized / "parts" / f"{part}.parquet"


def records_place(normalized: Place, part: str) -> Place:
    return normalized / "parts" / f"{part}.tfrecord"


def rejects_places(normalized: Place, part: str) -> tuple[Place, Place]:
    """The tar file of a part's rejects, and their list."""
    return normalized / "rejects" / f"{part}.tar", normalized / "rejects" / f"{part}.parquet"


def part_files(marker: Mapping[str, Any]) -> Iterator[str]:
    """The files that a marker of ``normalized`` names in `PART_FOLDERS`, as paths below it."""
    for part in marker["parts"]:
        yield from (f"parts/{part['part']}.tfrecord", f"parts/{part['part']}.parquet")
        if part["rejects"]["count"]:
            yield from (f"rejects/{part['part']}.tar", f"rejects/{part['part']}.parquet")


@dataclass
class PartWriter:
    """Takes a pack's images one by one: the good ones go to ``records``, and all are remembered."""

    config: NormalizeConfig
    classes: Sequence[str]
    records: OutputFile
    rows: list[Row] = field(default_factory=list)
    rejects: list[tuple[Row, bytes]] = field(default_factory=list)

    def add(self, image: Row, data: bytes, result: Normalized | Reject) -> None:
        """Add an image, and what became of it; of ``image`` what the pack's list tells is taken."""
        known = {name: image[name] for name in ("key", "sha256", "label", "split", "columns")}
        if isinstance(result, Reject):
            self.rejects.append((known | {"reason": result.reason.value, "detail": result.detail}, data))
            return
        record, crc = frame(serialize(self._example(image, result)))
        row = {
            "offset": self.records.size_bytes,
            "size": len(record),
            "crc32c": crc,
            "width": result.width,
            "height": result.height,
            "source_format": result.source_format,
            "source_width": result.source_width,
            "source_height": result.source_height,
            "sums": result.sums,
            "squares": result.squares,
        }
        self.rows.append(known | row)
        self.records.write(record)

    def keep(self, row: Row, record: Record) -> None:
        """Add a good image of an earlier part of this pack, as it is."""
        self.rows.append(row | {"offset": self.records.size_bytes})
        self.records.write(record.framed)

    def publish(self, normalized: Place, attempts: Place, origin: Origin) -> Row:
        """Publish rejects and rows, once the records are published; returns the part's facts."""
        facts = {
            **origin.to_json(),
            "input": len(self.rows) + len(self.rejects),
            "records": len(self.rows),
            "bytes": self.records.size_bytes,
            "sha256": self.records.sha256,
            "rejects": _publish_rejects(normalized, attempts, origin.part, self.rejects),
            "examples": count_by_split_and_label(
                ((row["split"], row["label"]) for row in self.rows), len(self.classes)
            ),
        }
        rows = tables.table_of(tables.ROWS, self.rows)
        tables.write_table(rows_place(normalized, origin.part), attempts, rows, facts)
        return facts

    def _example(self, image: Row, result: Normalized) -> ImageExample:
        config = self.config
        return ImageExample(
            key=image["key"],
            label=image["label"],
            text=self.classes[image["label"]],
            format=config.format.upper(),
            height=result.height,
            width=result.width,
            channels=config.channels,
            encoded=result.encoded,
        )


def normalize_pack(
    raw: Place,
    normalized: Place,
    origin: Origin,
    helper: ImageHelper,
    *,
    classes: Sequence[str],
    attempts: Place,
    report: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Normalise every image of a pack and publish its part; returns the part's facts. A part that exists is kept.

    By the SHA-256 in ``origin`` the part knows later what it was made of. The facts never change, whatever is removed
    from the source. What is written lies in the folder ``attempts`` until it is published. ``report`` is told how many
    images are done, after each.

    Raises DataError where the pack does not hold what its image list says.
    """
    rows_file = rows_place(normalized, origin.part)
    if rows_file.exists():
        return tables.read_facts(rows_file)
    listed, file = list_place(raw, origin.pack), pack_place(raw, origin.pack, origin.file)
    images = tables.read_table(listed).to_pylist()
    column = tables.read_facts(listed).get("column")
    remedy = "put the original back, or ingest again" if origin.file else "ingest again with --overwrite"
    with publishing(records_place(normalized, origin.part), attempts) as records:
        part = PartWriter(helper.config, classes, records)
        for done, (image, data) in enumerate(read_images(file, images, remedy, column), start=1):
            part.add(image, data, helper.normalize(data))
            report(done)
    return part.publish(normalized, attempts, origin)


def read_images(
    file: Place, images: Sequence[Row], remedy: str, column: str | None = None
) -> Iterator[tuple[Row, bytes]]:
    """The bytes of images in a file, front to back; each tells its ``key``, ``offset``, ``size`` and ``sha256``.

    The file is a tar file, or a Parquet file with the images in ``column``, whose rows the offsets are then.

    Raises DataError, with the ``remedy``, where they are not those.
    """
    contents = _read_members(file, images) if column is None else _read_rows(file, images, column)
    for image in images:
        try:
            data = next(contents, b"")
        except FileNotFoundError:
            raise DataError(f"{file} is missing; {remedy}") from None
        if content_sha256(data) != image["sha256"]:
            raise DataError(f"{file} is damaged or another at {image['offset']} ({image['key']}); {remedy}")
        yield image, data


def _read_members(tar: Place, images: Iterable[Row]) -> Iterator[bytes]:
    with tar.open_stream() as stream:
        position = 0
        for image in images:
            for start in range(position, image["offset"], READ_BUFFER_BYTES):  # headers, members that are no images
                stream.read(min(READ_BUFFER_BYTES, image["offset"] - start))
            yield stream.read(image["size"])
            position = image["offset"] + image["size"]


def _read_rows(file: Place, images: Iterable[Row], column: str) -> Iterator[bytes]:
    from etl.sources.parquet_files import read_cells  # most packs are tar files

    return (cell or b"" for cell in read_cells(file, column, [image["offset"] for image in images]))


def _publish_rejects(normalized: Place, attempts: Place, part: str, rejects: list[tuple[Row, bytes]]) -> dict[str, Any]:
    """Publish the rejects of a part, where there are any; returns counts by reason and SHA-256 of their files."""
    if not rejects:
        return {"count": 0, "by_reason": {}}
    tar_file, list_file = rejects_places(normalized, part)
    rows = []
    with publishing(tar_file, attempts) as output:
        tar = TarWriter(output)
        for row, data in rejects:
            rows.append(row | {"offset": tar.add(row["key"], data), "size": len(data)})
        tar.finish()
    listed = tables.write_table(list_file, attempts, tables.table_of(tables.REJECTS, rows))
    by_reason = Counter(row["reason"] for row in rows)
    return {
        "count": len(rows),
        "by_reason": dict(sorted(by_reason.items())),
        "sha256": output.sha256,
        "list_sha256": listed.sha256,
    }


def count_by_split_and_label(examples: Iterable[tuple[str | None, int]], classes: int) -> dict[str, list[int]]:
    """Examples by the source's split ('' where it gave none), then by label."""
    counts: dict[str, list[int]] = {}
    for split, label in examples:
        counts.setdefault(split or "", [0] * classes)[label] += 1
    return dict(sorted(counts.items()))


def read_rows(normalized: Place, part: str, columns: list[str]) -> pa.Table:
    """The rows of a part, in its order."""
    return tables.read_table(rows_place(normalized, part), columns)


def read_part(normalized: Place, part: str, rows: pa.Table) -> Iterator[Record]:
    """The records of a part, in the order of its ``rows`` (columns key, size and crc32c).

    Raises DataError where the records are not those that the rows tell of.
    """
    place = records_place(normalized, part)
    with place.open_stream() as stream:
        records = read_records(stream, str(place))
        for key, size, crc in zip(*(rows[name].to_pylist() for name in ("key", "size", "crc32c")), strict=True):
            record = next(records, None)
            if record is None or (record.size, record.crc32c) != (size, crc):
                raise DataError(
                    f"{place} does not hold the example {key} that its rows tell of; normalize again with --overwrite"
                )
            yield record
