"""The plan of a set of slices: which images are dealt, to which split and slice; and the list of work that follows.

Where every image goes to its source's split, the counts in the facts of the parts are enough and no row is read. Else
the rows of all images decide (`etl.slices.split_assignment`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import UsageError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of, read_rows
from etl.partition.config import (
    DEFAULT_SPLIT,
    SOURCE_SPLIT,
    SPLIT_NAMES,
    ShardConfig,
    SplitRequest,
    parse_split,
    resolve_slices,
)
from etl.partition.shares import SharePlan
from etl.partition.strata import Dealing, PartCounts, Strata, count_part, split_sizes
from etl.progress import log
from etl.raw.removed import Removed
from etl.slices import split_assignment
from etl.slices.group_assignment import GroupConflict
from etl.slices.images import COLUMNS, Rules
from etl.slices.key_list import BYTE_ORDER_MARK, list_sha256, read_keys
from etl.slices.lineage import NEWEST, Earlier
from etl.slices.manifest import read_manifest
from etl.slices.memory import split_numbers
from etl.stages.layout import slices_stage
from etl.stages.stage import Stage
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place, open_place

MOST_NAMED = 10
FATES_FILE = "fates.parquet"  # in the work folder of a job whose tasks deal by the plan


@dataclass(frozen=True)
class Plan:
    """A plan for the parts of ``normalized`` (its marker). Without ``decided`` their facts are all that is needed.

    ``departed`` are the keys that earlier slices had, or a list removed, and that are not dealt (`schemas.DEPARTED`);
    ``contents`` the contents that they had and that are not dealt (`schemas.CONTENTS`).
    """

    config: ShardConfig
    normalized: Mapping[str, Any]
    dealing: Dealing
    decided: split_assignment.Decided | None
    departed: pa.Table
    contents: pa.Table

    @property
    def known(self) -> dict[str, int]:
        """How the examples were known before, counted: see `split_assignment.Known`."""
        if self.decided:
            return self.decided.known.to_json()
        return split_assignment.Known(new=int(self.dealing.plan.counts.sum())).to_json()

    @property
    def groups(self) -> pa.Table:
        """The split of each group, by name: `schemas.GROUPS`."""
        groups = sorted(self.decided.groups.items()) if self.decided else []
        rows = [{"group": group, "split": SPLIT_NAMES[number]} for group, number in groups]
        return parquet_tables.table_of(schemas.GROUPS, rows)

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
    """The plan for these option values; ``earlier`` are the slices whose splits are kept. Tells what is remarkable.

    Raises DataError or UsageError where images and options do not fit. Of images in conflict with their group all keys
    are left in a file, with those that were listed, for --remove.
    """
    listed = read_keys(open_place(values["remove"])) if values["remove"] else None
    try:
        plan = plan_slices(root, values, normalized, earlier, listed)
    except GroupConflict as conflict:
        file = (root / "slices").make_folder() / f"{values['name']}.conflicts.txt"
        keys = "".join(f"{key}\n" for key in [*conflict.keys, *(listed or ())])
        mark = BYTE_ORDER_MARK if keys.startswith(BYTE_ORDER_MARK) else ""  # the first one is skipped
        replace_bytes(file, file.parent, f"{mark}{keys}".encode())
        raise GroupConflict(f"{conflict} {file}", conflict.keys) from None
    if not values.get("recorded_options"):
        _tell_unknown(listed or [], values["remove"], earlier, plan.decided)
    if plan.decided and (number := plan.decided.known.disagreeing):
        log(
            "shard",
            f"{number} images were moved and changed at once, and are where their content or group is:"
            f" {_few(plan.decided.known.named, number)}",
        )
    return plan


def recorded_options(root: Place, name: str) -> dict[str, Any]:
    """The option values that finished slices were made with; splits are those that they have."""
    config = ShardConfig.from_json(read_manifest(slices_stage(root, name))["config"])
    return {
        "split": SOURCE_SPLIT if config.split is None else config.split,
        "group_by": config.group_by,
        "splits_from": name,
        "drop_duplicates": config.drop_duplicates,
        "partition": config.partition,
        "workers": config.workers,
        "groups": config.groups,
        "slices": config.slices["train"],
        "seed": config.seed,
    }


def is_done_before(stage: Stage, values: Mapping[str, Any], normalized: str) -> bool:
    """Whether 'newest' asks for slices that are finished, of the ``normalized`` of this fingerprint.

    What they were made from may be gone, and then they could not be planned again.
    """
    if values["splits_from"] != NEWEST or not stage.marker.exists() or stage.work.exists():
        return False
    manifest = stage.read_marker()
    config = ShardConfig.from_json(manifest["config"])
    asked = ShardConfig(
        **{name: values[name] for name in ("partition", "workers", "groups", "seed", "group_by", "drop_duplicates")},
        split=config.split if values["split"] is None else _resolve_request(values["split"], {}, None),
        slices={**config.slices, "train": values["slices"] or config.slices["train"]},
        splits_from=config.splits_from,
        removed_keys=list_sha256(read_keys(open_place(values["remove"]))) if values["remove"] else None,
    )
    return manifest["lineage"] is not None and manifest["input"] == normalized and asked == config


def plan_slices(
    root: Place,
    values: Mapping[str, Any],
    normalized: Mapping[str, Any],
    earlier: Earlier | None,
    listed: Sequence[str] | None,
) -> Plan:
    """The plan for these option values, where the keys ``listed`` are to be left out.

    Raises DataError or UsageError where images and options do not fit.
    """
    _refuse_other_groups(values["group_by"], earlier)
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
        removed_keys=list_sha256(listed) if listed is not None else None,
    )
    removed = frozenset(listed or ()) | (earlier.memory.removed if earlier else frozenset())
    decided = None
    if asked.split or earlier or removed or asked.drop_duplicates or normalized.get("removed"):
        rules = Rules(asked, len(normalized["classes"]), earlier.memory if earlier else None, removed)
        decided = split_assignment.decide(rules, _live_parts(root, normalized))
    total = sum(_count_parts(normalized, decided), np.zeros((1, 1), dtype=np.int64))
    size_bytes = sum(part["bytes"] for part in normalized["parts"])
    records = sum(part["records"] for part in normalized["parts"])
    sizes, workers, wanted = split_sizes(total), values["workers"], values["slices"]
    if values.get("recorded_options"):  # there may be fewer images than there were
        wanted = max(workers, min(wanted, sizes["train"] // workers * workers))
    size_bytes = size_bytes * int(total.sum()) // max(records, 1)
    slices = resolve_slices(sizes, size_bytes, workers, wanted, values["slice_size"])
    config = ShardConfig(**{**vars(asked), "slices": slices})
    contents = schemas.CONTENTS.empty_table()
    if earlier and decided:
        contents = earlier.memory.departed_contents(decided.dealt_contents)
    departed = _departed(earlier, removed, decided)
    return Plan(config, normalized, Dealing.of_total(config, total), decided, departed, contents)


def dealing_of(job: Mapping[str, Any]) -> Dealing:
    """The dealing of a plan, from what a job's tasks are told: ``config``, ``classes`` and ``counts``."""
    config = ShardConfig.from_json(job["config"])
    strata = Strata(len(job["classes"]), config.partition == "stratified")
    plan = SharePlan(np.array(job["counts"], dtype=np.int64), tuple(config.slices.values()), config.seed)
    return Dealing(strata, plan, tuple(config.slices))


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
    dealt = own >= 0
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


