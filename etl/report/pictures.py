"""The images on a page: source images in numbers; a bounded number of pictures of examples and rejects."""

import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.example import parse, picture_of
from etl.formats.records import open_record
from etl.images.config import RAW, Limits, NormalizeConfig
from etl.images.geometry import LONGEST, PAD
from etl.images.result import Reason, Reject
from etl.images.sandbox import DecodeWorker
from etl.normalized.parts import live_facts, live_rows, pack_of, rejects_places
from etl.raw.packs import RemovedRows
from etl.report.charts import Cells, Chart, heatmap
from etl.report.render import count, data_uri, percent, pixels
from etl.stages.layout import normalized_stage
from etl.stages.marker import Generation
from etl.storage.place import Place

SIDE = 96  # pixels: drawn at half of that or less on fine screens
CONFIG = NormalizeConfig(
    SIDE, SIDE, LONGEST, format=RAW, only_shrink=True, limits=Limits(frames=sys.maxsize, aspect=sys.maxsize)
)
JPEG_QUALITY = 80
PICTURES_OF_FEW_CLASSES, FEW_CLASSES = 12, 12
PICTURES_OF_A_CLASS = 8
PICTURES_OF_A_REASON = 12
MAX_REJECT_LISTS = 64
MAX_PICTURE_BYTES = 64 << 20
_NEVER_DECODED = (Reason.TOO_SLOW, Reason.OUT_OF_MEMORY, Reason.CRASHED)  # the decoder would fail again

SHOWN_FORMATS = 8
SHOWN_SIZES = 6
MAX_PARTS = 256  # whose rows are read, at most 10,000 each
BINS_PER_OCTAVE = 4  # of the sizes of images
SCHEMA = pa.schema([schemas.ROWS.field(name) for name in ("source_format", "source_width", "source_height")])

T = TypeVar("T")
Facts = dict[str, Any]
Sides = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picture:
    """A picture of a page; ``uri`` is None if it cannot be decoded. ``width`` and ``height`` in pixels."""

    uri: str | None
    width: int
    height: int
    caption: str
    alt: str

    @property
    def is_tiny(self) -> bool:
        """True if it is to be enlarged with its pixels kept sharp."""
        return max(self.width, self.height) <= SIDE // 2


def thumbnail(worker: DecodeWorker, data: bytes, *, caption: str, alt: str) -> Picture:
    """A picture of an image file, decoded by a ``worker`` of `CONFIG`; without a URI if it cannot be decoded."""
    found = worker.normalize(data)
    if isinstance(found, Reject):
        return Picture(None, 0, 0, caption, alt)
    kind, buffer = "png" if max(found.height, found.width) <= SIDE // 2 else "jpeg", io.BytesIO()
    Image.frombytes("RGB", (found.width, found.height), found.encoded).save(buffer, kind, quality=JPEG_QUALITY)
    return Picture(data_uri(buffer.getvalue(), kind), found.width, found.height, caption, alt)


def sample_examples(folder: Place, manifest: Mapping[str, Any], labels: Sequence[int]) -> dict[int, list[Picture]]:
    """Pictures of the first examples of each of these classes, by label: a sample, because slices are shuffled.

    Only the records shown are read. Raises DataError if the table of examples is damaged.
    """
    number = PICTURES_OF_FEW_CLASSES if len(labels) <= FEW_CLASSES else PICTURES_OF_A_CLASS
    table = folder / manifest["tables"]["examples"]["file"]
    columns = ["key", "label", "split", "slice", "offset", "size"]
    by_slice = defaultdict(list)
    for shown in first_of_classes(parquet_tables.iterate_groups(table, columns), labels, number):
        by_slice[shown["slice"]].append(shown)
    pictures: dict[int, list[Picture]] = {label: [] for label in labels}
    with DecodeWorker(CONFIG) as worker:
        for name, chosen in by_slice.items():
            for row, data in _read_ranges(folder / f"{name}.tfrecord", chosen):
                pictures[row["label"]].append(_example_picture(worker, row, data, manifest["classes"][row["label"]]))
    return pictures


