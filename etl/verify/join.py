"""True if every good image is in the slices exactly once: examples and good images are joined by key.

For each line of work a task publishes a `LineResult`, and tables of what it found (`FOUND`, `GOOD`), cut to *buckets*:
of keys by a hash, of contents (SHA-256 of the source image) by their first digits, so that buckets in order are sorted.
The driver reads one after the other: the join takes as much memory for any number of examples. Each bucket of a line
is an Arrow stream of its own, which is read by its place in the file: of Parquet, all footers are parsed per bucket.
"""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables, schemas
from etl.partition.pixel_statistics import PixelSums
from etl.storage.atomic import publish_bytes, publish_stream
from etl.storage.place import Place, json_bytes
from etl.verify.findings import DUPLICATE_COUNTS, Finding, KeyFault, KeyFindings

_SIZES = ("crc32c", "width", "height")
# Examples of slices: number is the slice's. Of a damaged table of examples source and sha256 are null.
FOUND = pa.schema(
    [schemas.EXAMPLES.field(name) for name in ("key", "label", "split", *_SIZES, "source", "sha256")]
    + [pa.field("number", pa.int64())]
)
# The live rows of parts: planned is the slice of each by the plan, -1 if it is left out, null if there is no plan.
GOOD = pa.schema(
    [schemas.ROWS.field(name) for name in ("key", "label", "split", *_SIZES, "sha256", "sums", "squares")]
    + [pa.field("part", pa.string()), pa.field("planned", pa.int64()), pa.field("group", pa.string())]
)
RETIRED_KEYS = pa.schema([schemas.DEPARTED.field(name) for name in ("key", "removed")])  # of departed.parquet
# Examples once more, by content.
COPIES = pa.schema([FOUND.field(name) for name in ("sha256", "key", "label", "split", "number")])
MAY_BE_NULL = {"split", "columns"}  # columns of tables that are read
CONTENTS = "contents"
TABLES = {"found": FOUND, "good": GOOD, CONTENTS: COPIES}

# One row per example whose content (the SHA-256 of its source image) other keys have too; by content, then key.
DUPLICATES = pa.schema([*list(COPIES)[:4], schemas.EXAMPLES.field("slice")])

Mask = npt.NDArray[np.bool_]


