"""Queues, in the answers of Hadoop's schedulers."""

from typing import Any

import pytest

from etl.hadoop.yarn_api import ResourceManager, has_queue

CAPACITY = {
    "type": "capacityScheduler",
    "queueName": "root",
    "queues": {
        "queue": [{"queueName": "default"}, {"queueName": "images", "queues": {"queue": [{"queueName": "nightly"}]}}]
    },
}
FAIR = {"type": "fairScheduler", "rootQueue": {"queueName": "root"}}


@pytest.mark.parametrize(
    ("answer", "there", "missing"),
    [
        (CAPACITY, [None, "default", "nightly", "root.images.nightly"], ["images", "small"]),
        (FAIR, [None, "other", "root.other"], []),
    ],
)
def test_queues(
    answer: dict[str, Any], there: list[str | None], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of FairScheduler, which makes them on demand, are not known."""
    manager = ResourceManager(["http://nowhere"])
    monkeypatch.setattr(manager, "_get", lambda path: {"scheduler": {"schedulerInfo": answer}})
    queues = manager.queues()
    assert [name for name in [*there, *missing] if has_queue(queues, name)] == there