def first_of_classes(groups: Iterable[pa.Table], labels: Sequence[int], number: int) -> list[dict[str, Any]]:
    """The first ``number`` rows of each of the ``labels``, in their order. No more ``groups`` are read than needed."""
    left, rows = dict.fromkeys(labels, number), list[dict[str, Any]]()
    for group in groups:
        own, taken = group["label"].to_numpy(), list[int]()
        for label in [label for label, lacking in left.items() if lacking]:
            found = np.flatnonzero(own == label)[: left[label]]
            left[label] -= len(found)
            taken += found.tolist()
        rows += group.take(pa.array(sorted(taken), pa.int64())).to_pylist()
        if not any(left.values()):
            break
    return rows


def _example_picture(worker: DecodeWorker, row: Mapping[str, Any], record: bytes, class_name: str) -> Picture:
    alt = f"an example of class {class_name}: {row['key']}"
    caption = f"{row['key']} · {row['split']}"
    if not record:
        return Picture(None, 0, 0, caption, alt)
    try:
        data, _ = picture_of(parse(open_record(record, 0, row["slice"]).data))
    except (DataError, ValueError):  # a damaged record: `verify` reports it
        data, alt, caption = b"", f"{alt} (damaged)", f"{caption} · damaged"
    return thumbnail(worker, data, caption=caption, alt=alt)


def _read_ranges(place: Place, rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Mapping[str, Any], bytes]]:
    """The bytes at each row's offset, of its size, of one file; empty if it is missing or they are many."""
    try:
        with place.open_input() as source:
            for row in rows:
                source.seek(min(row["offset"], source.size()))
                yield row, source.read(row["size"]) if row["size"] <= MAX_PICTURE_BYTES else b""
    except FileNotFoundError:
        for row in rows:
            yield row, b""


def sample_rejects(normalized: Generation, removed: RemovedRows, seed: int) -> dict[str, list[Picture]]:
    """Pictures of live rejects, by reason; from the lists of at most `MAX_REJECT_LISTS` parts, chosen by ``seed``.

    Raises DataError if a list is damaged.
    """
    pictures: dict[str, list[Picture]] = {reason: [] for reason in normalized.marker["counts"]["rejects_by_reason"]}
    chosen: Counter[str] = Counter()
    parts = [part for part in normalized.entries if live_facts(part)["rejects"]["count"]]
    with DecodeWorker(CONFIG) as worker:
        for part in sample(parts, MAX_REJECT_LISTS, seed):
            tar, listed = rejects_places(normalized.folder, part["part"])
            table = parquet_tables.read_table(listed, ["key", "reason", "detail", "offset", "size"])
            rows = []
            for row in removed.filter(pack_of(part), table).to_pylist():
                chosen[row["reason"]] += 1
                if chosen[row["reason"]] <= PICTURES_OF_A_REASON:
                    rows.append(row)
            for row, data in _read_ranges(tar, rows):
                caption, alt = f"{row['key']} · {row['detail']}", f"reject {row['key']} ({row['reason']})"
                shown = b"" if row["reason"] in _NEVER_DECODED else data
                pictures.setdefault(row["reason"], []).append(thumbnail(worker, shown, caption=caption, alt=alt))
    return pictures


def sample(things: Sequence[T], most: int, seed: int) -> list[T]:
    """``things``, or a seeded choice of ``most`` of them, in their order."""
    if len(things) <= most:
        return list(things)
    taken = np.random.default_rng(abs(seed)).choice(len(things), most, replace=False)
    return [things[number] for number in np.sort(taken)]


