"""Several pieces of work at once: how they end."""

import os
import signal
from collections.abc import Generator
from threading import Barrier, Event, Thread, get_ident, main_thread

import pytest

from etl.threads import in_threads

each_number = pytest.mark.parametrize("at_once", [1, 3])


@each_number
def test_everything_is_done_once(at_once: int) -> None:
    done = []

    def work(item: int) -> Generator[None]:
        yield
        done.append(item)

    in_threads(work, range(20), at_once)
    assert (done if at_once == 1 else sorted(done)) == list(range(20))


def test_one_that_fails_ends_all_where_they_may_be_stopped() -> None:
    together, closed = Barrier(3), list[int]()

    def work(item: int) -> Generator[None]:
        try:
            together.wait(timeout=300)
            if item == 1:
                raise ValueError(item)
            while True:
                yield
        finally:
            closed.append(item)

    with pytest.raises(ValueError, match="1"):
        in_threads(work, range(9), 3)
    assert sorted(closed) == [0, 1, 2]  # the others were never begun


def press_interrupt(ended: Event) -> None:
    """Ctrl-C, and once more where nothing comes of it: Python loses one that comes while it collects garbage."""
    pause_s = 0.01
    while not ended.wait(pause_s):
        os.kill(os.getpid(), signal.SIGINT)
        pause_s = 10.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt that Python loses
@each_number
def test_an_interrupt_ends_all_before_it_is_raised(at_once: int) -> None:
    """Also while its traceback is held, and with it the frames that work was done in."""
    begun, closed = list[int](), list[tuple[int, bool]]()

    def work(item: int) -> Generator[None]:
        begun.append(item)
        try:
            if item == at_once - 1:
                interrupter.start()
            while True:
                yield
        finally:
            closed.append((item, get_ident() == main_thread().ident))

    for _ in range(20):
        ended = Event()
        interrupter = Thread(target=press_interrupt, args=(ended,))
        with pytest.raises(KeyboardInterrupt) as raised:
            in_threads(work, range(9), at_once)
        ended.set()
        interrupter.join()
        assert raised.tb is not None
        assert sorted(item for item, _ in closed) == sorted(begun)
    assert {here for _, here in closed} == {at_once == 1}
