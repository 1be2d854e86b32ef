"""Which processes ``TF_CONFIG`` names."""

import json

import pytest

from etl.errors import UsageError
from train.parallel.cluster import CHIEF, require_servers, require_workers, workers_of

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


CHIEF_TASK = {"type": "chief", "index": 0}
SERVED = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def test_a_process_beside_servers_knows_its_role() -> None:
    task = require_servers(json.dumps({"cluster": SERVED, "task": CHIEF_TASK}))
    assert (task.role, task.index, task.cluster["worker"]) == (CHIEF, 0, ["b:1", "c:1"])
    assert require_servers(json.dumps({"cluster": SERVED, "task": TASK})).index == 1


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"ps": []}, CHIEF_TASK),
        ({"ps": ["b:1"]}, CHIEF_TASK),
        ({"chief": ["a:1", "e:1"]}, CHIEF_TASK),
        ({"evaluator": ["e:1"]}, CHIEF_TASK),
        ({}, {"type": "ps", "index": 1}),
        ({}, {"type": "evaluator", "index": 0}),
    ],
)
def test_clusters_without_a_chief_workers_and_servers_are_refused(
    changes: dict[str, object], task: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match="names no chief, workers and ps HOST:PORT with this process among them"):
        require_servers(json.dumps({"cluster": {**SERVED, **changes}, "task": task}))
