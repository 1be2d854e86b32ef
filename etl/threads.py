"""Several pieces of work at once, that end together when one of them fails or this process is told to stop."""

from _thread import start_new_thread
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")

_END = object()


def in_threads(work: Callable[[Item], Generator[None]], items: Iterable[Item], at_once: int) -> None:
    """Do the ``work`` on each item, on ``at_once`` of them at the same time; with 1, here and in order.

    This waits without a limit, as long as ``work`` takes until it yields next.

    ``work`` yields wherever it may be stopped; its generator is closed there, once another has raised or this thread
    is interrupted. Raises what one that failed raised, when none is at work any more.
    """
    stopping = Event()

    def do(item: Item) -> None:
        try:
            with closing(work(item)) as steps:
                while not stopping.is_set() and next(steps, _END) is not _END:
                    pass
        except BaseException:
            stopping.set()
            raise

    if at_once == 1:
        for item in items:
            do(item)
        return

    def do_all() -> None:
        with ThreadPoolExecutor(at_once, thread_name_prefix="work") as pool:
            for each in [pool.submit(do, item) for item in items]:
                each.result()

    _run_uninterrupted(do_all, stopping)


def _run_uninterrupted(run: Callable[[], None], stopping: Event) -> None:
    """``run`` in a thread, which no interrupt reaches: one sets ``stopping``, and is raised here when the thread ends.

    An interrupt within `threading` or `concurrent.futures` can leave one of their locks held, which other threads wait
    for, then, for ever; what is called here before there is one is written in C.
    """
    begun, ended = list[bool](), SimpleQueue[BaseException | None]()

    def report() -> None:
        begun.append(True)
        error = None
        try:
            run()
        except BaseException as raised:
            error = raised
        for _ in range(2):  # an interrupt may come just when the first is taken
            ended.put(error)

    try:
        start_new_thread(report, ())
        error = ended.get()
    except BaseException:
        stopping.set()
        if begun:  # a thread that begins later has nothing to do
            ended.get()
        raise
    if error is not None:
        raise error
