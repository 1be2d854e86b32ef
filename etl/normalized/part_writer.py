"""Write a part: normalize the images of a pack one by one; good ones become records, rejects are kept as they are.

Only the rows are kept in memory: an image goes to its file at once.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from etl.formats import parquet_tables, schemas
from etl.formats.example import ImageExample, serialize
from etl.formats.records import frame
from etl.images.result import NormalizedImage, Reject
from etl.images.sandbox import DecodeWorker
from etl.normalized.parts import (
    Origin,
    part_facts,
    read_images,
    records_place,
    rejects_places,
    require_recorded,
    rows_place,
)
from etl.raw.packs import NO_COPY, list_place, pack_place, write_end, write_member
from etl.sources.base import Content
from etl.storage.atomic import OutputFile, publish_stream
from etl.storage.place import Place


@dataclass
class PartWriter:
    """Normalizes images, and writes them to ``records`` or, if they are rejects, to the tar file that ``open_rejects``
    opens.
    """

    worker: DecodeWorker
    classes: Sequence[str]
    records: OutputFile
    open_rejects: Callable[[], OutputFile]
    rows: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    tar: OutputFile | None = None

    def add(self, image: dict[str, Any], content: Content) -> None:
        """Normalize and add an image of the pack's list."""
        result: NormalizedImage | Reject | None = self.worker.config.limits.check_bytes(image["size"])
        if result is None:
            assert isinstance(content, bytes)  # only one above the limit comes in pieces, and is not read
            result = self.worker.normalize(content)
        row = {name: image[name] for name in schemas.IMAGE_COLUMNS}
        if isinstance(result, Reject):
            if self.tar is None:
                self.tar = self.open_rejects()
            offset, _ = write_member(self.tar, image["key"], content, image["size"])
            reason = {"reason": result.reason.value, "detail": result.detail}
            self.rejects.append(row | reason | {"size": image["size"], "offset": offset})
            return
        example = ImageExample(
            key=image["key"],
            label=image["label"],
            text=self.classes[image["label"]],
            format=self.worker.config.format.upper(),
            height=result.height,
            width=result.width,
            channels=self.worker.config.channels,
            encoded=result.encoded,
        )
        record, crc = frame(serialize(example))
        names = ("width", "height", "source_format", "source_width", "source_height", "sums", "squares")
        facts = {name: getattr(result, name) for name in names}
        self.rows.append(row | facts | {"offset": self.records.size_bytes, "size": len(record), "crc32c": crc})
        self.records.write(record)


def normalize_pack(
    raw: Place,
    normalized: Place,
    origin: Origin,
    worker: DecodeWorker,
    *,
    classes: Sequence[str],
    staging: Place,
    report: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Normalize every image of a pack and publish its part; returns the part's facts. A part that exists is kept.

    The files are written to the folder ``staging``, and published in this order: images, list of rejects, rows. The
    facts contain the SHA-256 of ``origin``, and never change, whatever is removed from the source. ``report`` is called
    after each image with the number of images that are done.

    Raises DataError if the pack does not have the images of its list.
    """
    rows_file = rows_place(normalized, origin.part)
    if rows_file.exists():
        return parquet_tables.read_facts(rows_file)
    tar_place, list_file = rejects_places(normalized, origin.part)
    images = parquet_tables.read_table(list_place(raw, origin.pack), remedy=NO_COPY)
    require_recorded(list_place(raw, origin.pack), origin.list_sha256)
    remedy = "put the original back, or ingest again" if origin.file else "ingest again with --overwrite"
    with ExitStack() as files:
        records = files.enter_context(publish_stream(records_place(normalized, origin.part), staging))
        part = PartWriter(worker, classes, records, lambda: files.enter_context(publish_stream(tar_place, staging)))
        contents = read_images(
            pack_place(raw, origin.pack, origin.file),
            images.to_pylist(),
            remedy,
            parquet_tables.facts_of(images).get("column"),
            most_bytes=worker.config.limits.size_bytes,
        )
        for done, (image, content) in enumerate(contents, start=1):
            part.add(image, content)
            report(done)
        if part.tar is not None:
            write_end(part.tar)
    rows = parquet_tables.table_of(schemas.ROWS, part.rows)
    rejects = parquet_tables.table_of(schemas.REJECTS, part.rejects)
    counts = part_facts(rows, rejects, len(classes))
    if part.tar is not None:
        list_sha256 = parquet_tables.write_table(list_file, staging, rejects).sha256
        counts["rejects"] |= {"sha256": part.tar.sha256, "list_sha256": list_sha256}
    facts = {
        **origin.to_json(),
        "input": rows.num_rows + rejects.num_rows,
        "records": counts["records"],
        "bytes": counts["bytes"],
        "sha256": records.sha256,
        "rejects": counts["rejects"],
        "examples": counts["examples"],
    }
    parquet_tables.write_table(rows_file, staging, rows, facts)
    return facts
