"""Where a process says it is, from many threads at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.train.monitor.conftest import Clock
from train.monitor.heartbeat import OUT, READING, Beat, Pulse

SLICE = "train-00003-of-00008"


def test_it_says_where_it_is() -> None:
    pulse = Pulse()
    assert pulse.where == "starting"
    pulse.enters(READING, epoch=2, step=13)
    pulse.reads(SLICE, 1_234_567)
    assert pulse.where == f"epoch 2, step 13, reading {SLICE} at offset 1,234,567"
    pulse.enters("stepping")
    assert pulse.where == f"epoch 2, step 13, stepping, its reader at {SLICE} at offset 1,234,567"
    pulse.enters("evaluating", epoch=2)
    assert pulse.beat().when == "epoch 2, step 13"
    pulse.enters("evaluating", epoch=3)
    assert pulse.beat().when == "epoch 3"


def test_only_what_all_ranks_go_through_is_counted() -> None:
    pulse = Pulse()
    pulse.enters("reading")
    pulse.does("loading the checkpoint")
    pulse.ticks()
    assert (pulse.beat().count, pulse.beat().alone) == (1, True)
    pulse.enters("stepping")
    assert (pulse.beat().count, pulse.beat().alone) == (2, False)
    pulse.joins(3, 4, generation=1)
    beat = pulse.beat()
    assert (beat.rank, beat.size, beat.generation, beat.count) == (3, 4, 1, 0)


def test_out_of_the_ring_nothing_counts() -> None:
    pulse = Pulse()
    pulse.enters("stepping")
    pulse.leaves()
    pulse.enters("reading")
    assert pulse.beat().count == OUT
    pulse.joins(0, 2, generation=1)
    pulse.enters("reading")
    assert pulse.beat().count == 1


@pytest.mark.parametrize(
    ("progress", "words"),
    [("enters", ["x"]), ("does", ["x"]), ("ticks", []), ("reads", [SLICE, 0]), ("joins", [0, 1]), ("leaves", [])],
)
def test_everything_that_is_reported_is_progress(progress: str, words: list[object], clock: Clock) -> None:
    pulse = Pulse(clock)
    clock.now += 100
    assert pulse.beat().idle_s == 100
    getattr(pulse, progress)(*words)
    assert pulse.beat().idle_s == 0


def test_a_beat_goes_through_json() -> None:
    pulse = Pulse()
    pulse.enters(READING, 1, 2)
    pulse.reads("é\n", 0)
    beat = pulse.beat()
    assert Beat.from_json(json.loads(json.dumps(beat.as_json()))) == beat
    with pytest.raises(TypeError):
        Beat.from_json({"rank": 1})


def test_many_threads_lose_no_count_and_no_beat() -> None:
    pulse = Pulse()

    def work(thread: int) -> list[int]:
        numbers = []
        for step in range(500):
            pulse.enters(READING, thread, step)
            numbers.append(pulse.beat().number)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for own in pool.map(work, range(8)) for number in own]
    assert sorted(numbers) == list(range(1, 4001))
    assert pulse.beat().count == 4000
