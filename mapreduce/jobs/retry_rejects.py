"""Retry the rejects of a finished normalization: with looser limits, or after decoders were slow or crashed.

The finished stage is renewed: packs with rejects are normalized again, to a part under the next name of their old part.
If the new part has the same images, it is deleted, and the old part stays, with the limits of its own time in the
marker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etl.errors import DataError, UsageError
from etl.images.config import FLAGS, NormalizeConfig
from etl.normalized.parts import Origin, live_facts, read_entry, read_rows, rows_place
from etl.raw.packs import Removed
from etl.stages.layout import PARTS, raw_stage
from etl.stages.marker import Generation
from etl.stages.run import Run
from etl.stages.stage import Stage
from etl.storage.place import Place

LISTING = "rejects, tried again"  # in the plan of the stage, so that only another retry resumes it

Part = Mapping[str, Any]  # its entry in the marker


def plan_retry(root: Place, stage: Stage, values: Mapping[str, Any]) -> tuple[Generation, NormalizeConfig]:
    """The generation whose rejects are tried again with these values of options, and the configuration that they give.

    Raises UsageError if ``stage`` is unfinished, or if options other than limits differ.
    """
    parent = stage.read_generation()
    raw = raw_stage(root).find_generation(parent.marker["input"])
    if raw is None:
        raise UsageError(f"{stage.folder} was made from other packs than {raw_stage(root).folder} has or had")
    config = NormalizeConfig.resolve(values, raw.marker["pixels"])
    _require_looser_limits(parent.marker["config"], config)
    planned = stage.plan.read_json() if stage.plan.exists() else None
    if planned is not None and planned["identity"]["input"] != parent.marker["input"]:
        raise UsageError(f"{stage.folder} is unfinished; first run normalize without --retry-rejects")
    return parent, config


def retried_entries(
    run: Run, root: Place, parent: Generation, retried: Sequence[Part], config: NormalizeConfig
) -> list[dict[str, Any]]:
    """The entries of the next generation after ``parent``; deletes new parts that are equal to those ``retried``.

    Raises DataError if a task has not published its part, or if a good image has changed.
    """
    removed, classes = Removed.read(root, parent.marker), len(parent.marker["classes"])
    made = {
        part["part"]: read_entry(run.folder, Origin.of_part(part).next(), part["input"], removed, classes)
        for part in retried
    }
    entries, faults = list[dict[str, Any]](), list[str]()
    for part in parent.entries:
        entry = made.get(part["part"])
        is_unchanged = entry is not None and _is_unchanged(part, entry)
        changed = entry and not is_unchanged and _changed_image(run.folder, part["part"], entry["part"])
        if entry is not None and (is_unchanged or changed):
            run.delete(run.folder / file for file in PARTS.files(entry))
        if changed:
            faults.append(f"{rows_place(run.folder, part['part'])}: {changed}")
        entries.append(_kept_entry(part, parent.marker, config) if entry is None or is_unchanged else entry)
    if faults:
        raise DataError(
            f"{faults[0]} is not what it was (other versions of libraries, or a decoder that was too slow); run"
            " again, or normalize again with --overwrite"
        )
    return entries


def retry_facts(parent: Generation, retried: Sequence[Part], entries: Sequence[Part]) -> dict[str, Any]:
    """The facts of a retry for ``run.json``."""
    before = set(parent.entries.column("part"))
    tried, left = (sum(live_facts(part)["rejects"]["count"] for part in parts) for parts in (retried, entries))
    reused, decoded = sum(part["part"] in before for part in entries), sum(part["input"] for part in retried)
    return {"decoded": decoded, "reused": reused, "rejects_tried": tried, "now_good": tried - left}


def _require_looser_limits(recorded: Mapping[str, Any], config: NormalizeConfig) -> None:
    """Raise UsageError unless ``config`` is the ``recorded`` one with limits that allow as much or more."""
    for name, value in config.to_json().items():
        if name != "limits" and recorded.get(name) != value:
            raise UsageError(
                f"--{name.replace('_', '-')}: {recorded.get(name)} there, {value} asked; --retry-rejects only takes"
                f" looser limits ({', '.join(FLAGS.values())})"
            )
    config.limits.refuse_less_than(NormalizeConfig.from_json(recorded).limits)


def _is_unchanged(part: Part, facts: Part) -> bool:
    """True if the new part has the records of the old one, and as many rejects for each reason."""
    return (facts["sha256"], facts["rejects"]["by_reason"]) == (part["sha256"], part["rejects"]["by_reason"])


def _changed_image(normalized: Place, part: str, made: str) -> str | None:
    """The key of an image whose record in ``part`` is not in the part that was ``made`` in its place, if any."""
    old, new = (read_rows(normalized, name, ["key", "crc32c"]).to_pylist() for name in (part, made))
    kept = {row["key"]: row["crc32c"] for row in new}
    return next((row["key"] for row in old if kept.get(row["key"]) != row["crc32c"]), None)


def _kept_entry(part: Mapping[str, Any], marker: Mapping[str, Any], config: NormalizeConfig) -> dict[str, Any]:
    """The next marker's entry for a part that stays: with its ``limits``, if those of ``config`` are others.

    A part without rejects is the same with any limits that allow more.
    """
    limits = part.get("limits", marker["config"]["limits"])
    entry = {name: value for name, value in part.items() if name != "limits"}
    return entry | ({"limits": limits} if part["rejects"]["count"] and limits != vars(config.limits) else {})
