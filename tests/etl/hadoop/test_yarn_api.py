"""Queues, in the answers of each of Hadoop's schedulers."""

from typing import Any

import pytest

from etl.hadoop.yarn_api import Queues, ResourceManager

CAPACITY = {
    "type": "capacityScheduler",
    "queueName": "root",
    "queues": {
        "queue": [{"queueName": "default"}, {"queueName": "images", "queues": {"queue": [{"queueName": "nightly"}]}}]
    },
}
FAIR = {
    "type": "fairScheduler",
    "rootQueue": {
        "queueName": "root",
        "childQueues": {
            "queue": [
                {"type": "fairSchedulerLeafQueueInfo", "queueName": "root.other"},
                {"queueName": "root.images", "childQueues": {"queue": [{"queueName": "root.images.small"}]}},
            ]
        },
    },
}
FIFO = {"type": "fifoScheduler", "capacity": 1.0, "qstate": "RUNNING"}


def queues(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> Queues:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    manager = ResourceManager(["http://nowhere"])
    monkeypatch.setattr(manager, "_get", lambda path: {"scheduler": {"schedulerInfo": answer}})
    return manager.queues()


@pytest.mark.parametrize(
    ("answer", "told", "there", "missing"),
    [
        (CAPACITY, "default, nightly", ["default", "nightly", "root.images.nightly"], ["images", "small"]),
        (FAIR, "images.small, other", ["other", "root.other", "images.small"], ["small", "images", "x.other"]),
        (FIFO, "default", ["default"], ["other"]),
    ],
)
def test_queues(
    answer: dict[str, Any], told: str, there: list[str], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = queues(monkeypatch, answer)
    assert str(found) == told
    assert [name for name in there + missing if found.has(name)] == there
    assert found.may_make == (answer is FAIR)
