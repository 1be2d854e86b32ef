"""Several pieces of work at once: how they end."""

import sys
from collections.abc import Generator
from itertools import count
from threading import Barrier, Thread
from types import FrameType

import pytest

from etl.threads import in_threads
from tests.lib.commands import PATIENCE_S, run, succeeded

# Interrupts itself while it works. Python loses an interrupt that comes during a garbage collection: it is repeated.
INTERRUPTED = """
import os, signal, sys
from threading import Event, Thread, current_thread, main_thread
from etl.threads import in_threads

at_once, ended, begun, closed = int(sys.argv[1]), Event(), [], []

def interrupt():
    pause_s = 0.01
    while not ended.wait(pause_s):
        os.kill(os.getpid(), signal.SIGINT)
        pause_s = 10.0

def work(item):
    begun.append(item)
    try:
        if item == at_once - 1:
            Thread(target=interrupt).start()
        while True:
            yield
    finally:
        closed.append((item, current_thread() is main_thread()))

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    in_threads(work, range(9), at_once)
except KeyboardInterrupt as raised:  # while its traceback has the frames that work was done in
    ended.set()
    assert sorted(item for item, _ in closed) == sorted(begun), (begun, closed)
    assert {here for _, here in closed} == {at_once == 1}
    print("interrupted")
"""

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


CALLBACKS = {"weakref", "_weakrefset"}  # Python calls them when an object is gone, and ignores what they raise


def interrupt_at(number: int) -> bool:
    """Interrupt `in_threads` at the so many-th of the places where Python raises what a signal's handler raises: where
    a function begins, and after a call of one written in C. False if there are fewer.

    It must end, and every work with it.
    """
    events, begun, closed, interrupted = count(1), list[int](), list[int](), list[int]()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        is_place = event in {"call", "c_return"} and frame.f_code is not run_interrupted.__code__
        is_place = is_place and frame.f_globals["__name__"] not in CALLBACKS
        if is_place and next(events) == number:
            raise KeyboardInterrupt

    def work(item: int) -> Generator[None]:
        begun.append(item)
        try:
            yield
        finally:
            closed.append(item)

    def run_interrupted() -> None:
        sys.setprofile(interrupt)
        try:
            in_threads(work, range(6), 3)
        except KeyboardInterrupt:
            interrupted.append(number)
        finally:
            sys.setprofile(None)

    thread = Thread(target=run_interrupted, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"it hangs after an interrupt at event {number}"
    assert sorted(begun) == sorted(closed)
    return bool(interrupted)


def test_an_interrupt_at_any_moment_ends_all(no_collection: None) -> None:
    assert next(number for number in count(1) if not interrupt_at(number)) > 5


@pytest.mark.integration
@each_number
def test_an_interrupt_ends_all_before_it_is_raised(at_once: int) -> None:
    assert succeeded(run(sys.executable, "-c", INTERRUPTED, at_once)).stdout == "interrupted\n"
