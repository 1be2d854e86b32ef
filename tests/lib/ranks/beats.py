"""Beats for tests."""

from dataclasses import replace

from train.monitor.heartbeat import Beat

BEAT = Beat(
    rank=0,
    size=4,
    generation=0,
    host="host0",
    pid=100,
    count=10,
    epoch=1,
    step=14,
    phase="reading",
    alone=False,
    slice="train-00003-of-00008",
    offset=123_456,
    idle_s=46.0,
    number=50,
)


def beat(rank: int, **fields: object) -> Beat:
    """One of ``rank``, of four, in its 10th phase, without progress for 46 s, but for ``fields``."""
    return replace(BEAT, rank=rank, host=f"host{rank}", **fields)  # type: ignore[arg-type]
