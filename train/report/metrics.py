"""Read the metrics of a run, and compute what its report shows of them: the time of a step by part, usage by rank."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from etl.errors import DataError
from etl.stages.names import METRICS_FOLDER
from etl.storage.place import Place
from train.parallel.usage import Usage
from train.runs.metrics import FILE_NAME, PARTS, SECONDS

OTHER = "other"  # what is left of a step beside its `PARTS`
OWN = "all but all-reduce"  # of a rank: the others wait for the one with the most
SMOOTHING = 50  # the window of a moving mean is this fraction of the steps

_SPREAD = pa.struct([("mean", pa.float64()), ("max", pa.float64()), ("slowest_rank", pa.int64())])
_REQUIRED = {
    **dict.fromkeys(("step", "epoch", "examples", "ranks"), pa.int64()),
    "time": pa.timestamp("ms", "UTC"),
    **dict.fromkeys(SECONDS, _SPREAD),
}
_NUMBERS = dict.fromkeys(("loss", "accuracy", "rate"), pa.float64())
_USAGE = {"steps": pa.int64(), **{field.name: pa.list_(pa.int64()) for field in fields(Usage)}}
SCHEMA = pa.schema({"kind": pa.string(), **_REQUIRED, **_NUMBERS, **_USAGE})

Series = npt.NDArray[np.float64]
Epoch = dict[str, Any]


@dataclass(frozen=True)
class Metrics:
    """``steps`` has a row for each step, ascending; ``epochs`` the metrics of each epoch by name, with "epoch" and
    "step"; ``usage`` the lines of kind ``ranks``.
    """

    steps: pa.Table
    epochs: list[Epoch]
    usage: list[Mapping[str, Any]]

    @property
    def is_empty(self) -> bool:
        """True if there are neither steps nor epochs."""
        return not self.steps.num_rows and not self.epochs

    def column(self, name: str) -> Series:
        """A number of each step; NaN if it has none."""
        return self.steps[name].to_numpy().astype(np.float64)

    def over_ranks(self, name: str, what: str = "mean") -> Series:
        """The ``mean`` or the ``max`` over the ranks of the seconds of each step, or the ``slowest_rank``."""
        return pc.struct_field(self.steps[name].combine_chunks(), what).to_numpy().astype(np.float64)

    @property
    def images_per_s(self) -> float:
        """Of the median step."""
        return float(np.median(self.column("examples") / np.maximum(self.over_ranks("step_s"), 1e-9)))

    @property
    def end_s(self) -> Series:
        """When each step ended on rank 0, in seconds since the first one began."""
        times = self.steps["time"].to_numpy()
        return (times - times[:1]) / np.timedelta64(1, "s") + self.over_ranks("step_s")[:1]

    @property
    def parts_s(self) -> dict[str, Series]:
        """Seconds of each step by part, `OTHER` last: means over the ranks."""
        parts = {part: self.over_ranks(name) for part, name in PARTS.items()}
        return {**parts, OTHER: np.maximum(self.over_ranks("step_s") - sum(parts.values()), 0)}


def read_metrics(run: Place) -> Metrics:
    """Read all lines of the run in this folder. Raises DataError naming the file if one is damaged."""
    folder = run / METRICS_FOLDER
    names = [info.base_name for info in folder.children() if FILE_NAME.fullmatch(info.base_name)]
    tables = [SCHEMA.empty_table(), *(_read(folder / name) for name in names)]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # an epoch's number that is a text in one of them
        raise damaged(folder, error) from None
    of_kind = {kind: table.filter(pc.equal(table["kind"], kind)) for kind in ("step", "epoch", "ranks")}
    steps, usage = of_kind["step"], of_kind["ranks"].select(list(_USAGE)).to_pylist()
    of_steps = steps.select(list(_REQUIRED)).flatten()
    faults = [f"a step has no {name}" for name in of_steps.column_names if of_steps[name].null_count]
    faults += ["an epoch has no number"] * of_kind["epoch"]["epoch"].null_count
    faults += ["a line of ranks is not whole" for line in usage if not _is_whole(line)]
    if faults:
        raise DataError(f"{folder} is damaged ({faults[0]}). Put back a sound copy")
    # a step that an elastic run lost and took again has two lines: the last one counts
    _, from_end = np.unique(steps["step"].to_numpy()[::-1], return_index=True)
    epochs = {row["epoch"]: numbers_of(row) for row in of_kind["epoch"].to_pylist()}
    return Metrics(steps.take(steps.num_rows - 1 - from_end), list(epochs.values()), usage)


def _is_whole(line: Mapping[str, Any]) -> bool:
    """True if this line of kind ``ranks`` has its steps, and the same number of each kind of numbers."""
    lists = [line[field.name] or [None] for field in fields(Usage)]
    return bool(line["steps"]) and len({*map(len, lists)}) == 1 and not any(None in numbers for numbers in lists)


def _read(place: Place) -> pa.Table:
    data = place.read_bytes()
    try:
        return read_json(
            io.BytesIO(data),
            read_options=ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=ParseOptions(explicit_schema=SCHEMA),
        )
    except pa.ArrowInvalid as error:
        raise damaged(place, error) from None


def damaged(place: Place, what: object) -> DataError:
    """The error for a file of a run that is not as the trainer writes it."""
    return DataError(f"{place} is damaged ({what}). Put back a sound copy, or move it away to see the rest")


def numbers_of(row: Mapping[str, Any]) -> Epoch:
    """The numbers of an epoch, of its line or of ``result.json``, which has no "step": then it is 0."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**numbers, "epoch": int(row["epoch"]), "step": int(row.get("step") or 0)}


