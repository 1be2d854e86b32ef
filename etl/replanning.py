"""The plan of a set of slices made once more, from its manifest: what a slice holds where no table tells any more."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import read_rows
from etl.partition.config import SOURCE_SPLIT, ShardConfig
from etl.slices.manifest import read_manifest
from etl.slices.plan import Plan, deal_rows, make_plan
from etl.slices.previous import Earlier, finished_slices, removed_keys
from etl.slices.writer import order_key
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place
from etl.verify import Target

WANTED = ["key", "sha256", "label", "split"]


def plan_again(target: Target, names: Sequence[str], attempts: Place) -> Iterator[tuple[str, pa.Table]]:
    """These slices by name, and the examples of each in their order: columns source, key and sha256.

    Raises DataError where the plan does not come out as it was: images or earlier slices are not there any more.
    """
    plan = _make_plan(target, attempts)
    fates = attempts / "fates.parquet"
    fates.delete()
    if plan.decided:
        parquet_tables.write_tables(fates, attempts, schemas.FATES, plan.decided.tables())
    wanted = {number: name for number, name in enumerate(target.slice_names) if name in names}
    found: dict[int, list[pa.Table]] = {number: [] for number in wanted}
    for task in plan:
        rows = read_rows(target.root / "normalized", task["part"], WANTED)
        _, slices = deal_rows(plan.dealing, rows, task, fates if plan.decided else None)
        source = pa.array([task["part"]] * rows.num_rows, pa.string())
        rows = rows.select(["key", "sha256"]).add_column(0, "source", source)
        for number in wanted:
            found[number].append(rows.filter(pa.array(slices == number)))
    for number, name in wanted.items():
        rows = pa.concat_tables(found[number])
        keys = rows["key"].to_pylist()
        yield name, rows.take(sorted(range(len(keys)), key=lambda row: order_key(keys[row], plan.dealing.plan.seed)))


def _make_plan(target: Target, attempts: Place) -> Plan:
    told = target.manifest["config"]
    config = ShardConfig.from_json(told)
    values = vars(config) | {
        "split": SOURCE_SPLIT if config.split is None else config.split,
        "slices": config.slices["train"],
        "slice_size": 1,
        "remove": _removed_keys(target, attempts).uri if config.removed_keys else None,
    }
    assert target.dataset is not None
    plan = make_plan(target.root, values, target.dataset, _find_earlier(target, config.splits_from))
    if plan.config.to_json() | {"removed_keys": None} != told | {"removed_keys": None}:
        raise DataError(f"a new plan is not the one of {target.slices.marker}")
    return plan


def _removed_keys(target: Target, attempts: Place) -> Place:
    """A list of the keys that were removed; it may be longer than the one given, by those that were removed earlier."""
    listed = attempts / "removed.txt"
    replace_bytes(listed, attempts, "\n".join(removed_keys(target.slices.folder)).encode())
    return listed


def _find_earlier(target: Target, fingerprint: str | None) -> Earlier | None:
    if fingerprint is None:
        return None
    for stage in finished_slices(target.root):
        if stage.fingerprint() == fingerprint:
            return Earlier(stage.folder, read_manifest(stage), fingerprint)
    raise DataError("neither the table of examples nor the slices whose splits were kept are there")
