"""What a process is as a rank: watched from its first moment, never without an end, and one line says why it failed.

`run_rank` runs a command as a rank. The command calls `begin_watch` as soon as it knows its settings, before anything
of TensorFlow is loaded.
"""

import math
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import click

from etl.errors import INTERRUPTED, RingsliceError, UsageError, end_process, explain, report, run_reporting
from etl.options.click_command import invoke
from etl.progress import tell
from etl.storage.place import Place
from train.monitor.heartbeat import PULSE
from train.monitor.host_board import HostBoard
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import Letterbox
from train.monitor.messages import PREFIX, PeerLost, speaker
from train.monitor.monitor import SIGNALS, Watch
from train.monitor.notes import Farewell, Note
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts
from train.monitor.watchdog_process import start_guard

STALL_TIMEOUT_S = 45.0
SILENCE = 2 / 3  # of the timeout, after which a rank that is stopped or hung is ended by its guard
CONNECTING_S = 30  # Horovod's default
BACKSTOP = 10  # Horovod knows no progress: a rank that is loading is late to it, so it ends nothing that the watch may
# For the rank that reports: as soon as any rank has ended, horovodrun ends the others.
TELLING_S = 10.0


class DefectError(RingsliceError):
    """A defect of ours: its traceback is in the log."""


@dataclass
class Rank:
    """This process as a rank."""

    remedy: str
    log: RunLog
    watch: Watch | None = None


_ranks: list[Rank] = []  # the one of this process, once `run_rank` runs


def is_elastic() -> bool:
    """Whether horovodrun may add and lose ranks of this run."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def begin_watch(timeout_s: float, elastic: bool = False) -> None:
    """Watch over this rank from now on; see `train.monitor.monitor.Watch`. Nothing happens outside `run_rank`.

    Call it in the main thread, before Horovod is loaded: its own limits are set here, where the user has not.
    """
    if not _ranks:
        return
    limit_s = math.ceil(timeout_s)
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")  # what Horovod logs of a rank's end is in our one line
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(CONNECTING_S, limit_s)))
    if timeout_s:
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(2 * limit_s))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(BACKSTOP * limit_s))
    rank, guard = _ranks[0], None
    if timeout_s and _number() is not None:
        guard = start_guard(SILENCE * timeout_s)
    letterbox = Letterbox.of_launcher()
    host_notes = None
    if letterbox is not None:
        host_notes = HostNotes(letterbox, HostBoard.of_job(), timeout_s / 2 or math.inf)
    timeouts = Timeouts(timeout_s)
    rank.watch = Watch(PULSE, rank.log, host_notes, guard, timeouts=timeouts, remedy=rank.remedy, elastic=elastic)
    rank.watch.start()


def watch() -> Watch | None:
    """The watch of this process, if it has begun."""
    return _ranks[0].watch if _ranks else None


def open_log(run: Place) -> None:
    """Keep the log of this rank under ``run``, for good. Raises OSError. Nothing happens outside `run_rank`."""
    if _ranks and not _ranks[0].log.uri:
        beat = PULSE.beat()
        _ranks[0].log.open(run, beat.rank)
        _ranks[0].log.info(f"{beat.speaker}, of {beat.size}, process {beat.pid}: {shlex.join(sys.argv)}")


def say(line: str) -> None:
    """One line about the training, on standard error and in the log."""
    tell("train", line)
    if _ranks:
        _ranks[0].log.info(line)


def peer_lost() -> PeerLost:
    """What to raise where Horovod has told that a rank is gone: it names that rank, and one rank tells it."""
    watching = watch()
    if watching is not None:
        return watching.peer_lost()
    lost = PeerLost("another rank has ended, so this one ends too")
    lost.told = _number() not in (None, 0)
    return lost


def run_rank(command: click.Command, name: str, remedy: str) -> NoReturn:
    """Run ``command`` as a rank; exits 0, 1, 2, 3 or 130, without waiting for threads that may never end.

    ``remedy`` says how to go on after an interrupt.
    """
    rank = Rank(remedy, RunLog())
    _ranks.append(rank)
    raised: list[BaseException] = []

    def end_at_once(number: int, frame: FrameType | None) -> None:
        """End this rank on Ctrl-C or SIGTERM before it is watched; rank 0 tells, or the one that runs alone."""
        del number, frame
        if _number() in (None, 0):
            os.write(sys.stderr.fileno(), f"ringslice: interrupted; {remedy}\n".encode())
        _leave_note()
        os._exit(INTERRUPTED)

    def run() -> int:
        for number in SIGNALS:
            signal.signal(number, end_at_once)
        try:
            return invoke(command, name)
        except (Exception, KeyboardInterrupt) as error:
            raised.append(error)  # and with it its frames: to delete tf.data's iterators is to wait for their reading
            return _fail(rank, error)

    status = run_reporting(run)
    rank.log.info(f"ends with status {status}")
    if rank.watch is not None:
        if not raised:
            rank.watch.farewell(status, "")
            rank.log.end()
        rank.watch.leave()
    end_process(status)


def _fail(rank: Rank, error: BaseException) -> int:
    """Tell of ``error``: to the log all, to the others that this rank ends, on the terminal one line; its status."""
    beat, number = PULSE.beat(), _number()
    spoken = "" if isinstance(error, PeerLost) else speaker(beat, number is not None)
    explained = explain(error)
    if explained is None and rank.log.uri:
        first = next(iter(str(error).splitlines()), "")
        told: BaseException = DefectError(f"{type(error).__name__}: {first} (the traceback is in {rank.log.uri})")
        told.__cause__ = error
    else:
        told = error
    if isinstance(told, UsageError) and beat.rank:
        told.told = True  # every rank is asked for the same, and rank 0 tells
    is_told = getattr(told, "told", False)
    status, line = explain(told) or (1, f"{type(error).__name__}: {error}")
    rank.log.failure(f"{spoken}{line}", error)
    if rank.watch is not None:
        rank.watch.farewell(status, "" if is_told else f"{PREFIX}{spoken}{line}")
    kept = rank.log.upload()
    if rank.watch is None or rank.watch.speaks():
        report(told, spoken, f" (its log: {kept})" if kept else "")
    if rank.watch is not None:
        rank.watch.has_spoken()
    if is_told:
        time.sleep(TELLING_S)
    return status


def _leave_note() -> None:
    """Tell ranks that are watched already that this one was interrupted: it did not die without a word."""
    beat, letterbox = PULSE.beat(), Letterbox.of_launcher()
    line = "interrupted" if beat.rank == 0 else ""  # which rank 0 has told
    try:
        if letterbox is not None:
            Note(beat, "", Farewell(INTERRUPTED, line)).put_into(letterbox)
    except OSError:
        pass


def _number() -> int | None:
    """The number of this rank, as its launcher says; None where there is none."""
    number = os.environ.get("HOROVOD_RANK")
    return None if number is None else int(number)