def gather_sources(root: Place, manifest: Mapping[str, Any]) -> Facts:
    """Facts of source images and rejects, by the template's names.

    The images are the live ones of all parts, or of a choice of `MAX_PARTS` by the seed of the slices. If the
    normalized images are gone or damaged, a line says so.
    """
    found: Facts = {"sources_note": "", "source_facts": [], "source_charts": [], "rejects": None, "input_total": None}
    stage, seed = normalized_stage(root), manifest["config"]["seed"]
    try:
        normalized = stage.find_generation(manifest["input"])
        if normalized is None:
            gone = "the normalized images that these slices were made from are gone"
            return found | {"sources_note": f"Not known: {gone}."}
        parts = [part for part in normalized.entries if live_facts(part)["records"]]
        chosen = sample(parts, MAX_PARTS, seed)
        removed = RemovedRows.read(root, normalized.marker)
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
        found |= describe(images, NormalizeConfig.from_json(normalized.marker["config"]))
    reasons = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))
    return found | {
        "rejects": [(reason, by_reason[reason], rejects[reason]) for reason in reasons if by_reason[reason]],
        "reject_total": counts["rejects"],
        "input_total": counts["input"],
    }


def describe(images: pa.Table, config: NormalizeConfig) -> Facts:
    """Formats and sizes of source images, rows of `SCHEMA`, in words by name and as a chart.

    ``config`` is that of their normalized images.
    """

    def share(number: int) -> str:
        return percent(number / images.num_rows)

    found = images["source_format"].value_counts().to_pylist()
    formats = sorted(((each["values"] or "?", each["counts"]) for each in found), key=lambda each: -each[1])
    widths, heights = (images[name].to_numpy().astype(np.int64) for name in SCHEMA.names[1:])
    sizes, numbers = np.unique(np.stack([widths, heights]), axis=1, return_counts=True)
    common = np.argsort(-numbers, kind="stable")[:SHOWN_SIZES]
    enlarged = count_enlarged(widths, heights, config)
    facts = [
        ("formats", ", ".join(f"{name} {count(own)} ({share(own)})" for name, own in formats[:SHOWN_FORMATS])),
        ("width", _range(widths)),
        ("height", _range(heights)),
        ("distinct sizes", count(len(numbers))),
        ("most common", ", ".join(f"{pixels(*map(int, sizes[:, each]))} ({share(numbers[each])})" for each in common)),
        ("enlarged", f"{count(enlarged)} ({share(enlarged)})"),
    ]
    return {"source_facts": facts, "source_charts": [size_map(widths, heights, config)] if len(numbers) > 1 else []}


def count_enlarged(widths: Sides, heights: Sides, config: NormalizeConfig) -> int:
    """The number of images that are enlarged, see `etl.images.geometry.make_plan`."""
    if config.only_shrink:
        return 0
    is_narrow, is_low = widths < config.width, heights < config.height
    fits_inside = config.fit in (PAD, LONGEST)
    return int((is_narrow & is_low if fits_inside else is_narrow | is_low).sum())


def _range(sides: Sides) -> str:
    least, median, most = pc.quantile(pa.array(sides), q=[0, 0.5, 1], interpolation="lower").to_pylist()
    if least == most:
        return f"{count(least)} pixels"
    return f"{count(least)} to {count(most)} pixels, median {count(median)}"


def size_map(widths: Sides, heights: Sides, config: NormalizeConfig) -> Chart:
    """Source images by width and height, in `BINS_PER_OCTAVE` bins for each doubling."""
    first = np.floor(np.log2(max(1, min(widths.min(), heights.min()))) * BINS_PER_OCTAVE)
    last = np.floor(np.log2(max(widths.max(), heights.max())) * BINS_PER_OCTAVE) + 1
    edges = 2.0 ** (np.arange(first, last + 1) / BINS_PER_OCTAVE)
    counts, _, _ = np.histogram2d(heights, widths, bins=[edges * (1 - 1e-9)] * 2)
    every = max(1, len(edges) // 12)
    labels = [f"{edge:,.0f}" if not number % every else "" for number, edge in enumerate(edges[:-1])]
    cells = Cells(np.where(counts > 0, counts, np.nan), labels, labels, has_counts=True)
    how = f"{pixels(config.width, config.height)}, fit {config.fit}{', only shrunk' * config.only_shrink}"
    caption = f"Images by width and height in pixels; normalized to {how}."
    return heatmap("Source sizes", ("width from", "height from"), cells, caption)
