"""The metrics of a run, from ``RUN/metrics``: JSON lines of steps, of epochs, and of what the ranks used."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from etl.errors import DataError
from etl.stages.names import METRICS_FOLDER
from etl.storage.place import Place

PREFIX, SUFFIX = "steps-", ".jsonl"
PARTS = {"input": "input_s", "compute": "compute_s", "all-reduce": "reduce_s"}  # of a step's time; the rest is "other"
OTHER = "other"
OWN_S, STEP_S = "own_s", "step_s"  # a rank's time without the all-reduce, and with it
SMOOTHED_OVER = 50  # the window of a mean is so small a part of all steps

_SPREAD = pa.struct([("mean", pa.float64()), ("max", pa.float64()), ("slowest_rank", pa.int64())])
_REQUIRED = {
    **dict.fromkeys(("step", "epoch", "examples", "ranks"), pa.int64()),
    "time": pa.timestamp("ms", "UTC"),
    **dict.fromkeys((*PARTS.values(), OWN_S, STEP_S), _SPREAD),
}
_LISTS = dict.fromkeys(("sent_bytes", "received_bytes", "peak_memory_bytes"), pa.list_(pa.int64()))
_NUMBERS = dict.fromkeys(("loss", "accuracy", "rate"), pa.float64())
SCHEMA = pa.schema({"kind": pa.string(), **_REQUIRED, **_NUMBERS, "steps": pa.int64(), **_LISTS})

Series = npt.NDArray[np.float64]
Epoch = dict[str, Any]


@dataclass(frozen=True)
class Metrics:
    """``steps`` has a row for each step, ascending; ``epochs`` the metrics of each epoch by name, with "epoch" and
    "step"; ``usage`` the lines of what the ranks used.
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
    def parts_s(self) -> Series:
        """Seconds of `PARTS` and of the rest, the means over the ranks: of shape (steps, parts)."""
        parts = np.stack([self.over_ranks(name) for name in PARTS.values()], axis=1)
        return np.column_stack([parts, np.maximum(self.over_ranks(STEP_S) - parts.sum(axis=1), 0)])

    @property
    def seconds(self) -> Series:
        """When each step was over on rank 0, since the first one began."""
        times = self.steps["time"].to_numpy()
        return (times - times[:1]) / np.timedelta64(1, "s") + self.over_ranks(STEP_S)[:1]


def read_metrics(run: Place) -> Metrics:
    """All lines of the run in this folder. Raises DataError naming the file if one is damaged."""
    tables = [SCHEMA.empty_table(), *map(_read, metric_files(run))]
    table = _without_repeated(pa.concat_tables(tables, promote_options="permissive"))
    of_kind = {kind: table.filter(pc.equal(table["kind"], kind)) for kind in ("step", "epoch", "ranks")}
    lacking = [name for name in _REQUIRED if of_kind["step"][name].null_count]
    if lacking:
        raise DataError(f"{run / METRICS_FOLDER} is damaged (a step has no {lacking[0]}). Put back a sound copy")
    epochs = {row["epoch"]: numbers_of(row) for row in of_kind["epoch"].to_pylist()}
    usage = of_kind["ranks"].select(["steps", *_LISTS]).to_pylist()
    return Metrics(of_kind["step"], list(epochs.values()), usage)


def metric_files(run: Place) -> Iterator[Place]:
    """The files of lines in the order of their steps."""
    folder = run / METRICS_FOLDER
    names = [info.base_name for info in folder.children() if info.is_file]
    for name in sorted(names):
        if name.startswith(PREFIX) and name.endswith(SUFFIX):
            yield folder / name


def _read(place: Place) -> pa.Table:
    data = place.read_bytes()
    try:
        return read_json(
            io.BytesIO(data),
            read_options=ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=ParseOptions(explicit_schema=SCHEMA),
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{place} is damaged ({error}); put back a sound copy, or move the file away to see the rest"
        ) from None


def _without_repeated(lines: pa.Table) -> pa.Table:
    """A run that went back to a checkpoint has some steps twice: without what is before the last line of each."""
    never = np.iinfo(np.int64).max
    steps = lines["step"].fill_null(0).to_numpy()
    own = np.where(pc.equal(lines["kind"], "step").fill_null(False).to_numpy(zero_copy_only=False), steps, never)
    least_later = np.append(np.minimum.accumulate(own[::-1])[::-1][1:], never)
    return lines.filter(pa.array(steps < least_later[: len(steps)]))


def numbers_of(row: Mapping[str, Any]) -> Epoch:
    """The numbers of an epoch, of its line or of ``result.json``, which has no "step": then it is 0."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {**numbers, "epoch": int(row["epoch"]), "step": int(row.get("step") or 0)}


def smooth(values: Series) -> Series:
    """The mean of the last values at each, over a fiftieth of all; NaN do not count."""
    window = max(1, len(values) // SMOOTHED_OVER)
    known = np.isfinite(values)
    sums, counts = (np.cumsum(each) for each in (np.where(known, values, 0.0), known.astype(np.float64)))
    sums[window:], counts[window:] = sums[window:] - sums[:-window], counts[window:] - counts[:-window]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
