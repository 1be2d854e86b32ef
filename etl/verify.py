"""The command ``verify``: reads slices from the first byte to the last and holds them against all that is said of them.

Every record's CRCs, every file's SHA-256, index and tables against data, counts against the manifest, and every good
image of ``normalized`` exactly once over all slices and splits, with its label and its bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etl import tables
from etl.errors import DataError
from etl.example import parse
from etl.manifest import EXAMPLES_FILE, read_manifest
from etl.packs import pack_places
from etl.parts import read_rows, records_place, rejects_places, rows_place
from etl.progress import Progress
from etl.slices import BlockCounter
from etl.stages import Stage, normalized_stage, raw_stage, slices_stage
from etl.storage import Place
from etl.summary import Summary
from etl.tfrecord import Record, parse_index, read_records

MOST_NAMED = 10

Row = dict[str, Any]
KeyLabelCrc = tuple[str, int, int]


@dataclass
class Findings:
    """What does not hold, one line each."""

    lines: list[str] = field(default_factory=list)

    def require(self, holds: bool, line: str) -> None:
        if not holds:
            self.lines.append(line)

    def collect(self, check: Callable[[], None]) -> None:
        """Run a check that may raise; what it says becomes a finding."""
        try:
            check()
        except DataError as error:
            self.lines.append(str(error))
        except FileNotFoundError as error:
            self.lines.append(f"missing: {error}")

    def require_sha256(self, place: Place, sha256: str) -> None:
        if not place.exists():
            self.lines.append(f"{place} is missing")
        elif place.sha256() != sha256:
            self.lines.append(f"{place} has another SHA-256 than the one recorded")


@dataclass
class Multiset:
    """An order-free fingerprint of (key, label, CRC32C): their number, and their BLAKE2b hashes' sum mod 2**128."""

    number: int = 0
    total: int = 0

    def add(self, key: str, label: int, crc32c: int) -> None:
        digest = hashlib.blake2b(f"{key}\0{label}\0{crc32c}".encode(), digest_size=16).digest()
        self.total = (self.total + int.from_bytes(digest, "little")) % (1 << 128)
        self.number += 1


