"""What is judged by keys and contents of several buckets: moves from split to split, and groups that stay together."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from etl.errors import RingsliceError
from etl.formats import parquet_tables
from etl.partition.config import SPLIT_NAMES, Fractions, resolve_fractions
from etl.slices.manifest import EXAMPLES_FILE
from etl.slices.split_assignment import split_of_group
from etl.storage.place import Place
from etl.verify.check_manifest import config_of
from etl.verify.findings import MOVED, TORN, KeyFindings


def confirm_moves(suspects: Sequence[Place], earlier: Place, keys: KeyFindings) -> None:
    """Add to ``keys`` those ``suspects`` (tables of `exactly_once.SUSPECTS`) that have no reason to be where they are.

    A key whose content changed may go to another split where earlier slices, in the folder ``earlier``, knew the new
    content, in that split alone. In memory are the suspects: of most nights there are none.
    """
    rows = [row for place in suspects for row in parquet_tables.read_table(place).to_pylist()]
    splits: dict[bytes, set[str]] = {row["sha256"]: set() for row in rows}
    for table in parquet_tables.iterate_groups(earlier / EXAMPLES_FILE, ["sha256", "split"]) if rows else ():
        for sha256, split in zip(table["sha256"].to_pylist(), table["split"].to_pylist(), strict=True):
            if sha256 in splits:
                splits[sha256].add(split)
    for row in rows:
        known = splits[row["sha256"]]
        if len(known) != 1:
            keys.add(MOVED, row["key"], f"{row['key']} is in {row['split']}, and was in {row['before']} before")


def group_faults(groups: Sequence[Place], manifest: Mapping[str, Any], keys: KeyFindings) -> None:
    """Add to ``keys`` the groups whose images are not in one split, or not in their own.

    ``groups`` are tables of `exactly_once.GROUPS`. Where splits were kept, a group may be in another one than a hash
    of its name gives.
    """
    fractions = _fractions(manifest)
    streams = [_rows(place) for place in groups]
    for group, rows in groupby(heapq.merge(*streams), key=lambda row: row[0]):
        bits = 0
        for _, own in rows:
            bits |= own
        splits = [name for number, name in enumerate(SPLIT_NAMES) if bits >> number & 1]
        told = f"the images of {manifest['config']['group_by']} {group!r} are in {' and '.join(splits)}"
        if len(splits) > 1:
            keys.add(TORN, group, told)
        elif fractions and split_of_group(group, fractions, manifest["config"]["seed"]) != splits[0]:
            keys.add(TORN, group, f"{told}, which is not where the seed of the manifest has them")


def _rows(place: Place) -> Iterator[tuple[str, int]]:
    for table in parquet_tables.iterate_groups(place):
        yield from zip(table["group"].to_pylist(), table["splits"].to_pylist(), strict=True)


def _fractions(manifest: Mapping[str, Any]) -> Fractions | None:
    config = config_of(manifest)
    if config is None or config.split is None or config.splits_from is not None:
        return None
    try:
        return resolve_fractions(config.split, sum(told["records"] for told in manifest["splits"].values()))
    except (RingsliceError, ZeroDivisionError):
        return None
