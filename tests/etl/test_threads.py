"""Several pieces of work at once: how they end."""

import sys
from collections.abc import Generator
from itertools import count
from threading import Barrier, Thread
from types import FrameType

import pytest

from etl.threads import in_threads
from tests.lib.commands import PATIENCE_S


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


CALLBACKS = {"weakref", "_weakrefset"}  # Python calls them when an object is gone, and ignores what they raise


def interrupt_at(number: int, at_once: int) -> bool:
    """Interrupt `in_threads` at the so many-th of the places where Python raises what a signal's handler raises: where
    a function begins, and after a call of one written in C. False if there are fewer.

    It must end, and every work with it.
    """
    events, begun, closed, interrupted = count(1), list[int](), list[int](), list[bool]()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        is_place = event in {"call", "c_return"} and frame.f_code is not run_interrupted.__code__
        is_place = is_place and frame.f_globals["__name__"] not in CALLBACKS
        if is_place and next(events) == number:
            raise KeyboardInterrupt

    def work(item: int) -> Generator[None]:
        try:
            begun.append(item)
            yield
        finally:
            closed.append(item)

    def run_interrupted() -> None:
        sys.setprofile(interrupt)
        try:
            in_threads(work, range(6), at_once)
        except KeyboardInterrupt:  # while its traceback has the frames that work was done in
            interrupted.append(sorted(begun) == sorted(closed))
        finally:
            sys.setprofile(None)

    thread = Thread(target=run_interrupted, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"it hangs after an interrupt at event {number}"
    assert all(interrupted)
    return bool(interrupted)


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_interrupt_at_any_moment_ends_all(at_once: int, no_collection: None) -> None:
    assert next(number for number in count(1) if not interrupt_at(number, at_once)) > 5