class HashingReader:
    """Reads a stream and takes the SHA-256 of what it read."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data: bytes = self._stream.read(size)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def verify(root: Place, name: str, every_stage: bool = False) -> Summary:
    """Check the slices called ``name``; with ``every_stage`` the bytes of packs and parts too.

    Raises UsageError where there are no such slices, DataError, with a line for each finding, where anything is wrong.
    """
    slices, normalized = slices_stage(root, name), normalized_stage(root)
    manifest, dataset = read_manifest(slices), normalized.read_marker()
    findings = Findings()
    findings.require(
        manifest["input"] == normalized.fingerprint(),
        f"{slices.marker} was made from other data than {normalized.marker} tells of; run shard again with --overwrite",
    )
    if every_stage:
        _check_packs(raw_stage(root), dataset, findings)
        _check_part_files(normalized, dataset, findings)
    _check_rows(normalized, dataset, findings)
    _check_slices(slices, manifest, findings)
    findings.collect(lambda: _check_exactly_once(slices, normalized, dataset, findings))
    if findings.lines:
        lines = "".join(f"\n  {line}" for line in findings.lines)
        raise DataError(f"{slices.folder} does not hold what is said of it, {len(findings.lines)} findings:{lines}")
    splits = manifest["splits"].values()
    facts = {
        "examples": sum(split["records"] for split in splits),
        "slices": sum(len(split["slices"]) for split in splits),
        "bytes": sum(split["bytes"] for split in splits),
        "rejects": dataset["counts"]["rejects"],
        "checked": "counts, CRCs, SHA-256, index, tables, every example exactly once",
    }
    return Summary("verify", str(slices.folder), False, facts)


def _check_packs(stage: Stage, dataset: Row, findings: Findings) -> None:
    marker = stage.read_marker()
    findings.require(
        dataset["input"] == stage.fingerprint(),
        f"the normalised images were made from other data than {stage.marker} tells of;"
        " run normalize again with --overwrite",
    )
    for pack in marker["packs"]:
        tar, listed = pack_places(stage.folder, pack["name"])
        findings.require_sha256(tar, pack["sha256"])
        findings.require_sha256(listed, pack["list_sha256"])


def _check_part_files(stage: Stage, dataset: Row, findings: Findings) -> None:
    for part in dataset["parts"]:
        findings.require_sha256(records_place(stage.folder, part["part"]), part["sha256"])
        if part["rejects"]["count"]:
            tar, listed = rejects_places(stage.folder, part["part"])
            findings.require_sha256(tar, part["rejects"]["sha256"])
            findings.require_sha256(listed, part["rejects"]["list_sha256"])


def _check_rows(stage: Stage, dataset: Row, findings: Findings) -> None:
    for part in dataset["parts"]:
        findings.require_sha256(rows_place(stage.folder, part["part"]), part["rows_sha256"])
        good, rejects = part["records"], part["rejects"]["count"]
        findings.require(
            part["input"] == good + rejects,
            f"{part['part']}: {part['input']} images are not {good} good + {rejects} rejects",
        )


def _check_slices(stage: Stage, manifest: Row, findings: Findings) -> None:
    for each in manifest["tables"].values():
        findings.require_sha256(stage.folder / each["file"], each["sha256"])
    examples = stage.folder / manifest["tables"]["examples"]["file"]
    blocks = stage.folder / manifest["tables"]["blocks"]["file"]
    block = 0
    done, classes = 0, range(len(manifest["classes"]))
    with Progress("verify", sum(split["records"] for split in manifest["splits"].values()), "examples") as progress:
        for split, told in manifest["splits"].items():
            by_label: Counter[int] = Counter()
            for each in told["slices"]:
                check = SliceCheck(
                    stage.folder,
                    each,
                    _rows_of(examples, done, done + each["records"], findings),
                    _rows_of(blocks, block, block + each["blocks"], findings),
                    by_label,
                )
                findings.collect(check.run)
                done += each["records"]
                block += each["blocks"]
                progress.update(done)
            findings.require(
                [by_label[label] for label in classes] == told["by_class"],
                f"the examples by class of the split {split} are not those of the manifest",
            )


def _rows_of(table: Place, start: int, stop: int, findings: Findings) -> list[Row]:
    group = None
    try:
        group = tables.read_range(table, start, stop)
    except (DataError, OSError) as error:
        findings.lines.append(str(error).splitlines()[0])
    return group.to_pylist() if group is not None else []


@dataclass
class SliceCheck:
    """One slice against its line in the manifest, its index, its ``rows`` (examples) and its ``blocks``."""

    folder: Place
    told: Row
    rows: list[Row]
    blocks: list[Row]
    by_label: Counter[int]

    def run(self) -> None:
        """Raises DataError or FileNotFoundError at the first thing that is wrong."""
        place = self.folder / f"{self.told['name']}.tfrecord"
        found = BlockCounter(self.told["name"])
        offsets, sizes = [], []
        with place.open_stream() as stream:
            reader = HashingReader(stream)
            for position, record in enumerate(read_records(reader, str(place))):
                self._check_record(place, position, record)
                found.add(record.framed, position, record.offset)
                offsets.append(record.offset)
                sizes.append(record.size)
        self._require(
            len(offsets) == self.told["records"],
            f"{place} holds {len(offsets)} examples, the manifest tells of {self.told['records']}",
        )
        self._require(reader.sha256 == self.told["sha256"], f"{place} has another SHA-256 than the one recorded")
        self._require(found.rows == self.blocks, f"{place}: its blocks are not those of the table of blocks")
        index = self.folder / f"{self.told['name']}.idx"
        told_offsets, told_sizes = parse_index(index.read_bytes(), str(index))
        self._require(
            told_offsets.tolist() == offsets and told_sizes.tolist() == sizes, f"{index} does not fit {place}"
        )

    def _check_record(self, place: Place, position: int, record: Record) -> None:
        example = parse(record.data)
        self.by_label[example.label] += 1
        row = self.rows[position] if position < len(self.rows) else {}
        ours = (self.told["name"], example.key, example.label, record.offset, record.size, record.crc32c)
        theirs = tuple(row.get(name) for name in ("slice", "key", "label", "offset", "size", "crc32c"))
        self._require(
            ours == theirs,
            f"{place} at offset {record.offset} holds {example.key}, the table of examples tells of {row.get('key')}",
        )

    @staticmethod
    def _require(holds: bool, line: str) -> None:
        if not holds:
            raise DataError(line)


def _check_exactly_once(slices: Stage, normalized: Stage, dataset: Row, findings: Findings) -> None:
    """The table of examples, which every slice was held against, has each row of ``normalized`` exactly once."""
    dealt, good = Multiset(), Multiset()
    for row in _dealt_rows(slices):
        dealt.add(*row)
    for row in _good_rows(normalized, dataset):
        good.add(*row)
    if dealt != good:
        findings.lines.append(
            f"{dealt.number} examples were dealt, {good.number} images are good, and they are not the same"
        )
        findings.lines += _name_differences(Counter(_dealt_rows(slices)), Counter(_good_rows(normalized, dataset)))


def _dealt_rows(slices: Stage) -> Iterator[KeyLabelCrc]:
    for table in tables.iterate_groups(slices.folder / EXAMPLES_FILE):
        yield from _triples(table)


def _good_rows(normalized: Stage, dataset: Row) -> Iterator[KeyLabelCrc]:
    for part in dataset["parts"]:
        yield from _triples(read_rows(normalized.folder, part["part"], ["key", "label", "crc32c"]))


def _triples(table: pa.Table) -> Iterator[KeyLabelCrc]:
    return zip(*(table[name].to_pylist() for name in ("key", "label", "crc32c")), strict=True)


def _name_differences(dealt: Counter[KeyLabelCrc], good: Counter[KeyLabelCrc]) -> list[str]:
    """The first few keys that are missing, doubled or changed. Holds all keys in memory; only a failure asks for it."""
    lines = [f"{row[0]}: good, but not (or not so) in the slices" for row in good - dealt]
    lines += [f"{row[0]}: {dealt[row]} times in the slices, {good[row]} times good" for row in dealt - good]
    return lines[:MOST_NAMED] + ([f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else [])
