"""Groups of images (see --group-by) over all buckets of examples."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby

from etl.formats import parquet_tables
from etl.partition.config import SPLIT_NAMES
from etl.storage.place import Place
from etl.verify.findings import TORN, KeyFindings


def group_faults(groups: Sequence[Place], column: str, keys: KeyFindings) -> None:
    """Add to ``keys`` the groups of ``column`` whose images are not in one split.

    ``groups`` are tables of `exactly_once.GROUPS`.
    """
    streams = [_rows(place) for place in groups]
    for group, rows in groupby(heapq.merge(*streams), key=lambda row: row[0]):
        bits = 0
        for _, own in rows:
            bits |= own
        splits = [name for number, name in enumerate(SPLIT_NAMES) if bits >> number & 1]
        if len(splits) > 1:
            keys.add(TORN, group, f"the images of {column} {group!r} are in {' and '.join(splits)}")


def _rows(place: Place) -> Iterator[tuple[str, int]]:
    for table in parquet_tables.iterate_groups(place):
        yield from zip(table["group"].to_pylist(), table["splits"].to_pylist(), strict=True)