def smooth(values: Series) -> Series:
    """The moving mean of the last values, of shape (steps,); those that are not finite do not count."""
    window = max(1, len(values) // SMOOTHING)
    is_finite = np.isfinite(values)
    counts = _window_sums(is_finite.astype(np.float64), window)
    return np.where(counts > 0, _window_sums(np.where(is_finite, values, 0.0), window) / np.maximum(counts, 1), np.nan)


def _window_sums(values: Series, window: int) -> Series:
    """The sum of each value and those before it in the window, of shape (steps,).

    Added up from both ends of blocks, because a huge value would stay in differences of sums from the beginning.
    """
    blocks = np.pad(values, (0, -len(values) % window)).reshape(-1, window)
    ends, begins = blocks.cumsum(axis=1), blocks[:, ::-1].cumsum(axis=1)[:, ::-1]
    ends[1:, :-1] += begins[:-1, 1:]
    return ends.ravel()[: len(values)]


@dataclass(frozen=True)
class PartTimes:
    """Seconds that the ranks spent in one part of a step: of the means over the ranks the mean, median and percentile
    over the steps, the largest of any rank, and the share of all their time.

    ``slowest`` is the rank that had the most of it most often, in a ``slowest_share`` of the steps; None for `OTHER`.
    """

    part: str
    mean_s: float
    median_s: float
    p95_s: float
    share: float
    largest_s: float | None = None
    slowest: int | None = None
    slowest_share: float | None = None


def part_times(metrics: Metrics) -> list[PartTimes]:
    """One for each of `PARTS`, `OTHER` and `OWN`."""
    shares = shares_of(metrics)
    shares[OWN] = sum(shares.values()) - shares["all-reduce"]
    found = []
    for part, seconds in {**metrics.parts_s, OWN: metrics.over_ranks("own_s")}.items():
        times = float(seconds.mean()), *np.quantile(seconds, [0.5, 0.95]).tolist(), shares[part]
        name = {**PARTS, OWN: "own_s"}.get(part)
        found.append(PartTimes(part, *times, *(_slowest(metrics, name) if name else ())))
    return found


def _slowest(metrics: Metrics, name: str) -> tuple[float, int, float]:
    """The largest value of any rank; the rank that was slowest most often, and its share of the steps."""
    slowest = Counter(metrics.over_ranks(name, "slowest_rank").astype(int).tolist())
    rank, steps = min(slowest.items(), key=lambda each: (-each[1], each[0]))
    return float(metrics.over_ranks(name, "max").max()), rank, steps / metrics.steps.num_rows


def shares_of(metrics: Metrics) -> dict[str, float]:
    """The share of each part in the time of all ranks; all 0 if no time passed."""
    sums = {part: float((seconds * metrics.column("ranks")).sum()) for part, seconds in metrics.parts_s.items()}
    return {part: own / (sum(sums.values()) or 1.0) for part, own in sums.items()}


@dataclass(frozen=True)
class RankUsage:
    """Bytes that ``rank`` sent and received in a step, on average, and the peak memory of its process, in bytes."""

    rank: int
    sent: int
    received: int
    peak_memory: int


def usage_by_rank(metrics: Metrics) -> list[RankUsage]:
    """By rank; of an elastic run, from the steps on its last number of ranks. Empty if nothing was measured."""
    lines = metrics.usage
    own = [line for line in lines if len(line["sent_bytes"]) == len(lines[-1]["sent_bytes"])]
    if not own:
        return []
    sent, received, memory = (np.array([line[field.name] for line in own]) for field in fields(Usage))
    steps = sum(line["steps"] for line in own)
    means = [np.rint(each.sum(axis=0) / steps).astype(int).tolist() for each in (sent, received)]
    return [RankUsage(rank, *each) for rank, each in enumerate(zip(*means, memory.max(axis=0).tolist(), strict=True))]
