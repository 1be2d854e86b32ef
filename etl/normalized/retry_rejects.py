"""Parts whose packs are normalized again: with looser limits, or after a night with slow or crashed decoders.

The pack becomes a part under the next name of its old part. If its images became what they were, the old part stays,
and remembers the limits that it was made with; the new one is deleted.
"""

from collections.abc import Mapping
from typing import Any

from etl.errors import DataError, UsageError
from etl.formats.parquet_tables import read_facts
from etl.images.config import FLAGS, NormalizeConfig
from etl.normalized.live_rows import count_live, live_facts
from etl.normalized.parts import Origin, read_rows, rows_place
from etl.raw.removed import Removed
from etl.storage.place import Place


def require_looser_limits(recorded: Mapping[str, Any], config: NormalizeConfig) -> None:
    """Raise UsageError unless ``config`` is the ``recorded`` one with limits that allow as much or more."""
    for name, value in config.to_json().items():
        if name != "limits" and recorded.get(name) != value:
            raise UsageError(
                f"--{name.replace('_', '-')}: {recorded.get(name)} there, {value} asked; rejects are tried again as all"
                f" images were normalised, only limits may be looser ({', '.join(FLAGS.values())})"
            )
    config.limits.refuse_less_than(NormalizeConfig.from_json(recorded).limits)


def parts_to_retry(marker: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of the marker of ``normalized`` for parts that have live rejects."""
    return [part for part in marker["parts"] if live_facts(part)["rejects"]["count"]]


def new_facts(normalized: Place, part: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the part that was made in place of ``part``, an entry of the marker.

    Raises DataError if no task has published it, or it was made of other images.
    """
    origin = Origin.of_part(part).next()
    place = rows_place(normalized, origin.part)
    if not place.exists():
        raise DataError(f"{place} is missing though the job ended; run again")
    facts = read_facts(place)
    if Origin.of_part(facts) != origin or facts["input"] != part["input"]:
        raise DataError(f"{place} does not hold the images of {part['part']}; remove it, and run again")
    return facts


def is_unchanged(part: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """True if the new part has the records of the old one, and as many rejects for each reason."""
    return (facts["sha256"], facts["rejects"]["by_reason"]) == (part["sha256"], part["rejects"]["by_reason"])


def changed_image(normalized: Place, part: str, facts: Mapping[str, Any]) -> str | None:
    """The key of an image whose record in the old part is not in the new one of these ``facts``, if there is one."""
    old, new = (read_rows(normalized, name, ["key", "crc32c"]).to_pylist() for name in (part, facts["part"]))
    kept = {row["key"]: row["crc32c"] for row in new}
    return next((row["key"] for row in old if kept.get(row["key"]) != row["crc32c"]), None)


def new_entry(
    normalized: Place, part: Mapping[str, Any], facts: Mapping[str, Any], removed: Removed, classes: int
) -> dict[str, Any]:
    """The next marker's entry for the new part of these ``facts``, which takes the place of ``part``."""
    entry = {
        **facts,
        "rows_sha256": rows_place(normalized, facts["part"]).sha256(),
        "removed": part["removed"],
    }
    if part["removed"]:
        entry["live"] = count_live(normalized, entry, removed, classes)
    return entry


def kept_entry(part: Mapping[str, Any], marker: Mapping[str, Any], config: NormalizeConfig) -> dict[str, Any]:
    """The next marker's entry for a part that stays: with its ``limits``, if those of ``config`` are others.

    A part without rejects is the same with any limits that allow more.
    """
    limits = part.get("limits", marker["config"]["limits"])
    entry = {name: value for name, value in part.items() if name != "limits"}
    return entry | ({"limits": limits} if part["rejects"]["count"] and limits != config.limits.to_json() else {})
