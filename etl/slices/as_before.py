"""Slices that are made anew as they were made: the job `shard` with ``as_before``, by `ringslice erase`."""

from typing import Any

from etl.partition.config import SOURCE_SPLIT, ShardConfig
from etl.slices.manifest import read_manifest
from etl.stages.layout import slices_stage
from etl.storage.place import Place


def recorded_values(root: Place, name: str) -> dict[str, Any]:
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
