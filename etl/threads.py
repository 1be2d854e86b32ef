"""Several pieces of work at once, that end together when one of them fails or this process is told to stop."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from threading import Event, Semaphore
from typing import TypeVar

Item = TypeVar("Item")

_END = object()


def in_threads(work: Callable[[Item], Generator[None]], items: Iterable[Item], at_once: int) -> None:
    """Do the ``work`` on each item, on ``at_once`` of them at the same time; with 1, here and in order.

    This waits without a limit, as long as ``work`` takes until it yields next.

    ``work`` yields wherever it may be stopped; its generator is closed there, once another has raised or this thread
    is interrupted. Raises what the first to fail raised, when none is at work any more.
    """
    stopping, at_work = Event(), Semaphore(at_once)

    def do(item: Item) -> None:
        try:
            with at_work, closing(work(item)) as steps:
                while not stopping.is_set() and next(steps, _END) is not _END:
                    pass
        except BaseException:
            stopping.set()
            raise

    if at_once == 1:
        for item in items:
            do(item)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="work") as pool:
        try:
            waiting = [pool.submit(do, item) for item in items]
            done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)
            for _ in range(at_once):  # the pool does not know a thread whose start was interrupted
                at_work.acquire()
            at_work.release(at_once)
