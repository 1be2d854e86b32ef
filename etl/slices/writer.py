"""Slices: TFRecord files of examples with an index beside each, and the tables about them."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.example import parse_facts
from etl.formats.records import frame, index_bytes
from etl.partition.shares import worker_of
from etl.stages.stage import WORK_FOLDER
from etl.storage.atomic import OutputFile, publish_bytes, publishing
from etl.storage.place import Place

# A block is a run of neighbouring records: the unit of reading, of checking and of the shuffle of an epoch.
BLOCK_BYTES = 1 << 20
BLOCK_RECORDS = 256

# A serialized example, the part that it came from, and the SHA-256 (32 bytes) of its source image.
DealtExample = tuple[bytes, str, bytes]


def slice_name(split: str, number: int, count: int, *within: str) -> str:
    """``train/train-00002-of-00008``: the path of a slice below its manifest, without an ending.

    ``within`` are folders that it lies in besides that of its split.
    """
    return "/".join((split, *within, f"{split}-{number:05d}-of-{count:05d}"))


def slice_names(slices: dict[str, int], workers: int = 1, groups: int = 1) -> list[tuple[str, str]]:
    """(split, name) of every slice, numbered through, for so many slices by split.

    With several ``groups`` of workers the training split's slices lie in folders by group and worker.
    """
    names = []
    for split, count in slices.items():
        for number in range(count):
            within: tuple[str, ...] = ()
            if groups > 1 and split == "train":
                group, worker = worker_of(number, workers, groups)
                within = (f"group-{group}", f"worker-{worker}")
            names.append((split, slice_name(split, number, count, *within)))
    return names


def order_key(key: str, seed: int) -> bytes:
    """Where an example comes within its slice: 32 hexadecimal digits of BLAKE2b (RFC 7693) over seed and key."""
    return hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).hexdigest().encode()


def facts_place(folder: Place, name: str) -> Place:
    """Where a finished slice's rows and facts lie until the manifest is written."""
    return folder / WORK_FOLDER / "slices" / f"{name.rpartition('/')[2]}.parquet"


def blocks_place(folder: Place, name: str) -> Place:
    return folder / WORK_FOLDER / "blocks" / f"{name.rpartition('/')[2]}.parquet"


class BlockCounter:
    """Cuts a slice into blocks of at most `BLOCK_BYTES` and `BLOCK_RECORDS`, at least one record each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows: list[dict[str, Any]] = []

    def add(self, record: bytes, position: int, offset: int) -> None:
        """Add the record, with its framing, that is the slice's ``position``-th and begins at ``offset``."""
        block = self.rows[-1] if self.rows else None
        if block is None or block["records"] >= BLOCK_RECORDS or block["size"] + len(record) > BLOCK_BYTES:
            block = {"slice": self._name, "first": position, "records": 0, "offset": offset, "size": 0, "crc32c": 0}
            self.rows.append(block)
        block["records"] += 1
        block["size"] += len(record)
        block["crc32c"] = crc32c(record, block["crc32c"])


class _SliceWriter:
    """Writes serialized examples to ``output`` as records, and remembers a row for each."""

    def __init__(self, split: str, name: str, output: OutputFile) -> None:
        self._told = {"split": split, "slice": name}
        self._output = output
        self.rows = parquet_tables.TableBuilder(schemas.EXAMPLES)
        self.labels: Counter[int] = Counter()
        self.blocks = BlockCounter(name)

    def add(self, dealt: DealtExample) -> None:
        """Append an example."""
        data, source, sha256 = dealt
        example = parse_facts(data)
        record, crc = frame(data)
        self.blocks.add(record, self.rows.rows, self._output.size_bytes)
        row = {
            "key": example.key,
            "label": example.label,
            "offset": self._output.size_bytes,
            "size": len(record),
            "crc32c": crc,
            "width": example.width,
            "height": example.height,
            "source": source,
            "sha256": sha256,
        }
        self.rows.add(row | self._told)
        self.labels[example.label] += 1
        self._output.write(record)


def write_slice(
    folder: Place, attempts: Place, planned: tuple[str, str, int], examples: Iterable[DealtExample]
) -> dict[str, Any]:
    """Publish one slice of ``examples`` in their order: its file, its index, then its rows and facts.

    ``planned`` are its split, its name and how many examples it is to have; what is written lies in the folder
    ``attempts`` until it is published. Returns the facts.

    Raises DataError where there are not as many as planned.
    """
    split, name, expected = planned
    with publishing(folder / f"{name}.tfrecord", attempts) as output:
        writer = _SliceWriter(split, name, output)
        for example in examples:
            writer.add(example)
        records = writer.rows.rows
        if records != expected:
            raise DataError(f"slice {name} got {records} of {expected} examples; run again with --overwrite")
    rows = writer.rows.table()
    index = index_bytes(rows["offset"].to_pylist(), rows["size"].to_pylist())
    publish_bytes(folder / f"{name}.idx", attempts, index)
    parquet_tables.write_table(
        blocks_place(folder, name), attempts, parquet_tables.table_of(schemas.BLOCKS, writer.blocks.rows)
    )
    facts = {
        "split": split,
        "name": name,
        "records": records,
        "blocks": len(writer.blocks.rows),
        "bytes": output.size_bytes,
        "sha256": output.sha256,
        "by_label": {str(label): count for label, count in sorted(writer.labels.items())},
    }
    parquet_tables.write_table(facts_place(folder, name), attempts, rows, facts)
    return facts
