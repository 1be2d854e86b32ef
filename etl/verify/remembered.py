"""What slices remember, and from where: their lineage, the tables of keys, contents and groups, and their counts."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.partition.config import SPLIT_NAMES
from etl.slices.lineage import Earlier
from etl.slices.plan import Plan
from etl.storage.place import Place
from etl.verify.check_manifest import fault
from etl.verify.findings import TORN, Finding, KeyFindings

Manifest = Mapping[str, Any]


def lineage_faults(manifest: Manifest, earlier: Earlier | None) -> Iterator[Finding]:
    """Where the lineage does not go on from the slices whose splits were kept (``earlier``, if they are there)."""
    lineage, parent = manifest["lineage"], manifest["config"]["splits_from"]
    if lineage is None:  # an experiment, or slices that `erase` made anew
        return
    if lineage["number"] != len(lineage["ancestors"]) + 1 or (lineage["ancestors"] or [None])[0] != parent:
        yield fault("the lineage of the manifest is not that of slices made from its splits_from")
    elif earlier is not None and lineage != earlier.next_lineage:
        yield fault(f"the lineage of the manifest does not continue that of {earlier.folder}")


def memory_faults(folder: Place, manifest: Manifest, plan: Plan) -> Iterator[Finding]:
    """Where tables or counts of what is remembered are not those of the ``plan``."""
    if manifest["known"] != plan.known:
        yield fault(f"the manifest tells of known images {manifest['known']}, they are {plan.known}")
    if manifest["left_out"] != plan.left_out:
        yield fault(f"{plan.left_out} good images were left out, the manifest tells of {manifest['left_out']}")
    for name, table in (("departed", plan.departed), ("contents", plan.contents), ("groups", plan.groups)):
        told = manifest["tables"][name]
        try:
            same = parquet_tables.read_table(folder / told["file"]).equals(table)
        except (DataError, FileNotFoundError, pa.ArrowException):  # its SHA-256 is told of as a file's
            continue
        if not same or told["rows"] != table.num_rows:
            yield fault(f"{told['file']} is not what the configuration gives")


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