def _refuse_other_groups(asked: str | None, earlier: Earlier | None) -> None:
    """Raise UsageError where earlier slices were grouped by a column, and these would not be."""
    before = earlier.manifest["config"]["group_by"] if earlier else None
    if before is not None and asked != before:
        raise UsageError(
            f"--splits-from: those slices keep each {before!r} in one split; give --group-by {before} too,"
            " or leave --splits-from out to assign all splits anew"
        )


def _tell_unknown(
    listed: list[str], file: str | None, earlier: Earlier | None, decided: split_assignment.Decided | None
) -> None:
    """Name the keys of --remove that nothing is known by. Raises UsageError where these are all."""
    unknown = [key for key in listed if decided is None or key not in decided.removed]
    if earlier:
        keys = earlier.memory.keys
        numbers = keys.find(unknown).tolist()
        unknown = [key for key, number in zip(unknown, numbers, strict=True) if number < 0 or keys.splits[number] < 0]
    if not unknown:
        return
    line = f"{len(unknown)} of {len(listed)} keys are unknown: {_few(list(map(repr, unknown)), len(unknown))}"
    if len(unknown) == len(listed):
        raise UsageError(f"--remove {file}: {line}; give keys as examples.parquet has them, one on each line")
    log("shard", f"--remove {file}: {line}")


def _few(names: Sequence[str], number: int) -> str:
    few = list(names[:MOST_NAMED])
    return ", ".join(few) + (f" and {number - len(few)} more" if number > len(few) else "")


def _count_parts(normalized: Mapping[str, Any], decided: split_assignment.Decided | None) -> Iterator[PartCounts]:
    if decided:
        return decided.counts()
    return (count_part(part["examples"], len(normalized["classes"])) for part in normalized["parts"])


def _live_parts(root: Place, normalized: Mapping[str, Any]) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    removed = Removed.read(root, normalized)
    for part in normalized["parts"]:
        rows = read_rows(root / "normalized", part["part"], COLUMNS)
        yield rows, removed.live(pack_of(part), rows["key"])


def _departed(earlier: Earlier | None, removed: frozenset[str], decided: split_assignment.Decided | None) -> pa.Table:
    gone = schemas.DEPARTED.empty_table().select(["key", "split"])
    unknown = sorted(removed)
    if earlier:
        assert decided is not None
        gone = earlier.memory.departed(decided.dealt)
        numbers = earlier.memory.keys.find(unknown)
        unknown = [key for key, number in zip(unknown, numbers.tolist(), strict=True) if number < 0]
    rows = gone.to_pylist() + [{"key": key, "split": None} for key in unknown]
    return parquet_tables.table_of(schemas.DEPARTED, [row | {"removed": row["key"] in removed} for row in rows])
