"""What a page tells of the source images and the rejects: from ``normalized``, as the slices were made from it."""

from collections.abc import Mapping
from typing import Any

from etl.errors import DataError
from etl.raw.removed import Removed
from etl.report.dataset import charts
from etl.report.dataset.samples import sample_rejects
from etl.report.dataset.sources import SourceSurvey, survey_sources
from etl.report.drawing import Chart
from etl.report.text import count, percent, pixels
from etl.stages.layout import normalized_stage
from etl.storage.place import Place

SHOWN_FORMATS = 8
SHOWN_SIZES = 6

Facts = dict[str, Any]


def gather_origins(root: Place, manifest: Mapping[str, Any]) -> Facts:
    """By the template's names. Where the normalised images are gone or damaged, a line says so."""
    stage, seed = normalized_stage(root), manifest["config"]["seed"]
    marker = stage.find_generation(manifest["input"])
    if marker is None:
        return _unknown("the normalised images that these slices were made from are gone")
    try:
        removed = Removed.read(root, marker)
        survey = survey_sources(stage.folder, marker, removed, seed)
        rejects = sample_rejects(stage.folder, marker, removed, seed)
    except (DataError, FileNotFoundError) as error:
        return _unknown(str(error))
    by_reason = marker["counts"]["rejects_by_reason"]
    reasons = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))
    return {
        "survey": survey,
        "sources_note": "",
        "source_facts": describe(survey),
        "source_charts": draw(survey),
        "rejects": [(reason, by_reason[reason], rejects[reason]) for reason in reasons if by_reason[reason]],
        "reject_total": marker["counts"]["rejects"],
        "input_total": marker["counts"]["input"],
    }


def _unknown(why: str) -> Facts:
    return {
        "survey": None,
        "sources_note": f"Not known: {why}.",
        "source_facts": [],
        "source_charts": [],
        "rejects": None,
        "reject_total": 0,
        "input_total": None,
    }


def describe(survey: SourceSurvey) -> list[tuple[str, str]]:
    """What the survey found, in words, by name."""
    if not survey.images:
        return []

    def share(images: int) -> str:
        return percent(images / survey.images)

    formats = [
        f"{name} {count(images)} ({share(images)})" for name, images in survey.formats.most_common(SHOWN_FORMATS)
    ]
    common = [
        f"{pixels(width, height)} ({share(images)})" for width, height, images in survey.common_sizes(SHOWN_SIZES)
    ]
    target = pixels(survey.target_width, survey.target_height)
    return [
        ("formats", ", ".join(formats)),
        ("width", _sides(survey, survey.widths)),
        ("height", _sides(survey, survey.heights)),
        ("distinct sizes", count(len(survey.sizes)) if survey.sizes is not None else "very many"),
        *([("most common", ", ".join(common))] if common else []),
        ("enlarged", f"{count(survey.enlarged)} ({share(survey.enlarged)}) were smaller than {target}"),
    ]


def _sides(survey: SourceSurvey, of: Any) -> str:
    least, median, most = survey.quantiles(of)
    if least == most:
        return f"{count(least)} pixels"
    return f"{count(least)} to {count(most)} pixels, median {count(median)}"


def draw(survey: SourceSurvey) -> list[Chart]:
    """Charts of sizes and formats, where there is more than one of them."""
    drawn = []
    if survey.images and (survey.sizes is None or len(survey.sizes) > 1):
        drawn.append(charts.size_map(survey.grid, (survey.target_height, survey.target_width)))
        drawn.append(charts.side_histogram(survey.widths, survey.heights))
    if len(survey.formats) > 1:
        drawn.append(charts.format_bars(survey.formats.most_common(SHOWN_FORMATS)))
    return drawn
