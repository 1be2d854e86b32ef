"""The source images and the rejects on a page: from ``normalized``, as the slices were made from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.normalized.live_rows import live_facts, live_rows
from etl.raw.removed import Removed
from etl.report.charts import Chart
from etl.report.dataset import charts
from etl.report.dataset.samples import choose, sample_rejects
from etl.report.text import count, percent, pixels
from etl.stages.layout import normalized_stage
from etl.stages.marker import Generation
from etl.storage.place import Place

SHOWN_FORMATS = 8
SHOWN_SIZES = 6
MAX_PARTS = 256  # whose rows are read, at most 10,000 each
COLUMNS = ["source_format", "source_width", "source_height"]

Facts = dict[str, Any]


@dataclass(frozen=True)
class SourceSurvey:
    """The format, width and height of source images, from ``parts`` of all parts; ``target`` is (height, width)."""

    rows: pa.Table
    target: tuple[int, int]
    parts: int
    all_parts: int

    @property
    def images(self) -> int:
        return int(self.rows.num_rows)


def gather_origins(root: Place, manifest: Mapping[str, Any]) -> Facts:
    """By the template's names. If the normalized images are gone or damaged, a line says so."""
    stage, seed = normalized_stage(root), manifest["config"]["seed"]
    normalized = stage.find_generation(manifest["input"])
    if normalized is None:
        return _unknown("the normalized images that these slices were made from are gone")
    try:
        removed = Removed.read(root, normalized.marker)
        survey = survey_sources(normalized, removed, seed)
        rejects = sample_rejects(normalized, removed, seed)
    except (DataError, FileNotFoundError) as error:
        return _unknown(str(error))
    counts = normalized.marker["counts"]
    by_reason = counts["rejects_by_reason"]
    reasons = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))
    return {
        "survey": survey,
        "sources_note": "",
        **describe(survey),
        "rejects": [(reason, by_reason[reason], rejects[reason]) for reason in reasons if by_reason[reason]],
        "reject_total": counts["rejects"],
        "input_total": counts["input"],
    }


def _unknown(why: str) -> Facts:
    nothing: Facts = {"source_facts": [], "source_charts": [], "reject_total": 0, "input_total": None}
    return nothing | {"survey": None, "sources_note": f"Not known: {why}.", "rejects": None}


def survey_sources(normalized: Generation, removed: Removed, seed: int) -> SourceSurvey:
    """Survey the good images that are live, of all parts or of a seeded choice of `MAX_PARTS`.

    Raises DataError if a part's rows cannot be read, FileNotFoundError if there are none.
    """
    parts = [part for part in normalized.entries if live_facts(part)["records"]]
    chosen = choose(parts, MAX_PARTS, seed)
    schema = pa.schema(dict(zip(COLUMNS, (pa.string(), pa.int32(), pa.int32()), strict=True)))
    tables = [live_rows(normalized.folder, part, removed, COLUMNS).select(COLUMNS).cast(schema) for part in chosen]
    rows, size = pa.concat_tables([schema.empty_table(), *tables]), normalized.marker["config"]["size"]
    return SourceSurvey(rows, tuple(size), len(chosen), len(parts))


def describe(survey: SourceSurvey) -> Facts:
    """What the survey found, in words by name and, if there is more than one of them, as charts."""
    if not survey.images:
        return {"source_facts": [], "source_charts": []}

    def share(images: int) -> str:
        return percent(images / survey.images)

    found = survey.rows["source_format"].value_counts().to_pylist()
    formats = sorted(((each["values"] or "?", each["counts"]) for each in found), key=lambda each: -each[1])
    widths, heights = (survey.rows[name].to_numpy().astype(np.int64) for name in COLUMNS[1:])
    sizes, images = np.unique(np.stack([widths, heights]), axis=1, return_counts=True)
    common = np.argsort(-images, kind="stable")[:SHOWN_SIZES]
    enlarged = int(((widths < survey.target[1]) | (heights < survey.target[0])).sum())
    target = pixels(survey.target[1], survey.target[0])
    facts = [
        ("formats", ", ".join(f"{name} {count(own)} ({share(own)})" for name, own in formats[:SHOWN_FORMATS])),
        ("width", _sides(widths)),
        ("height", _sides(heights)),
        ("distinct sizes", count(len(images))),
        ("most common", ", ".join(f"{pixels(*map(int, sizes[:, each]))} ({share(images[each])})" for each in common)),
        ("enlarged", f"{count(enlarged)} ({share(enlarged)}) were smaller than {target}"),
    ]
    drawn: list[Chart] = []
    if len(images) > 1:
        drawn += [charts.size_map(widths, heights, survey.target), charts.side_curves(widths, heights)]
    if len(formats) > 1:
        drawn.append(charts.format_bars(formats[:SHOWN_FORMATS]))
    return {"source_facts": facts, "source_charts": drawn}


def _sides(sides: charts.Counts) -> str:
    least, median, most = pc.quantile(pa.array(sides), q=[0, 0.5, 1], interpolation="lower").to_pylist()
    if least == most:
        return f"{count(least)} pixels"
    return f"{count(least)} to {count(most)} pixels, median {count(median)}"
