"""The source images and the rejects on a page: from ``normalized``, as the slices were made from it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.normalized.parts import live_facts, live_rows
from etl.raw.removed import Removed
from etl.report.charts import COUNTS, Cells, Chart, heatmap
from etl.report.pictures import choose, sample_rejects
from etl.report.render import count, percent, pixels
from etl.stages.layout import normalized_stage
from etl.storage.place import Place

SHOWN_FORMATS = 8
SHOWN_SIZES = 6
MAX_PARTS = 256  # whose rows are read, at most 10,000 each
BINS_PER_OCTAVE = 4  # of the sizes of images
SCHEMA = pa.schema({"source_format": pa.string(), "source_width": pa.int32(), "source_height": pa.int32()})

Facts = dict[str, Any]
Sides = npt.NDArray[np.int64]


def gather_sources(root: Place, manifest: Mapping[str, Any]) -> Facts:
    """By the template's names. If the normalized images are gone or damaged, a line says so.

    The images are the live ones of all parts, or of a choice of `MAX_PARTS` by the seed of the slices.
    """
    found: Facts = {"sources_note": "", "source_facts": [], "source_charts": [], "rejects": None, "input_total": None}
    stage, seed = normalized_stage(root), manifest["config"]["seed"]
    normalized = stage.find_generation(manifest["input"])
    if normalized is None:
        return found | {"sources_note": "Not known: the normalized images that these slices were made from are gone."}
    parts = [part for part in normalized.entries if live_facts(part)["records"]]
    chosen = choose(parts, MAX_PARTS, seed)
    try:
        removed = Removed.read(root, normalized.marker)
        tables = [live_rows(stage.folder, part, removed, SCHEMA.names).cast(SCHEMA) for part in chosen]
        rejects = sample_rejects(normalized, removed, seed)
    except (DataError, FileNotFoundError) as error:
        return found | {"sources_note": f"Not known: {error}."}
    images, counts = pa.concat_tables([SCHEMA.empty_table(), *tables]), normalized.marker["counts"]
    by_reason = counts["rejects_by_reason"]
    if len(chosen) < len(parts):
        number = f"{count(len(chosen))} of {count(len(parts))} parts, chosen by the seed"
        found["sources_note"] = f"From the {count(images.num_rows)} images of {number}."
    if images.num_rows:
        found |= describe(images, tuple(normalized.marker["config"]["size"]))
    reasons = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))
    return found | {
        "rejects": [(reason, by_reason[reason], rejects[reason]) for reason in reasons if by_reason[reason]],
        "reject_total": counts["rejects"],
        "input_total": counts["input"],
    }


def describe(images: pa.Table, target: tuple[int, int]) -> Facts:
    """Formats and sizes of source images, rows of `SCHEMA`, in words by name and as a chart.

    ``target`` is (height, width) in pixels.
    """

    def share(number: int) -> str:
        return percent(number / images.num_rows)

    found = images["source_format"].value_counts().to_pylist()
    formats = sorted(((each["values"] or "?", each["counts"]) for each in found), key=lambda each: -each[1])
    widths, heights = (images[name].to_numpy().astype(np.int64) for name in SCHEMA.names[1:])
    sizes, numbers = np.unique(np.stack([widths, heights]), axis=1, return_counts=True)
    common = np.argsort(-numbers, kind="stable")[:SHOWN_SIZES]
    enlarged = int(((widths < target[1]) | (heights < target[0])).sum())
    wording = pixels(target[1], target[0])
    facts = [
        ("formats", ", ".join(f"{name} {count(own)} ({share(own)})" for name, own in formats[:SHOWN_FORMATS])),
        ("width", _range(widths)),
        ("height", _range(heights)),
        ("distinct sizes", count(len(numbers))),
        ("most common", ", ".join(f"{pixels(*map(int, sizes[:, each]))} ({share(numbers[each])})" for each in common)),
        ("enlarged", f"{count(enlarged)} ({share(enlarged)}) were smaller than {wording}"),
    ]
    return {"source_facts": facts, "source_charts": [size_map(widths, heights, wording)] if len(numbers) > 1 else []}


def _range(sides: Sides) -> str:
    least, median, most = pc.quantile(pa.array(sides), q=[0, 0.5, 1], interpolation="lower").to_pylist()
    if least == most:
        return f"{count(least)} pixels"
    return f"{count(least)} to {count(most)} pixels, median {count(median)}"


def size_map(widths: Sides, heights: Sides, target: str) -> Chart:
    """Source images by width and height, in steps of a part of an octave."""
    first = np.floor(np.log2(max(1, min(widths.min(), heights.min()))) * BINS_PER_OCTAVE)
    last = np.floor(np.log2(max(widths.max(), heights.max())) * BINS_PER_OCTAVE) + 1
    edges = 2.0 ** (np.arange(first, last + 1) / BINS_PER_OCTAVE)
    counts, _, _ = np.histogram2d(heights, widths, bins=[edges * (1 - 1e-9)] * 2)
    every = max(1, len(edges) // 12)
    labels = [f"{edge:,.0f}" if not number % every else "" for number, edge in enumerate(edges[:-1])]
    cells = Cells(np.where(counts > 0, counts, np.nan), labels, labels, are=COUNTS)
    caption = f"Images by width and height in pixels; they were brought to {target}."
    return heatmap("Source sizes", ("width from", "height from"), cells, caption)
