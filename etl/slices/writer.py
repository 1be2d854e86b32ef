"""Slices: TFRecord files of examples with an index beside each, and the tables about them."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.example import ImageExample, parse
from etl.formats.records import Record, frame, index_bytes, read_records
from etl.partition.shares import worker_of
from etl.slices.manifest import work_table
from etl.storage.atomic import publish_bytes, publish_stream
from etl.storage.place import Place

# A block is a run of neighbouring records: the unit of reading, of checking and of the shuffle of an epoch.
BLOCK_BYTES = 1 << 20
BLOCK_RECORDS = 256

# A serialized example, the part that it came from, and the SHA-256 (32 bytes) of its source image.
SourcedExample = tuple[bytes, str, bytes]


def slice_names(slices: dict[str, int], workers: int = 1, groups: int = 1) -> list[tuple[str, str]]:
    """(split, name) of every slice, numbered through, for so many slices by split.

    A name is the path of a slice below its manifest, without an ending: ``train/train-00002-of-00008``. With several
    ``groups`` of workers the training split's slices lie in folders by group and worker.
    """
    names = []
    for split, count in slices.items():
        for number in range(count):
            folder = split
            if groups > 1 and split == "train":
                group, worker = worker_of(number, workers, groups)
                folder = f"{split}/group-{group}/worker-{worker}"
            names.append((split, f"{folder}/{split}-{number:05d}-of-{count:05d}"))
    return names


def order_key(key: str, seed: int) -> bytes:
    """Where an example comes within its slice: 32 hexadecimal digits of BLAKE2b (RFC 7693) over seed and key."""
    return hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).hexdigest().encode()


class SliceScan:
    """What follows from the records of a slice, in order: its rows, blocks, index and facts.

    A slice that is written and one that is read give the same. ``kinds`` are examples that differ in more than key and
    image, without these, each with the key of its first.
    """

    def __init__(self, split: str, name: str) -> None:
        self.split, self.name = split, name
        self.size_bytes = 0
        self.kinds: dict[ImageExample, str] = {}
        self._rows = parquet_tables.TableBuilder(schemas.EXAMPLES)
        self._labels: Counter[int] = Counter()
        self._blocks: list[dict[str, Any]] = []

    def add(self, record: Record, example: ImageExample, source: tuple[str, bytes] | None) -> None:
        """Add the next record, and the example in it; ``source``, if known: its part, and its image's SHA-256."""
        row = {"key": example.key, "label": example.label, "split": self.split, "slice": self.name}
        row |= {"offset": record.offset, "size": record.size, "crc32c": record.crc32c}
        row |= {"width": example.width, "height": example.height}
        row["source"], row["sha256"] = source or (None, None)
        self._add_to_block(record)
        self._rows.add(row)
        self._labels[example.label] += 1
        self.kinds.setdefault(replace(example, key="", encoded=b""), example.key)
        self.size_bytes += record.size

    def _add_to_block(self, record: Record) -> None:
        block = self._blocks[-1] if self._blocks else None
        if block is None or block["records"] >= BLOCK_RECORDS or block["size"] + record.size > BLOCK_BYTES:
            block = {"slice": self.name, "first": self._rows.rows, "records": 0}
            block |= {"offset": record.offset, "size": 0, "crc32c": 0}
            self._blocks.append(block)
        block["records"] += 1
        block["size"] += record.size
        block["crc32c"] = crc32c(record.framed, block["crc32c"])

    @property
    def records(self) -> int:
        """The number of records so far."""
        return self._rows.rows

    def rows(self) -> pa.Table:
        """`schemas.EXAMPLES`."""
        return self._rows.table()

    def blocks(self) -> pa.Table:
        """`schemas.BLOCKS`: runs of at most `BLOCK_BYTES` and `BLOCK_RECORDS`, at least one record each."""
        return parquet_tables.table_of(schemas.BLOCKS, self._blocks)

    def facts(self, sha256: str) -> dict[str, Any]:
        """What is recorded of a slice whose file has this SHA-256."""
        return {
            "split": self.split,
            "name": self.name,
            "records": self.records,
            "blocks": len(self._blocks),
            "bytes": self.size_bytes,
            "sha256": sha256,
            "by_label": {str(label): count for label, count in sorted(self._labels.items())},
        }


def index_of(rows: pa.Table) -> bytes:
    """The index of the slice that has these rows (columns offset and size)."""
    return index_bytes(rows["offset"].to_pylist(), rows["size"].to_pylist())


def write_slice(
    folder: Place, staging: Place, planned: tuple[str, str, int], examples: Iterable[SourcedExample]
) -> dict[str, Any]:
    """Publish one slice of ``examples`` in their order: its file, its index, then its rows and facts.

    ``planned`` are its split, its name and how many examples it is to have; what is written lies in the folder
    ``staging`` until it is published. Returns the facts.

    Raises DataError if there are not as many as planned.
    """
    split, name, expected = planned
    scan = SliceScan(split, name)
    with publish_stream(folder / f"{name}.tfrecord", staging) as output:
        for data, part, sha256 in examples:
            framed, crc = frame(data)
            scan.add(Record(scan.size_bytes, data, crc, framed), parse(data), (part, sha256))
            output.write(framed)
        if scan.records != expected:
            raise DataError(f"slice {name} got {scan.records} of {expected} examples; run again with --overwrite")
    rows, facts = scan.rows(), scan.facts(output.sha256)
    publish_bytes(folder / f"{name}.idx", staging, index_of(rows))
    parquet_tables.write_table(work_table(folder, "blocks", name), staging, scan.blocks())
    parquet_tables.write_table(work_table(folder, "slices", name), staging, rows, facts)
    return facts


def scan_slice(folder: Place, split: str, name: str) -> tuple[SliceScan, str]:
    """Read a slice below ``folder``, front to back; returns what follows from its records, and its SHA-256.

    Memory goes with the number of examples. Raises DataError for a record that is damaged or not an example,
    FileNotFoundError.
    """
    scan, place, digest = SliceScan(split, name), folder / f"{name}.tfrecord", hashlib.sha256()
    with place.open_stream() as stream:
        for record in read_records(stream, str(place)):
            digest.update(record.framed)
            try:
                scan.add(record, parse(record.data), None)
            except DataError as error:
                raise DataError(f"{place} at offset {record.offset}: {error}") from None
    return scan, digest.hexdigest()
