"""What is checked of slices if the normalised images that they were made from are gone: `ringslice erase` deletes them.

A new plan cannot be made then. The slices whose splits were kept have those of their keys, contents and groups.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.normalized.erased import read_record
from etl.partition.permutation import Integers
from etl.slices.history import RETIRED_TABLES, Bits, SplitHistory, find, split_numbers
from etl.slices.manifest import table_file
from etl.verify.findings import MAX_KEYS, Finding, KeyFault, KeyFindings, marker_fault, table_difference
from etl.verify.target import Target


def find_erased(target: Target, keys: KeyFindings) -> None:
    """Add to ``keys`` the examples whose contents were erased elsewhere below the root."""
    erased = read_record(target.root)["sha256"].combine_chunks()
    try:
        groups = parquet_tables.iterate_groups(target.slices.folder / table_file("examples"), ["key", "sha256"])
        for table in groups if len(erased) else ():
            here = table["key"].filter(pc.is_in(table["sha256"], value_set=erased)).to_pylist()
            line = "was erased, and is still here; make other slices, and delete these"
            keys.add(KeyFault.RETIRED, len(here), [(key, f"{key} {line}") for key in here[:MAX_KEYS]])
    except (DataError, FileNotFoundError):  # found by its SHA-256
        return


def history_findings(target: Target, keys: KeyFindings) -> Iterator[Finding]:
    """Compare splits with those of the parent slices: of examples (added to ``keys``), and of what is recorded of
    others. Memory goes with the number of examples, as for a plan.
    """
    if target.parent is None:
        return
    folder = target.slices.folder
    try:
        history = target.parent.history
        examples = parquet_tables.read_table(folder / table_file("examples"), ["key", "split", "sha256"])
        recorded = {name: parquet_tables.read_table(folder / table_file(name)) for name in RETIRED_TABLES}
    except (DataError, FileNotFoundError, pa.ArrowException):  # found by its SHA-256
        return
    splits = split_numbers(examples["split"])
    places, contents = find(examples["key"], history.keys), find(examples["sha256"], history.contents)
    had = _had(target, history, places, contents, examples["sha256"])
    moved = np.flatnonzero((had & np.left_shift(1, splits).astype(np.uint8) == 0) & (had > 0))
    rows = examples.take(pa.array(moved[:MAX_KEYS])).to_pylist()
    lines = [f"{row['key']}: split is {row['split']}, not that of the slices whose splits were kept" for row in rows]
    keys.add(KeyFault.DIFFERENT, len(moved), [(row["key"], line) for row, line in zip(rows, lines, strict=True)])
    departed, groups = recorded["departed"], recorded["groups"]
    removed = frozenset(departed["key"].filter(departed["removed"]).to_pylist())
    of_groups = dict(zip(groups["group"].to_pylist(), split_numbers(groups["split"]).tolist(), strict=True))
    due = history.retired_tables(
        *history.find_seen(places, contents, splits),
        removed=removed | history.removed,
        groups=of_groups | dict(history.groups),
    )
    for name, table in due.items():
        if line := table_difference(table, recorded[name]):
            yield marker_fault(f"{table_file(name)} is not what the slices whose splits were kept give: {line}")


def _had(
    target: Target, history: SplitHistory, places: Integers, places_of_content: Integers, contents: pa.ChunkedArray
) -> Bits:
    """The splits that each example may be in, 0 if any: those of its content, else that of its key.

    By its key alone only if no group and no other image of its content, which may have been left out, has a say.
    """
    config, had = target.manifest["config"], np.zeros(len(places), dtype=np.uint8)
    if config["group_by"] is None and not config["drop_duplicates"]:
        copies = contents.combine_chunks().dictionary_encode().indices.to_numpy()
        by_key = (places >= 0) & (np.bincount(copies)[copies] == 1)
        by_key[by_key] = history.key_splits[places[by_key]] >= 0
        had[by_key] = np.left_shift(1, history.key_splits[places[by_key]]).astype(np.uint8)
    known = places_of_content >= 0
    had[known] = history.content_splits[places_of_content[known]]
    return had
