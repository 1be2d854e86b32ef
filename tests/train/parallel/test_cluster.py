"""Which workers ``TF_CONFIG`` names."""

import json

import pytest

from etl.errors import UsageError
from train.parallel.cluster import require_workers, workers_of

TASK = {"type": "worker", "index": 1}


def test_workers_are_those_of_the_cluster() -> None:
    assert workers_of(json.dumps({"cluster": {"worker": ["a:1", "b:2222"]}, "task": TASK})) == ["a:1", "b:2222"]


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"worker": "127.0.0.1:1"},
        {"worker": ["a:1"]},  # without the second, which this process is
        {"worker": ["a:1", 2]},
        {"worker": ["a:1", "b"]},
        {"worker": ["a:1", "b:99999"]},
        {"worker": ["a:1", "a:1"]},
        {"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    ],
)
def test_others_are_refused(cluster: object) -> None:
    with pytest.raises(UsageError, match="names no workers HOST:PORT with this process among them"):
        require_workers(json.dumps({"cluster": cluster, "task": TASK}))
