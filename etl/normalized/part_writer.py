"""Writing a part: images one by one, good ones as records, unusable ones as they are, and the tables of both.

In memory are the rows alone: what an image is goes to its file at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from etl.formats import parquet_tables, schemas
from etl.formats.example import ImageExample, serialize
from etl.formats.records import frame
from etl.images.config import NormalizeConfig
from etl.images.result import Normalized, Reject
from etl.images.sandbox import DecodeWorker
from etl.normalized.parts import (
    Origin,
    part_facts,
    read_images,
    records_place,
    rejects_places,
    rows_place,
)
from etl.raw.packs import Content, TarWriter, list_place, pack_place
from etl.storage.atomic import OutputFile, publishing
from etl.storage.place import Place


@dataclass
class PartWriter:
    """Takes a pack's images one by one: the good ones go to ``records``, others to what ``open_rejects`` opens.

    ``facts`` are those of the part, once it is published.
    """

    config: NormalizeConfig
    classes: Sequence[str]
    records: OutputFile
    open_rejects: Callable[[], OutputFile]
    rows: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    rejected: TarWriter | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, image: dict[str, Any], content: Content, result: Normalized | Reject) -> None:
        """Add an image, and what became of it; of ``image`` what the pack's list tells is taken."""
        known = {name: image[name] for name in ("key", "sha256", "label", "split", "columns")}
        if isinstance(result, Reject):
            self._reject(
                known | {"reason": result.reason.value, "detail": result.detail, "size": image["size"]}, content
            )
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

    def _reject(self, row: dict[str, Any], content: Content) -> None:
        if self.rejected is None:
            self.rejected = TarWriter(self.open_rejects())
        offset, _ = self.rejected.add(row["key"], content, row["size"])
        self.rejects.append(row | {"offset": offset})

    def _example(self, image: dict[str, Any], result: Normalized) -> ImageExample:
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


@contextmanager
def writing_part(
    normalized: Place, attempts: Place, origin: Origin, config: NormalizeConfig, classes: Sequence[str]
) -> Iterator[PartWriter]:
    """A part that is published when the block has ended: its files, then the lists, the table of rows last.

    What is written lies in the folder ``attempts`` until it is published.
    """
    tar_file, list_file = rejects_places(normalized, origin.part)
    opened: list[OutputFile] = []
    with ExitStack() as files:

        def open_rejects() -> OutputFile:
            opened.append(files.enter_context(publishing(tar_file, attempts)))
            return opened[0]

        records = files.enter_context(publishing(records_place(normalized, origin.part), attempts))
        part = PartWriter(config, classes, records, open_rejects)
        yield part
        if part.rejected is not None:
            part.rejected.finish()
    rows, listed = (
        parquet_tables.table_of(schema, images)
        for schema, images in ((schemas.ROWS, part.rows), (schemas.REJECTS, part.rejects))
    )
    counts = part_facts(rows, listed, len(classes))
    if opened:
        list_sha256 = parquet_tables.write_table(list_file, attempts, listed).sha256
        counts["rejects"] |= {"sha256": opened[0].sha256, "list_sha256": list_sha256}
    part.facts |= {
        **origin.to_json(),
        "input": rows.num_rows + listed.num_rows,
        "records": counts["records"],
        "bytes": counts["bytes"],
        "sha256": records.sha256,
        "rejects": counts["rejects"],
        "examples": counts["examples"],
    }
    parquet_tables.write_table(rows_place(normalized, origin.part), attempts, rows, part.facts)


def normalize_content(worker: DecodeWorker, image: dict[str, Any], content: Content) -> Normalized | Reject:
    """What becomes of an image of a pack; one that comes in pieces is larger than its limit, and is not read."""
    too_large = worker.config.limits.check_bytes(image["size"])
    if too_large is not None:
        return too_large
    assert isinstance(content, bytes)
    return worker.normalize(content)


def normalize_pack(
    raw: Place,
    normalized: Place,
    origin: Origin,
    worker: DecodeWorker,
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
        return parquet_tables.read_facts(rows_file)
    listed, file = list_place(raw, origin.pack), pack_place(raw, origin.pack, origin.file)
    table, facts = parquet_tables.read_with_facts(listed)
    images = table.to_pylist()
    remedy = "put the original back, or ingest again" if origin.file else "ingest again with --overwrite"
    with writing_part(normalized, attempts, origin, worker.config, classes) as part:
        most_bytes = worker.config.limits.size_bytes
        contents = read_images(file, images, remedy, facts.get("column"), most_bytes=most_bytes)
        for done, (image, content) in enumerate(contents, start=1):
            part.add(image, content, normalize_content(worker, image, content))
            report(done)
    return part.facts
