"""What the tasks of a check published, put together: nothing of it may be missing."""

from pathlib import Path
from typing import Any, cast

import pytest

from etl.errors import EnvironmentFailure
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from etl.verify.collect import Collected, bucket_place, task_place
from etl.verify.target import Target

LINES: list[dict[str, Any]] = [{"line": 0}, {"line": 1}]
SENT = ([2, 0, 1], [3, 0, 0])  # by task, to each bucket


@pytest.fixture
def results(tmp_path: Path) -> Place:
    """Of two tasks, and of the buckets that got lines."""
    place = open_place(str(tmp_path))
    for line, sent in zip(LINES, SENT, strict=True):
        tell(task_place(place, line["line"]), {"sent": sent})
    for bucket, lines in ((0, 5), (2, 1)):
        tell(bucket_place(place, bucket), {"lines": lines})
    return place


def tell(place: Place, result: dict[str, Any]) -> None:
    Path(place.path).write_bytes(json_bytes(result))


def collect(results: Place) -> Collected:
    return Collected.read(cast(Target, None), LINES, results)


def test_all_that_was_sent_is_there(results: Place) -> None:
    found = collect(results)
    assert (len(found.tasks), sorted(found.buckets)) == (2, [0, 2])


@pytest.mark.parametrize("lines", [4, 6, 0])
def test_a_line_that_is_lost_or_comes_twice_is_told(lines: int, results: Place) -> None:
    tell(bucket_place(results, 0), {"lines": lines})
    with pytest.raises(EnvironmentFailure, match=f"{lines} of 5 lines came out of the shuffle; run again"):
        collect(results)


def test_a_result_that_is_missing_is_told(results: Place) -> None:
    for place in (task_place(results, 1), bucket_place(results, 2)):
        place.delete()
        with pytest.raises(EnvironmentFailure, match=f"{place} is missing though the job ended"):
            collect(results)
        tell(place, {"sent": SENT[1]})
