"""Parts whose rejects are tried again: with other limits, or after a night on which they were too slow or crashed.

A part is made once more where a reject of it is good now, or is one for another reason: under its next name, from the
records and rows of the part before, as they are, and those rejects, in the order of the pack. So its bytes are those
that normalising the whole pack would give now. Other parts stay, and remember the limits that they were made with.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.images.config import NormalizeConfig
from etl.images.limits import FLAGS
from etl.images.result import Normalized, Reject
from etl.images.sandbox import ImageHelper
from etl.normalized.live_rows import count_live, live_facts
from etl.normalized.part_writer import normalize_content, writing_part
from etl.normalized.parts import Origin, read_images, read_part, rejects_places, rows_place
from etl.raw.packs import Content, list_place
from etl.raw.removed import Removed
from etl.stages.names import WORK_FOLDER
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place

RETRY = "rejects, tried again"  # what the plan of a run says of it
REMEDY = "run: ringslice verify --every-stage --repair"

Outcome = tuple[dict[str, Any], Content, Normalized | Reject]


def require_other_limits_only(known: Mapping[str, Any], asked: NormalizeConfig) -> None:
    """Raise UsageError where ``asked`` is not the configuration ``known`` with limits that allow as much or more."""
    for name, value in asked.to_json().items():
        if name != "limits" and known.get(name) != value:
            raise UsageError(
                f"--{name.replace('_', '-')}: {known.get(name)} there, {value} asked; rejects are tried again as all"
                f" images were normalised, only limits may be looser ({', '.join(FLAGS.values())})"
            )
    asked.limits.refuse_less_than(NormalizeConfig.from_json(known).limits)


def stays_folder(normalized: Place) -> Place:
    """Where a file stands for each part of which nothing is to be made."""
    return normalized / WORK_FOLDER / "stays"


def parts_to_try(marker: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a marker of ``normalized`` says of those parts that have rejects which are live."""
    return [part for part in marker["parts"] if live_facts(part)["rejects"]["count"]]


