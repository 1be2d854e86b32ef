"""Several pieces of work at once, that end together when one of them fails or this process is told to stop."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")


def in_threads(work: Callable[[Item], Generator[None]], items: Iterable[Item], at_once: int) -> None:
    """Do the ``work`` on each item, on ``at_once`` of them at the same time; with 1, here and in order.

    ``work`` yields wherever it may be stopped; its generator is closed there, once another has raised or this thread
    is interrupted. Raises what the first to fail raised, when none is at work any more.
    """
    stopping = Event()

    def do(item: Item) -> None:
        steps = work(item)
        for _ in steps:
            if stopping.is_set():
                steps.close()
                return

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
