"""The lines that tasks send about examples and images, to be judged where those about one key or content come together.

A line is a tuple of texts: what it is about (`ABOUT_KEY`, `ABOUT_CONTENT`), the key or content, who says it (`DEALT`,
`GOOD`, `GONE`, `EARLIER`), and what is said.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

Line = tuple[str, ...]

ABOUT_CONTENT, ABOUT_KEY = "c", "k"
EARLIER, DEALT, GOOD, GONE = "a", "d", "g", "x"  # in this order the lines about a content come


def bucket_of(line: Line, buckets: int) -> int:
    """The bucket of a line: keys by a hash, contents by their leading digits, so that buckets in order are sorted."""
    about, name = line[:2]
    if about == ABOUT_CONTENT:
        return (int(name[:8], 16) * buckets) >> 32
    return zlib.crc32(name.encode()) % buckets


def dealt_lines(dealt: pa.Table, split: str, slice_number: int) -> Iterator[Line]:
    """What is sent about the examples of a slice (see `SliceCheck.examples`): 2 lines each, 1 without a content."""
    where = (split, f"{slice_number:08d}")
    columns = [dealt[name].to_pylist() for name in ("key", "label", "sha256", "source")]
    for key, label, content, source, record in zip(*columns, _records(dealt), strict=True):
        told = content.hex() if content is not None else ""
        yield ABOUT_KEY, key, DEALT, *where, str(label), record, told, source or ""
        if told:
            yield ABOUT_CONTENT, told, DEALT, key, *where, str(label)


def _records(rows: pa.Table) -> Iterator[str]:
    """The CRC and the sides of each image: what of a record is compared as one."""
    values = zip(*(rows[name].to_pylist() for name in ("crc32c", "width", "height")), strict=True)
    return (f"{crc} {width} {height}" for crc, width, height in values)


@dataclass(frozen=True)
class PartOrder:
    """How a part's rows come: ``number``, the part's, where duplicates were left out; else None.

    Where duplicates were left out another one tells the content, but for ``removed`` keys: by the part's number the
    first of equal contents is known. ``planned`` is the slice of each row where counts alone decide it, ``groups`` the
    group of each row where those stay together.
    """

    number: int | None = None
    removed: frozenset[str] = frozenset()
    planned: Sequence[int] | None = None
    groups: Sequence[str | None] | None = None


def good_lines(rows: pa.Table, part: str, order: PartOrder) -> Iterator[Line]:
    """What is sent about the live rows of a part: 1 line each, 2 where duplicates were left out."""
    nothing = [None] * rows.num_rows
    columns = ("key", "label", "sha256", "split", "width", "height", "sums", "squares")
    values = zip(
        *(rows[name].to_pylist() for name in columns),
        _records(rows),
        nothing if order.planned is None else order.planned,
        nothing if order.groups is None else order.groups,
        strict=True,
    )
    for row, (key, label, sha256, split, width, height, sums, squares, record, planned, group) in enumerate(values):
        content = sha256.hex()
        pixels = " ".join(map(str, (width * height, *sums, *squares)))
        due = "" if planned is None else str(planned), "" if group is None else f"={group}"
        yield ABOUT_KEY, key, GOOD, part, str(label), record, content, split or "", pixels, *due
        if order.number is not None and key not in order.removed:
            yield ABOUT_CONTENT, content, GOOD, f"{order.number:08d}", f"{row:08d}", key


def gone_lines(departed: pa.Table) -> Iterator[Line]:
    """What is sent about keys that earlier slices had, or that a list removed: 1 line each."""
    for row in departed.to_pylist():
        yield ABOUT_KEY, row["key"], GONE, "1" if row["removed"] else "0", row["split"] or ""


def earlier_lines(rows: pa.Table) -> Iterator[Line]:
    """What is sent about the slices whose splits were kept: rows of their examples, or of what departed by then."""
    nothing = [None] * rows.num_rows
    names = ("key", "split", "sha256", "removed")
    columns = [rows[name].to_pylist() if name in rows.column_names else nothing for name in names]
    for key, split, sha256, removed in zip(*columns, strict=True):
        content = sha256.hex() if sha256 is not None else ""
        if key is not None:
            yield ABOUT_KEY, key, EARLIER, split or "", content, "1" if removed else "0"
        if content and split:
            yield ABOUT_CONTENT, content, EARLIER, split
