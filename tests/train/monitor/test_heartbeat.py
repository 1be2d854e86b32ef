"""The position of a rank, set by many threads at once."""

from concurrent.futures import ThreadPoolExecutor

from train.monitor.heartbeat import OUT, READING, Status

SLICE = "train-00003-of-00008"


def test_it_reports_its_position() -> None:
    status = Status()
    assert status.beat().where == "starting"
    status.phase(READING, epoch=2, step=13)
    status.progress(SLICE, 1_234_567)
    assert status.beat().where == f"epoch 2, step 13, reading {SLICE} at offset 1,234,567"
    status.phase("stepping")
    assert status.beat().where == f"epoch 2, step 13, stepping, its reader at {SLICE} at offset 1,234,567"
    status.phase("evaluating", epoch=2)
    assert status.beat().when == "epoch 2, step 13"
    status.phase("evaluating", epoch=3)
    assert status.beat().when == "epoch 3"


def test_only_what_all_ranks_go_through_is_counted() -> None:
    status = Status()
    status.phase("reading")
    status.local_phase("loading the checkpoint")
    status.progress()
    assert (status.beat().count, status.beat().alone) == (1, True)
    status.phase("stepping")
    assert (status.beat().count, status.beat().alone) == (2, False)
    status.joined(3, 4, generation=1)
    beat = status.beat()
    assert (beat.rank, beat.size, beat.generation, beat.count) == (3, 4, 1, 0)


def test_out_of_the_ring_nothing_counts() -> None:
    status = Status()
    status.phase("stepping")
    status.left()
    status.phase("reading")
    assert status.beat().count == OUT
    status.joined(0, 2, generation=1)
    status.phase("reading")
    assert status.beat().count == 1


def test_many_threads_lose_no_count_and_no_beat() -> None:
    status = Status()

    def work(thread: int) -> list[int]:
        numbers = []
        for step in range(500):
            status.phase(READING, thread, step)
            numbers.append(status.beat().number)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for own in pool.map(work, range(8)) for number in own]
    assert sorted(numbers) == list(range(1, 4001))
    assert status.beat().count == 4000
