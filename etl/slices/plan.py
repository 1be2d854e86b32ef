"""The plan of a set of slices: which images are dealt, to which split and slice; and the list of work that follows.

Where every image is dealt by fractions or to its source's split, the counts in the facts of the parts are enough and no
row is read. Where images may be left out, or have a split already, their rows decide (`etl.slices.split_assignment`).
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of, read_rows
from etl.partition.config import (
    DEFAULT_SPLIT,
    Fractions,
    ShardConfig,
    SplitRequest,
    parse_split,
    resolve_fractions,
    resolve_slices,
)
from etl.partition.strata import Dealing, PartCounts, count_part, split_sizes
from etl.raw.removed import Removed
from etl.slices import split_assignment
from etl.slices.previous import Earlier, departed_rows, read_keys, removed_keys, split_numbers
from etl.storage.place import Place, open_place


@dataclass(frozen=True)
class Plan:
    """A plan for the parts of ``normalized`` (its marker). Without ``decided`` their facts are all that is needed.

    ``departed`` are the keys that earlier slices had, or a list removed, and that are not dealt: `schemas.DEPARTED`.
    """

    config: ShardConfig
    normalized: Mapping[str, Any]
    dealing: Dealing
    decided: split_assignment.Decided | None
    departed: pa.Table

    @property
    def left_out(self) -> dict[str, int]:
        """Live images that are not dealt, by cause."""
        return self.decided.left_out if self.decided else {"removed_keys": 0, "duplicates": 0}

    def __len__(self) -> int:
        return len(self.normalized["parts"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The list of work: for each part what a mapper needs to deal it, see `deal_rows`."""
        row = 0
        counts = _count_parts(self.normalized, self.decided)
        for part, first in zip(self.normalized["parts"], self.dealing.firsts(counts), strict=True):
            yield {"part": part["part"], "first": first, "row": row}
            row += part["records"]


def make_plan(root: Place, values: Mapping[str, Any], normalized: Mapping[str, Any], earlier: Earlier | None) -> Plan:
    """The plan for these option values; ``earlier`` are the slices whose splits are kept.

    Raises DataError or UsageError where images and options do not fit.
    """
    listed = read_keys(open_place(values["remove"])) if values["remove"] else None
    asked = ShardConfig(
        values["partition"],
        _resolve_request(values["split"], normalized, values["group_by"]),
        slices={},
        workers=values["workers"],
        groups=values["groups"],
        seed=values["seed"],
        group_by=values["group_by"],
        drop_duplicates=values["drop_duplicates"],
        splits_from=earlier.fingerprint if earlier else None,
        removed_keys=hashlib.sha256("\n".join(listed).encode()).hexdigest() if listed is not None else None,
    )
    removed = frozenset(listed or ()) | frozenset(removed_keys(earlier.folder) if earlier else ())
    decided = None
    if earlier or removed or asked.group_by or asked.drop_duplicates or normalized.get("removed"):
        rules = split_assignment.Rules(asked, len(normalized["classes"]), earlier.known if earlier else None, removed)
        decided = split_assignment.decide(rules, _live_parts(root, normalized))
    total = sum(_count_parts(normalized, decided), np.zeros((1, 1), dtype=np.int64))
    fractions = _fractions(asked, decided, int(total.sum()))
    size_bytes = sum(part["bytes"] for part in normalized["parts"])
    records = sum(part["records"] for part in normalized["parts"])
    slices = resolve_slices(
        split_sizes(total, fractions),
        size_bytes * int(total.sum()) // max(records, 1),
        values["workers"],
        values["slices"],
        values["slice_size"],
    )
    config = ShardConfig(**{**vars(asked), "slices": slices})
    departed = _departed(earlier, removed, decided)
    return Plan(config, normalized, Dealing.of_total(config, total, fractions), decided, departed)


def deal_rows(
    dealing: Dealing, rows: pa.Table, task: Mapping[str, Any], decided: Place | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split and slice (numbered through) of each row (columns label, split) of the part of ``task``; -1: left out.

    ``decided`` is the table of fates, where there is one.
    """
    labels = rows["label"].to_numpy().astype(np.int64)
    if decided is not None:
        column = parquet_tables.read_range(decided, task["row"], task["row"] + len(rows))["fate"]
        own = column.to_numpy().astype(np.int64)
    else:
        own = split_numbers(rows["split"]).astype(np.int64)
    dealt = own >= 0 if dealing.strata.own_splits else np.ones(len(rows), dtype=bool)
    splits, slices = np.full(len(rows), -1, dtype=np.int64), np.full(len(rows), -1, dtype=np.int64)
    first = {int(stratum): rank for stratum, rank in task["first"].items()}
    splits[dealt], slices[dealt] = dealing.deal(labels[dealt], own[dealt], first)
    return splits, slices


def _resolve_request(
    asked: SplitRequest | str | None, normalized: Mapping[str, Any], group_by: str | None
) -> SplitRequest | None:
    """What is asked of the splits; None for the source's own, the default where every image has one."""
    if asked is None and group_by is None and all(name for part in normalized["parts"] for name in part["examples"]):
        return None
    request = parse_split(DEFAULT_SPLIT) if asked is None else asked
    return None if isinstance(request, str) else request


def _fractions(config: ShardConfig, decided: split_assignment.Decided | None, total: int) -> Fractions | None:
    """What the examples are dealt to splits by; None where each has its split by now."""
    return None if decided or config.split is None else resolve_fractions(config.split, total)


def _count_parts(normalized: Mapping[str, Any], decided: split_assignment.Decided | None) -> Iterator[PartCounts]:
    if decided:
        return decided.counts()
    return (count_part(part["examples"], len(normalized["classes"])) for part in normalized["parts"])


def _live_parts(root: Place, normalized: Mapping[str, Any]) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    removed = Removed.read(root, normalized)
    for part in normalized["parts"]:
        rows = read_rows(root / "normalized", part["part"], split_assignment.COLUMNS)
        yield rows, removed.live(pack_of(part), rows["key"])


def _departed(earlier: Earlier | None, removed: frozenset[str], decided: split_assignment.Decided | None) -> pa.Table:
    gone = schemas.DEPARTED.empty_table().select(["key", "split"])
    unknown = sorted(removed)
    if earlier:
        assert decided is not None
        gone = departed_rows(earlier.folder, earlier.manifest, earlier.known, decided.dealt)
        numbers = earlier.known.find(unknown)
        unknown = [key for key, number in zip(unknown, numbers.tolist(), strict=True) if number < 0]
    rows = gone.to_pylist() + [{"key": key, "split": None} for key in unknown]
    return parquet_tables.table_of(schemas.DEPARTED, [row | {"removed": row["key"] in removed} for row in rows])
