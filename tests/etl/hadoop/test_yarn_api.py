"""Queues, in the answers of each of Hadoop's schedulers."""

from typing import Any

import pytest

from etl.hadoop.yarn_api import ResourceManager

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


@pytest.mark.parametrize(
    ("answer", "shown", "there", "missing"),
    [
        (CAPACITY, "default, nightly", ["default", "nightly", "root.images.nightly"], ["images", "small"]),
        (FAIR, "images.small, other", ["other", "root.other", "images.small"], ["small", "images", "x.other"]),
        (FIFO, "default", ["default"], ["other"]),
    ],
)
def test_queues(
    answer: dict[str, Any], shown: str, there: list[str], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ResourceManager(["http://nowhere"])
    monkeypatch.setattr(manager, "_get", lambda path: {"scheduler": {"schedulerInfo": answer}})
    found = manager.queues()
    assert str(found) == shown
    assert [name for name in there + missing if found.has(name)] == there
    assert found.may_make == (answer is FAIR)