def key_buckets(table: pa.Table, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row, by its key."""
    return np.array([zlib.crc32(key.encode()) % buckets for key in table["key"].to_pylist()], np.int64)


def content_buckets(table: pa.Table, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row, by its content."""
    firsts = (int.from_bytes(sha256[:4], "big") for sha256 in table["sha256"].to_pylist())
    return np.array([first * buckets >> 32 for first in firsts], np.int64)


def write_buckets(
    place: Place, staging: Place, table: pa.Table, numbers: npt.NDArray[np.int64], buckets: int
) -> list[int]:
    """Publish the rows by bucket, given the ``numbers`` of their buckets.

    Returns the bounds of the buckets in bytes: number i is from bounds[i] to bounds[i + 1].
    """
    rows, options = np.bincount(numbers, minlength=buckets), pa.ipc.IpcWriteOptions(compression="zstd")
    in_order, bounds = table.take(np.argsort(numbers, kind="stable")), [0]
    with publish_stream(place, staging) as output:
        for end, count in zip(np.cumsum(rows).tolist(), rows.tolist(), strict=True):
            if count:
                with pa.ipc.new_stream(pa.PythonFile(output, mode="w"), table.schema, options=options) as writer:
                    writer.write_table(in_order.slice(end - count, count))
            bounds.append(output.size_bytes)
    return bounds


@dataclass
class Reconciler:
    """Compares examples with good images, bucket by bucket; the attributes have the result after the last.

    ``names`` are those of the slices. ``dropped``: duplicates were left out. ``by_source``: an example's split is the
    one that its source gave. ``grouped``: each image has a group. ``pixels`` are summed over the training images.
    """

    names: Sequence[str]
    dropped: bool = False
    by_source: bool = False
    grouped: bool = False
    findings: KeyFindings = field(init=False, default_factory=KeyFindings)
    duplicates: Counter[str] = field(init=False, default_factory=Counter)
    pixels: PixelSums = field(init=False, default_factory=PixelSums)
    left_out: Counter[str] = field(init=False, default_factory=Counter)
    _groups: list[pa.Table] = field(init=False, default_factory=list)

    def check_keys(self, found: pa.Table, good: pa.Table, retired: pa.Table) -> None:
        """All examples, good images and retired keys of one bucket of keys."""
        add = self.findings.add
        found = found.append_column("slice", self._slices(found["number"]))
        add(KeyFault.DOUBLED, _repeated(found), lambda row: self._doubled(row, found))
        add(KeyFault.DOUBLED, _repeated(good), lambda row: f"{row['key']} is {row['count']} good images")
        removed = retired.filter(retired["removed"])["key"]
        retired_again = found.filter(_is_in(found["key"], retired["key"]))
        add(KeyFault.RETIRED, retired_again, lambda row: f"{row['key']} is in {row['slice']}, and in departed.parquet")
        positions = pc.index_in(found["key"], value_set=good["key"].combine_chunks()).combine_chunks()
        unknown = found.filter(positions.is_null())
        add(KeyFault.UNKNOWN, unknown, lambda row: f"{row['key']} is in {row['slice']}, and is not a good image")
        self._compare(found.filter(positions.is_valid()), good.take(positions.drop_null()))
        absent = good.filter(~_is_in(good["key"], found["key"]))
        is_removed, planned = _is_in(absent["key"], removed), _mask(pc.greater_equal(absent["planned"], 0))
        is_due = np.where(_mask(absent["planned"].is_valid()), planned, (not self.dropped) & ~is_removed)
        missing = absent.filter(is_due)
        add(KeyFault.MISSING, missing, lambda row: f"{row['key']} of {row['part']} is good, and in no slice")
        self.left_out.update(removed_keys=int(is_removed.sum()), duplicates=int((~is_removed & ~is_due).sum()))

    def _compare(self, found: pa.Table, good: pa.Table) -> None:
        """Examples, and the good image of each, row by row: one finding for each at most."""
        add = self.findings.add
        pairs = [(name, good[name]) for name in ("label", *_SIZES, "sha256")]
        pairs += [("source", good["part"]), ("slice", self._slices(good["planned"]))]
        pairs += [("split", good["split"].fill_null("none"))] if self.by_source else []
        left = np.ones(len(found), dtype=bool)
        for name, due in pairs:
            differs = left & _mask(pc.not_equal(found[name], due))
            left &= ~differs
            rows = pa.table({"key": found["key"], "part": good["part"], "is": found[name], "due": due}).filter(differs)
            add(KeyFault.DIFFERENT, rows, partial(_difference, name))
        self.pixels.add(good.filter(pc.equal(found["split"], "train")))
        if self.grouped:
            without = found.filter(good["group"].is_null())
            add(KeyFault.DIFFERENT, without, lambda row: f"{row['key']} is in {row['slice']}, and has no group")
            groups = pa.table({"group": good["group"], "split": found["split"]}).filter(good["group"].is_valid())
            self._groups.append(groups.group_by(["group", "split"]).aggregate([]))

    def _slices(self, numbers: pa.ChunkedArray) -> pa.ChunkedArray:
        """The names of slices; null stays null, and -1, for what is left out, is "none"."""
        names = pa.array([*self.names, "none"])
        return names.take(pc.if_else(pc.less(numbers, 0), len(self.names), numbers).combine_chunks())

    def check_contents(self, found: pa.Table) -> pa.Table:
        """All examples of one bucket of contents; returns the rows of `DUPLICATES`."""
        ascending = [(name, "ascending") for name in COPIES.names]
        first = [(name, "first") for name in COPIES.names[2:]]  # a key that is there twice is found by its key
        by_key = found.select(COPIES.names).sort_by(ascending).group_by(COPIES.names[:2], use_threads=False)
        rows = by_key.aggregate(first).rename_columns(COPIES.names).sort_by(ascending)  # groups come in any order
        several = rows.group_by("sha256").aggregate(
            [("key", "count"), ("split", "count_distinct"), ("label", "count_distinct"), ("key", "min")]
        )
        several = several.filter(pc.greater(several["key_count"], 1))
        rows = rows.filter(_is_in(rows["sha256"], several["sha256"]))
        across = (_mask(pc.greater(several[f"{name}_count_distinct"], 1)).sum() for name in ("split", "label"))
        numbers = (several.num_rows, rows.num_rows, *map(int, across))
        self.duplicates.update(dict(zip(DUPLICATE_COUNTS, numbers, strict=True)))
        if self.dropped:
            several = several.append_column("key", several["key_min"])
            same = "and others in slices have the same content"
            self.findings.add(KeyFault.SAME_CONTENT, several, lambda row: f"{row['key']} {same}")
        return pa.Table.from_arrays(
            [*(rows[name] for name in COPIES.names[:4]), self._slices(rows["number"])], schema=DUPLICATES
        )

    def check_groups(self, column: str) -> None:
        """After the last bucket: whether the images of each group of ``column`` are in one split."""
        if not self._groups:
            return
        splits = pa.concat_tables(self._groups).group_by("group").aggregate([("split", "distinct")]).sort_by("group")
        divided = splits.filter(pc.greater(pc.list_value_length(splits["split_distinct"]), 1))
        divided = divided.append_column("key", divided["group"])
        self.findings.add(
            KeyFault.SPLIT_GROUP,
            divided,
            lambda row: f"the images of {column} {row['key']!r} are in {' and '.join(sorted(row['split_distinct']))}",
        )

    def _doubled(self, row: dict[str, Any], found: pa.Table) -> str:
        slices = found.filter(pc.equal(found["key"], row["key"]))["slice"].slice(0, 2).to_pylist()
        return f"{row['key']} is in slices {row['count']} times: in {' and in '.join(slices)}"


def _difference(name: str, row: dict[str, Any]) -> str:
    given, due = (value.hex() if isinstance(value, bytes) else value for value in (row["is"], row["due"]))
    return f"{row['key']} of {row['part']}: {name} is {given}, not {due}"


def _repeated(table: pa.Table) -> pa.Table:
    """The keys (columns key and count) that several rows have."""
    counts = table.group_by("key").aggregate([([], "count_all")]).rename_columns(["key", "count"])
    return counts.filter(pc.greater(counts["count"], 1))


def _is_in(values: pa.ChunkedArray, known: pa.ChunkedArray) -> Mask:
    return _mask(pc.is_in(values, value_set=known.combine_chunks()))


def _mask(values: pa.ChunkedArray) -> Mask:
    """Of booleans; null is False."""
    return np.asarray(values.fill_null(False).to_numpy(), dtype=bool)


def result_place(results: Place, line: int) -> Place:
    """Where the result of a line of work is."""
    return results / f"line-{line:06d}.json"


def table_place(results: Place, name: str, line: int) -> Place:
    """A table of a line's result, by bucket: of the schema that `etl.verify.join.TABLES` has for ``name``."""
    return results / f"{name}-{line:06d}.arrows"


@dataclass
class LineResult:
    """What was found; ``tables`` has what is compared across lines, by the names of `etl.verify.join.TABLES`.

    ``unreadable`` counts slices, parts and lists whose content is not known. ``slices`` are the facts of slices, None
    of one whose labels are not known. ``live`` counts the live images of packs: ``images``, ``bytes``, and by class and
    by split. ``bounds`` are those of the buckets of each published table (`write_buckets`).
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    slices: list[dict[str, Any] | None] = field(default_factory=list)
    live: Counter[str] = field(default_factory=Counter)
    bounds: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)

    def find(self, what: str, name: str, line: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(what, name, line))

    def find_error(self, what: str, name: str, place: Place, error: Exception) -> None:
        """Add a finding about a file that cannot be read."""
        is_missing = isinstance(error, FileNotFoundError)
        self.find(what, name, f"{place} is missing" if is_missing else str(error).splitlines()[0])

    def require_sha256(self, what: str, name: str, place: Place, sha256: str) -> bool:
        """True if a file, which is counted then, has this SHA-256; if not, that is a finding."""
        try:
            if place.sha256() != sha256:
                raise DataError(f"{place} has another SHA-256 than the one recorded")
            self.counts.update(files=1, other_bytes=place.info().size)
        except (DataError, FileNotFoundError) as error:
            self.find_error(what, name, place, error)
            return False
        return True

    def read(
        self, what: str, name: str, place: Place, schema: pa.Schema, rows: tuple[int, int] | None = None
    ) -> pa.Table | None:
        """A table, or ``rows`` of it; None, and a finding, if it cannot be read or is not of this schema."""
        try:
            table = parquet_tables.read_range(place, *rows) if rows else parquet_tables.read_table(place)
            if not table.schema.remove_metadata().equals(schema):
                raise DataError(f"{place} has other columns than this table should have")
            for column in schema.names:
                if table[column].null_count and column not in MAY_BE_NULL:
                    raise DataError(f"{place} has rows without {column}")
            return table
        except (DataError, FileNotFoundError, pa.ArrowException) as error:
            self.find_error(what, name, place, error)
            return None

    def keep(self, name: str, table: pa.Table) -> None:
        """Keep rows for the driver's comparison."""
        schema = TABLES[name]
        self.tables.setdefault(name, []).append(table.select(schema.names).cast(schema))

    def publish(self, results: Place, staging: Place, line: int, buckets: int) -> None:
        """Publish the tables, cut to so many buckets, then the rest."""
        for name, tables in self.tables.items():
            table = pa.concat_tables(tables).combine_chunks()
            numbers = (content_buckets if name == CONTENTS else key_buckets)(table, buckets)
            self.bounds[name] = write_buckets(table_place(results, name, line), staging, table, numbers, buckets)
        facts = {name: value for name, value in vars(self).items() if name != "tables"}
        facts["findings"] = [vars(each) for each in self.findings]
        publish_bytes(result_place(results, line), staging, json_bytes(facts))

    @classmethod
    def read_published(cls, results: Place, line: int) -> Self:
        """The result of a line, without its tables. Raises EnvironmentFailure if there is none."""
        place = result_place(results, line)
        if not place.exists():
            raise EnvironmentFailure(f"{place} is missing though the job ended; run again")
        facts = place.read_json()
        facts["findings"] = [Finding(**each) for each in facts["findings"]]
        return cls(**facts | {name: Counter(facts[name]) for name in ("counts", "unreadable", "live")})


def read_rows(folder: Place, results: Mapping[int, LineResult], name: str, bucket: int) -> pa.Table:
    """The rows of a bucket of a table, of all ``results``, by line."""
    tables = [TABLES[name].empty_table()]
    for line, result in results.items():
        if name not in result.bounds:
            continue
        start, end = result.bounds[name][bucket : bucket + 2]
        if start < end:
            with parquet_tables.open_checked(table_place(folder, name, line)) as source:
                tables.append(pa.ipc.open_stream(source.read_at(end - start, start)).read_all())
    return pa.concat_tables(tables).combine_chunks()
