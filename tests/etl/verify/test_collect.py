"""The results of a check's tasks, put together: none may be missing."""

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


def write(place: Place, result: dict[str, Any]) -> None:
    Path(place.path).write_bytes(json_bytes(result))


def collect(results: Place) -> Collected:
    return Collected.read(cast(Target, None), LINES, results)


def test_every_result_and_line_is_there(tmp_path: Path) -> None:
    results = open_place(str(tmp_path))
    for number, sent in enumerate(SENT):
        write(task_place(results, number), {"sent": sent})
    for bucket, lines in ((0, 5), (2, 1)):
        write(bucket_place(results, bucket), {"lines": lines})
    found = collect(results)
    assert (len(found.tasks), sorted(found.buckets)) == (2, [0, 2])
    for lines in (4, 6):
        write(bucket_place(results, 0), {"lines": lines})
        with pytest.raises(EnvironmentFailure, match=f"{lines} of 5 lines came out of the shuffle; run again"):
            collect(results)
    for place in (bucket_place(results, 0), task_place(results, 1)):
        place.delete()
        with pytest.raises(EnvironmentFailure, match=f"{place} is missing though the job ended"):
            collect(results)
