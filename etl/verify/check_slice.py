"""One slice against all that is said of it: its line in the manifest, its index, its rows in the tables.

A slice whose bytes have the SHA-256 that the manifest tells is right, and what differs from it is wrong; a slice with
another SHA-256 is wrong itself. So each finding names the file that is to be put right.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.example import ImageExample, parse, parse_facts
from etl.formats.records import ByteReader, Record, index_bytes, read_records
from etl.slices.manifest import BLOCKS_FILE, EXAMPLES_FILE
from etl.slices.writer import BlockCounter, order_key
from etl.storage.place import Place
from etl.verify.findings import INDEX, MANIFEST, SLICE, TABLE, Finding

COMPARED = ("key", "label", "split", "slice", "offset", "size", "crc32c", "width", "height")
DEALT_SCHEMA = pa.schema([schemas.EXAMPLES.field(name) for name in ("key", "label", "crc32c", "width", "height")])
BATCH_RECORDS = 4096

Told = Mapping[str, Any]


@dataclass(frozen=True)
class Rules:
    """What the manifest tells of all examples: the class of each label, ``image``, and the seed of their order."""

    classes: Sequence[str]
    image: Told
    seed: int

    def misfit(self, example: ImageExample) -> str | None:
        """What of an example is not as the manifest tells, if so."""
        image = self.image
        if not 0 <= example.label < len(self.classes) or example.text != self.classes[example.label]:
            return f"is of class {example.text}, label {example.label}"
        if (example.format, example.channels) != (image["format"], image["channels"]):
            return f"is {example.format} of {example.channels} channels"
        if (image["height"] or example.height, image["width"] or example.width) != (example.height, example.width):
            return f"is {example.height} x {example.width} pixels large"
        return None


class HashingReader:
    """Reads a stream and takes the SHA-256 of what it read."""

    def __init__(self, stream: ByteReader) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        self.size_bytes += len(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@dataclass
class SliceCheck:
    """What a look at one slice found.

    ``sound``: its bytes are those that the manifest tells of. ``agrees``: so are its rows in the table of examples.
    ``dealt`` is what it holds, or is to hold: a table with the columns of `DEALT_SCHEMA`, and sha256 and source where
    the table of examples is right; None where neither the slice nor the table can tell.
    """

    findings: list[Finding] = field(default_factory=list)
    sound: bool = False
    agrees: bool = False
    size_bytes: int = 0
    dealt: pa.Table | None = None

    @property
    def labels(self) -> Counter[int]:
        """Examples by label."""
        return Counter(self.dealt["label"].to_pylist()) if self.dealt is not None else Counter()


def check_slice(folder: Place, told: Told, rows: pa.Table | None, blocks: pa.Table | None, rules: Rules) -> SliceCheck:
    """Hold a slice below ``folder`` against its entry in the manifest and against its own part of both tables.

    ``told`` is that entry, with the slice's split.
    A table that cannot be read is None. The file is read once, front to back; memory goes with the number of examples.
    """
    check, place = SliceCheck(), folder / f"{told['name']}.tfrecord"
    reading = _Reading(str(place), told, rows, rules)
    fault = reading.read(place)
    check.size_bytes = reading.size_bytes
    check.sound = fault is None and (reading.sha256, reading.size_bytes) == (told["sha256"], told["bytes"])
    check.agrees = rows is not None and reading.difference is None and reading.records == rows.num_rows
    if check.sound:
        check.findings += _findings_of_others(told, reading, check.agrees, rows is not None, blocks)
    else:
        check.findings.append(Finding(SLICE, told["name"], fault or reading.describe(told)))
    index = _expected_index(check, reading, rows)
    if index is not None and (line := _index_fault(folder / f"{told['name']}.idx", index, place)):
        check.findings.append(Finding(INDEX, told["name"], line))
    if rows is not None and (check.agrees or not check.sound):
        check.dealt = rows
    elif check.sound:
        check.dealt = read_dealt(place)
    return check


@dataclass
class _Reading:
    """One pass over a slice; ``difference`` is the first place where it is not what ``rows`` tell,
    ``misfit`` where it is not what ``rules`` tell."""

    where: str
    told: Told
    rows: pa.Table | None
    rules: Rules
    records: int = 0
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    difference: str | None = None
    misfit: str | None = None
    last: bytes = b""
    sha256: str = ""
    size_bytes: int = 0
    _batch: list[tuple[object, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = BlockCounter(self.told["name"])

    def read(self, place: Place) -> str | None:
        """Read it all; returns why it cannot be read, if so."""
        try:
            with place.open_stream() as stream:
                reader = HashingReader(stream)
                for record in read_records(reader, self.where):
                    self._add(record)
        except FileNotFoundError:
            return f"{self.where} is missing"
        except DataError as error:
            return str(error)
        finally:
            self._compare()
        self.sha256, self.size_bytes = reader.sha256, reader.size_bytes
        return None

    def _add(self, record: Record) -> None:
        try:
            example = parse(record.data)
        except DataError as error:
            raise DataError(f"{self.where} at offset {record.offset}: {error}") from None
        self.blocks.add(record.framed, self.records, record.offset)
        self.records += 1
        self.offsets.append(record.offset)
        self.sizes.append(record.size)
        order = order_key(example.key, self.rules.seed)
        if self.misfit is None and (why := self.rules.misfit(example)):
            self.misfit = f"{example.key} {why}, which is not what the manifest tells"
        elif self.misfit is None and order < self.last:
            self.misfit = f"{example.key} is not where the seed {self.rules.seed} of the manifest orders it"
        self.last = order
        if self.rows is not None and self.difference is None:
            where = (self.told["split"], self.told["name"], record.offset, record.size, record.crc32c)
            self._batch.append((example.key, example.label, *where, example.width, example.height))
            if len(self._batch) == BATCH_RECORDS:
                self._compare()

    def _compare(self) -> None:
        """Hold the waiting records against the rows where they belong."""
        if self.rows is None or not self._batch or self.difference is not None:
            return
        first = self.records - len(self._batch)
        own = self.rows.slice(first, len(self._batch))
        theirs = list(zip(*(own[name].to_pylist() for name in COMPARED), strict=True))
        if theirs != self._batch:
            at = next((i for i, pair in enumerate(zip(self._batch, theirs, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(theirs), len(self._batch)) if at is None else at
            told = theirs[at][0] if at < len(theirs) else "none there"
            key, offset = self._batch[at][0], self._batch[at][COMPARED.index("offset")]
            self.difference = f"{self.where} at offset {offset} holds {key}, the table of examples tells of {told}"
            if told == key:
                self.difference = f"{self.where} at offset {offset}: {key} is not as the table of examples tells"
        self._batch = []

    def describe(self, told: Told) -> str:
        """How a slice that can be read differs from what the manifest tells."""
        if self.records != told["records"]:
            return f"{self.where} holds {self.records} examples, the manifest tells of {told['records']}"
        return self.difference or f"{self.where} has another SHA-256 than the one recorded"


def _findings_of_others(
    told: Told, reading: _Reading, agrees: bool, has_rows: bool, blocks: pa.Table | None
) -> list[Finding]:
    """What is wrong elsewhere, as a slice that is right shows."""
    findings = []
    if reading.records != told["records"]:
        line = f"{reading.where} holds {reading.records} examples, the manifest tells of {told['records']}"
        findings.append(Finding(MANIFEST, "manifest.json", line))
    elif has_rows and not agrees:
        findings.append(
            Finding(TABLE, EXAMPLES_FILE, reading.difference or f"{EXAMPLES_FILE} has no rows for {reading.where}")
        )
    if reading.misfit:
        findings.append(Finding(MANIFEST, "manifest.json", f"{reading.where}: {reading.misfit}"))
    if blocks is not None and not blocks.equals(parquet_tables.table_of(schemas.BLOCKS, reading.blocks.rows)):
        findings.append(
            Finding(TABLE, BLOCKS_FILE, f"{reading.where}: its blocks are not those of the table of blocks")
        )
    return findings


def _expected_index(check: SliceCheck, reading: _Reading, rows: pa.Table | None) -> bytes | None:
    if check.sound:
        return index_bytes(reading.offsets, reading.sizes)
    return index_bytes(rows["offset"].to_pylist(), rows["size"].to_pylist()) if rows is not None else None


def _index_fault(index: Place, expected: bytes, slice_place: Place) -> str | None:
    try:
        return None if index.read_bytes() == expected else f"{index} does not fit {slice_place}"
    except FileNotFoundError:
        return f"{index} is missing"


def read_dealt(place: Place) -> pa.Table:
    """What the examples in a slice are, from the slice itself: columns of `DEALT_SCHEMA`."""
    builder = parquet_tables.TableBuilder(DEALT_SCHEMA)
    with place.open_stream() as stream:
        for record in read_records(stream, str(place)):
            facts = parse_facts(record.data)
            builder.add(facts._asdict() | {"crc32c": record.crc32c})
    return builder.table()
