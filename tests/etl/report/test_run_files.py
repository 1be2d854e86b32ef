"""Runs whose files are damaged, and the functions that summarise long series."""

import json
import math
import re
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from etl.errors import DataError, RingsliceError
from etl.report.run.curves import extreme_positions, stretch_starts, trailing_mean
from etl.report.run.metrics import Step
from etl.report.run.waits import part_times
from tests.lib.report.pages import run_page
from tests.lib.report.run_folders import RunFolder


def line_with(key: str, value: object) -> Callable[[str], str]:
    return lambda line: json.dumps(json.loads(line) | {key: value})


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda line: line[:-1], "delimiter"),
        (line_with("input_s", [0.1, 0.1]), "no object with mean, max and slowest_rank"),
        (line_with("step_s", {"mean": math.nan, "max": 0.1, "slowest_rank": 0}), "must be finite"),
        (line_with("own_s", {"mean": 0.1, "max": 0.1, "slowest_rank": 2}), "slowest_rank of own_s is 2, of 2 ranks"),
        (line_with("time", "2026-01-02T03:04:05"), "no zone"),
        (line_with("loss", "low"), "'low' is no number"),
    ],
)
def test_a_damaged_line_is_named(damage: Callable[[str], str], what: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    RunFolder(folder).write_metrics()
    path = folder / "metrics" / "steps-000000021-000000040.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], damage(lines[4]), *lines[5:]]))
    with pytest.raises(DataError, match=rf"steps-000000021-000000040\.jsonl, line 5 is damaged \(.*{what}"):
        run_page(folder, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("name", "content", "what", "status"),
    [
        ("recipe.toml", "epochs = ", "recipe.toml is damaged", 1),
        ("result.json", "{", "result.json is not JSON", 3),
        ("result.json", '{"format": "other/1"}', "result.json is damaged (no result of a run)", 1),
        ("confusion-test.json", '{"format": "ringslice.confusion/2"}', "its format is 'ringslice.confusion/2'", 1),
        ("confusion-test.json", "COUNTS [[1]]", "counts of shape (1, 1) for 2 classes", 1),
        ("confusion-test.json", "COUNTS [[1, 2], [3, 4.5]]", "counts must be whole numbers", 1),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, what: str, status: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    RunFolder(folder).write_metrics()
    head = '{"format": "ringslice.confusion/1", "split": "test", "classes": ["a", "b"], "counts":'
    (folder / name).write_text(content.replace("COUNTS", head) + "}" * content.startswith("COUNTS"))
    with pytest.raises(RingsliceError, match=re.escape(what)) as raised:
        run_page(folder, tmp_path / "page.html")
    assert raised.value.status == status


numbers = st.floats(-1e6, 1e6, allow_nan=False) | st.just(math.nan)


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 300), elements=numbers), st.integers(4, 60))
def test_what_is_drawn_of_a_series_keeps_its_extremes(values: np.ndarray, most: int) -> None:
    positions = extreme_positions(values, most)
    known = np.flatnonzero(~np.isnan(values))
    assert len(positions) == len(known) if len(known) <= most else 0 < len(positions) <= most
    assert (np.diff(positions) > 0).all()
    assert set(positions) <= set(known)
    if len(known):
        drawn = values[positions]
        assert (drawn.min(), drawn.max()) == (np.nanmin(values), np.nanmax(values))
        assert (positions[0], positions[-1]) == (known[0], known[-1])


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 60), elements=numbers), st.integers(1, 70))
def test_trailing_means_are_those_of_numpy(values: np.ndarray, window: int) -> None:
    for number, mean in enumerate(trailing_mean(values, window)):
        own = values[max(0, number - window + 1) : number + 1]
        own = own[~np.isnan(own)]
        assert math.isnan(mean) if not len(own) else mean == pytest.approx(own.mean(), abs=1e-6)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_stretches_are_about_equal(length: int, most: int) -> None:
    sizes = np.diff([*stretch_starts(length, most), length])
    assert len(sizes) == min(length, most)
    assert sizes.sum() == length
    assert sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 30), st.just(4)), elements=st.floats(0, 10)))
def test_percentiles_are_those_of_sorted_values(seconds: np.ndarray) -> None:
    time = datetime(2026, 1, 2, tzinfo=UTC)
    steps = [
        Step(number, 1, time, 8, 0.5, 0.5, 0.1, 2, own, 2 * np.roll(own, 1), np.zeros(4, np.int64))
        for number, own in enumerate(seconds)
    ]
    for number, part in enumerate(part_times(steps)):
        own = seconds[:, number].tolist()
        assert part.median_s == pytest.approx(statistics.median(own))
        assert part.p95_s == pytest.approx(statistics.quantiles(own, n=20, method="inclusive")[-1])
        assert part.mean_s == pytest.approx(statistics.fmean(own))
        assert part.largest_s == (None if number == 3 else 2 * seconds[:, number - 1].max())
