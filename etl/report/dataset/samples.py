"""Examples and rejects to show on a page: chosen by a seed, so many and no more, however large the dataset is."""

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.formats.example import parse
from etl.formats.preview import picture_of
from etl.formats.records import read_records
from etl.normalized.live_rows import live_facts
from etl.normalized.parts import pack_of, rejects_places
from etl.raw.removed import Removed
from etl.report.dataset.sources import choose
from etl.report.dataset.thumbnails import Picture, thumbnail
from etl.storage.place import Place

PICTURES_OF_FEW_CLASSES, FEW_CLASSES = 12, 12
PICTURES_OF_A_CLASS = 8
PICTURES_OF_A_REASON = 12
MOST_REJECT_LISTS = 64
LARGEST_BYTES = 64 << 20

Positions = npt.NDArray[np.int64]


class ClassSampler:
    """Chooses ``number`` random rows of each of ``labels`` from the column of labels, which comes in batches.

    It draws a number for each row and keeps the smallest of each class: which rows those are depends on the seed
    alone, not on the batches.
    """

    def __init__(self, labels: Sequence[int], number: int, seed: int) -> None:
        self._generator = np.random.default_rng(abs(seed))
        self._number = number
        self._next = 0
        self._below = np.zeros(max(labels, default=0) + 1)
        self._below[list(labels)] = 1.0
        self._draws = np.zeros(0)
        self._labels = np.zeros(0, np.int64)
        self._positions = np.zeros(0, np.int64)

    def add(self, labels: npt.NDArray[np.int32]) -> None:
        """The labels of the next rows, int32 of shape (rows,)."""
        draws = self._generator.random(len(labels))
        known = np.minimum(labels, len(self._below) - 1)
        near = np.flatnonzero((draws < self._below[known]) & (known == labels))
        self._draws = np.concatenate((self._draws, draws[near]))
        self._labels = np.concatenate((self._labels, labels[near].astype(np.int64)))
        self._positions = np.concatenate((self._positions, near + self._next))
        self._next += len(labels)
        self._keep_smallest()

    def _keep_smallest(self) -> None:
        order = np.lexsort((self._draws, self._labels))
        ordered = self._labels[order]
        rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
        kept = order[rank < self._number]
        last = order[rank == self._number - 1]
        self._below[self._labels[last]] = self._draws[last]
        self._draws, self._labels, self._positions = self._draws[kept], self._labels[kept], self._positions[kept]

    @property
    def positions(self) -> Positions:
        """The rows chosen, ascending, int64 of shape (rows,)."""
        return np.sort(self._positions)


def sample_examples(folder: Place, manifest: Mapping[str, Any], labels: Sequence[int]) -> dict[int, list[Picture]]:
    """Pictures of random examples of each of these classes, by label; of each slice only the records shown are read.

    Raises DataError where the table of examples is damaged.
    """
    number = PICTURES_OF_FEW_CLASSES if len(labels) <= FEW_CLASSES else PICTURES_OF_A_CLASS
    sampler = ClassSampler(labels, number, manifest["config"]["seed"])
    table = folder / manifest["tables"]["examples"]["file"]
    for batch in parquet_tables.iterate_groups(table, ["label"]):
        sampler.add(batch["label"].to_numpy())
    columns = ["key", "label", "split", "slice", "offset", "size"]
    rows = parquet_tables.take_rows(table, sampler.positions.tolist(), columns).to_pylist()
    by_slice = defaultdict(list)
    for row in rows:
        by_slice[row["slice"]].append(row)
    pictures: dict[int, list[Picture]] = {label: [] for label in labels}
    for name, chosen in by_slice.items():
        for row, data in _read_ranges(folder / f"{name}.tfrecord", chosen):
            pictures[row["label"]].append(_example_picture(row, data, manifest["classes"][row["label"]]))
    return pictures


def _example_picture(row: Mapping[str, Any], record: bytes, class_name: str) -> Picture:
    alt = f"an example of class {class_name}: {row['key']}"
    caption = f"{row['key']} · {row['split']}"
    try:
        (found,) = read_records(io.BytesIO(record), row["slice"])
        data, _ = picture_of(parse(found.data))
    except (DataError, ValueError):  # a damaged record: `verify` is who tells of it
        data, alt, caption = b"", f"{alt} (damaged)", f"{caption} · damaged"
    return thumbnail(data, caption=caption, alt=alt)


def _read_ranges(place: Place, rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[Mapping[str, Any], bytes]]:
    """The bytes that each row's offset and size tell of, of one file; none where it is missing or they are many."""
    try:
        with place.open_input() as source:
            for row in rows:
                source.seek(min(row["offset"], source.size()))
                yield row, source.read(row["size"]) if row["size"] <= LARGEST_BYTES else b""
    except FileNotFoundError:
        for row in rows:
            yield row, b""


def sample_rejects(
    normalized: Place, marker: Mapping[str, Any], removed: Removed, seed: int
) -> dict[str, list[Picture]]:
    """Pictures of live rejects, by reason; from the lists of at most `MOST_REJECT_LISTS` parts, chosen by ``seed``.

    Raises DataError where a list is damaged.
    """
    pictures: dict[str, list[Picture]] = {reason: [] for reason in marker["counts"]["rejects_by_reason"]}
    parts = [part for part in marker["parts"] if live_facts(part)["rejects"]["count"]]
    for part in choose(parts, MOST_REJECT_LISTS, seed):
        tar, listed = rejects_places(normalized, part["part"])
        rows = parquet_tables.read_table(listed, ["key", "reason", "detail", "offset", "size"])
        live = rows.filter(pa.array(removed.live(pack_of(part), rows["key"])))
        chosen = _choose_rejects(live, {reason: len(own) for reason, own in pictures.items()})
        for row, data in _read_ranges(tar, chosen):
            pictures.setdefault(row["reason"], []).append(_reject_picture(row, data))
    return pictures


def _choose_rejects(rows: pa.Table, have: dict[str, int]) -> list[dict[str, Any]]:
    """Rows of reasons of which there are not enough yet."""
    chosen = []
    for row in rows.to_pylist():
        if have.get(row["reason"], 0) < PICTURES_OF_A_REASON:
            have[row["reason"]] = have.get(row["reason"], 0) + 1
            chosen.append(row)
    return chosen


def _reject_picture(row: Mapping[str, Any], data: bytes) -> Picture:
    alt = f"reject {row['key']} ({row['reason']})"
    return thumbnail(data, caption=f"{row['key']} · {row['detail']}", alt=alt)