@dataclass(frozen=True)
class RejectsAgain:
    """The rejects of one part, to be tried again; ``part`` is what the marker says of it.

    ``raw`` and ``normalized`` are the folders of those stages.
    """

    raw: Place
    normalized: Place
    part: Mapping[str, Any]

    @property
    def next(self) -> Origin:
        """The part that takes its place."""
        return Origin.of_part(self.part).next()

    @property
    def is_made(self) -> bool:
        """Whether the next part is there."""
        return rows_place(self.normalized, self.next.part).exists()

    @property
    def stays(self) -> bool:
        """Whether it was found that there is nothing to be made of it."""
        return self._stays.exists()

    @property
    def _stays(self) -> Place:
        return stays_folder(self.normalized) / f"{self.part['part']}.json"

    def is_among(self, made: Container[str], stay: Container[str]) -> bool:
        """Whether it was tried, by the names of the files beside parts and in `stays_folder`."""
        return rows_place(self.normalized, self.next.part).name in made or self._stays.name in stay

    def try_all(
        self,
        helper: ImageHelper,
        *,
        classes: list[str],
        attempts: Place,
        report: Callable[[int], None] = lambda images: None,
    ) -> dict[str, Any] | None:
        """Try each of the rejects, and publish the next part where that has changed anything; returns its facts.

        ``report`` is told how many rejects were tried, after each. No more is kept in memory than where a pack is
        normalised.

        Raises DataError where the files of the part are not those that the marker tells of.
        """
        if self.is_made:
            return parquet_tables.read_facts(rows_place(self.normalized, self.next.part))
        outcomes, same = self._outcomes(helper, report), list[Reject]()
        most_bytes = helper.config.limits.size_bytes
        for row, content, result in outcomes:
            if not isinstance(result, Reject) or result.reason.value != row["reason"]:
                known = ((*image, result) for image, result in zip(self._rejects(most_bytes), same, strict=False))
                return self._publish(helper, classes, attempts, chain(known, [(row, content, result)], outcomes))
            same.append(result)
        publish_bytes(self._stays, attempts, json_bytes({"rejects": len(same)}))
        return None

    def _outcomes(self, helper: ImageHelper, report: Callable[[int], None]) -> Iterator[Outcome]:
        for done, (row, content) in enumerate(self._rejects(helper.config.limits.size_bytes), start=1):
            yield row, content, normalize_content(helper, row, content)
            report(done)

    def _rejects(self, most_bytes: int) -> Iterator[tuple[dict[str, Any], Content]]:
        tar, listed = rejects_places(self.normalized, self.part["part"])
        return read_images(
            tar, _read_checked(listed, self.part["rejects"]["list_sha256"]), REMEDY, most_bytes=most_bytes
        )

    def _publish(
        self, helper: ImageHelper, classes: list[str], attempts: Place, outcomes: Iterator[Outcome]
    ) -> dict[str, Any]:
        part, origin = self.part["part"], self.next
        keys = [row["key"] for row in _read_checked(list_place(self.raw, origin.pack), origin.list_sha256, ["key"])]
        rows_file = rows_place(self.normalized, part)
        rows = _read_checked(rows_file, self.part["rows_sha256"])
        records = read_part(self.normalized, part, parquet_tables.read_table(rows_file, ["key", "size", "crc32c"]))
        goods = zip(rows, records, strict=True)
        with writing_part(self.normalized, attempts, origin, helper.config, classes) as writer:
            good, outcome = next(goods, None), next(outcomes, None)
            for key in keys:
                if good is not None and good[0]["key"] == key:
                    writer.keep(*good)
                    good = next(goods, None)
                elif outcome is not None and outcome[0]["key"] == key:
                    writer.add(*outcome)
                    outcome = next(outcomes, None)
                else:
                    raise DataError(f"{rows_file}: {key} of the pack is neither good nor a reject; {REMEDY}")
            if good is not None or outcome is not None:
                raise DataError(f"{rows_file} tells of images that are not of the pack; {REMEDY}")
        return writer.facts

    def entry(self, marker: Mapping[str, Any], config: NormalizeConfig, removed: Removed) -> dict[str, Any]:
        """What the next marker says of this part, or of the one that takes its place.

        ``marker`` is the one that ``part`` is of, ``config`` that of the next one. Raises DataError where a task has
        not published what it should, or other images than the part was made of.
        """
        place = rows_place(self.normalized, self.next.part)
        if not place.exists():
            if not self.stays:
                raise DataError(f"{place} is missing though the job ended; run again")
            return kept_entry(self.part, marker, config)
        facts = parquet_tables.read_facts(place)
        if Origin.of_part(facts) != self.next or not self._is_no_less(facts):
            raise DataError(f"{place} does not hold the images of {self.part['part']}; remove it, and run again")
        facts |= {"rows_sha256": place.sha256(), "removed": self.part["removed"]}
        if self.part["removed"]:
            facts["live"] = count_live(self.normalized, facts, removed, len(marker["classes"]))
        return facts

    def _is_no_less(self, facts: Mapping[str, Any]) -> bool:
        images = facts["records"] + facts["rejects"]["count"]
        return bool(images == facts["input"] == self.part["input"] and facts["records"] >= self.part["records"])


def kept_entry(part: Mapping[str, Any], marker: Mapping[str, Any], config: NormalizeConfig) -> dict[str, Any]:
    """What the next marker says of a part that stays: with its ``limits``, where those of ``config`` are others.

    A part without rejects is the same with any limits that allow more.
    """
    limits = part.get("limits", marker["config"]["limits"])
    told = {name: value for name, value in part.items() if name != "limits"}
    return told | ({"limits": limits} if part["rejects"]["count"] and limits != config.limits.to_json() else {})


def _read_checked(place: Place, sha256: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table. Raises DataError where it is not the one of this SHA-256."""
    if place.sha256() != sha256:
        raise DataError(f"{place} has another SHA-256 than the one recorded; {REMEDY}")
    rows: list[dict[str, Any]] = parquet_tables.read_table(place, columns).to_pylist()
    return rows
