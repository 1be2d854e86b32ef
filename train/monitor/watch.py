"""A thread of each rank that watches over it and the others: no rank waits for ever, and one line reports why they end.

It sends this rank's heartbeat, feeds its guard, looks for late ranks if there is no progress, and ends the process on
SIGTERM and Ctrl-C, whatever the main thread does.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from enum import Enum, auto
from types import FrameType
from typing import NoReturn

from etl.errors import ERROR_PREFIX, INTERRUPTED, DataError, EnvironmentFailure, UsageError
from train.monitor import messages
from train.monitor.exit_reporter import NOTICES_S, ExitReporter
from train.monitor.heartbeat import Beat, Status
from train.monitor.host_notes import BEAT_S, HostNotes
from train.monitor.messages import LostRank, PeerLost
from train.monitor.notes import ExitNotice, Note
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import LOOK_S, Stalls, Timeouts
from train.monitor.watchdog_process import Guard

LOGGING_S = 1.5  # for the log's last copy
LOADING_FACTOR = 10  # times the timeout until the first phase: libraries are loaded with the interpreter's lock held
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class State(Enum):
    """Which thread ends the process: none yet, the main thread, or that of the watch."""

    RUNNING = auto()
    EXITING = auto()
    TAKEN_OVER = auto()


class Watch:
    """The watch of this process; `start` it in the main thread.

    After ``timeouts.stall_s`` without progress anywhere, and some rank behind, all ranks end with status 3. In
    ``elastic`` mode only the late rank ends. ``remedy`` describes how to go on after an interrupt. Without
    ``host_notes`` no other rank watches this one, which ends itself if the storage does not answer for as long.
    """

    def __init__(
        self,
        status: Status,
        log: RunLog,
        host_notes: HostNotes | None = None,
        guard: Guard | None = None,
        *,
        timeouts: Timeouts,
        remedy: str,
        elastic: bool = False,
    ) -> None:
        self._status, self._log, self._host_notes, self._guard = status, log, host_notes, guard
        self._timeouts, self._remedy, self._elastic = timeouts, remedy, elastic
        self._exits: ExitReporter | None = None
        if host_notes is not None:
            self._exits = ExitReporter(host_notes, lambda: self._publish(None), remedy, elastic)
        self._stderr = os.dup(sys.stderr.fileno())  # TensorFlow's loading and libhdfs's put others in its place
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._publishing, self._leaving, self._lock = (threading.Lock() for _ in range(3))
        self._state, self._is_line_taken = State.RUNNING, False  # by the lock
        self._exit_notice: ExitNotice | None = None
        self._ends_at = float("inf")
        self._unprinted = ""  # the line of a failure, until the main thread prints it
        self._is_printed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch; from now on SIGTERM and SIGINT are this thread's."""
        for number in SIGNALS:
            signal.signal(number, _leave_to_watch)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._thread.start()

    def announce_exit(self, status: int, line: str) -> None:
        """Announce that this rank is about to end with ``status``, and the line it prints ("": another rank reports).

        From now on it has ``timeouts.ending_s`` to do so. Does not return if the watch ends the process.
        """
        self._parts(line)
        self._publish(ExitNotice(status, line))

    def may_print(self) -> bool:
        """True for the first thread of a dying process that asks: it prints the line."""
        with self._lock:
            is_first, self._is_line_taken = not self._is_line_taken, True
        return is_first

    def line_printed(self) -> None:
        """The line is printed: nothing is lost if this process is ended now."""
        self._unprinted = ""
        self._is_printed.set()

    def peer_lost(self) -> PeerLost:
        """What to raise if Horovod has reported that a rank is gone; exactly one rank prints it."""
        own = self._status.beat()
        lost, is_reporting = self._lost(own)
        if lost and lost[0].died:
            error = PeerLost(messages.died(lost, "the others go on" if self._elastic else self._remedy))
        elif self._elastic:
            error = PeerLost(f"rank {lost[0].rank} has ended" if lost else "a rank was lost")
        else:
            error = PeerLost(f"another rank has ended, or has not come, so this one ends too; {self._remedy}")
        error.ends_all = any(each.status in (DataError.status, UsageError.status) for each in lost)
        error.is_reported = not is_reporting or any(each.line for each in lost)
        self._unprinted = "" if error.is_reported else f"{ERROR_PREFIX}{error}"
        return error

    def leave(self) -> None:
        """The process ends this moment: complete the log, end the guard. One thread does it, others wait."""
        if not self._leaving.acquire(timeout=2 * LOGGING_S):
            return
        self._log.end(LOGGING_S)
        if self._host_notes is not None and self._publishing.acquire(timeout=LOGGING_S):
            self._host_notes.close()
            self._publishing.release()
        if self._guard is not None:
            self._guard.leave()

    def end(self, status: int, line: str) -> None:
        """End the process with this line, from another thread; returns if the main thread has begun to end it."""
        if self._takes_over():
            self._end(status, line)

    def _takes_over(self) -> bool:
        """True if this thread ends the process: the main thread has not begun to, and will not."""
        with self._lock:
            if self._state is State.RUNNING:
                self._state = State.TAKEN_OVER
            return self._state is State.TAKEN_OVER

    def _parts(self, line: str) -> None:
        """The main thread is about to end the process; does not return if the watch has taken over."""
        with self._lock:
            if self._state is not State.TAKEN_OVER:
                self._state = State.EXITING
                self._ends_at, self._unprinted = time.monotonic() + self._timeouts.ending_s, line
                return
        threading.Event().wait()  # until the watch ends the process

    def _lost(self, own: Beat) -> tuple[list[LostRank], bool]:
        """Which ranks are gone, after Horovod has reported it, and whether this rank reports it; within 3 s.

        Those that failed and reported it; else those that sent nothing while this waited; else those that left on
        purpose. Empty if all are there, and on the ranks of a large ring that do not observe it.
        """
        if self._host_notes is None or self._exits is None:
            return [], own.rank == 0
        self._host_notes.hurry(NOTICES_S)
        if not self._elastic:
            self._parts("")
            self._publish(ExitNotice(EnvironmentFailure.status))
        return self._exits.lost(own)

    def _publish(self, exit_notice: ExitNotice | None) -> None:
        """Put this rank's note, with this exit notice or the one that it has put.

        An exit notice goes into the store at once; in a ring of many hosts the host's rank that reports does it, unless
        it is a cause.
        """
        with self._publishing:
            self._exit_notice = exit_notice or self._exit_notice
            beat = self._status.beat()
            if self._host_notes is None:
                return
            at_once = exit_notice is not None and (exit_notice.is_cause or not self._host_notes.is_crowded)
            with suppress(OSError):  # the next beat may go through
                self._host_notes.put(Note(beat, self._log.uri, self._exit_notice), at_once)

    def _run(self) -> None:
        stalls = None
        if self._host_notes is not None and self._timeouts.stall_s:
            stalls = Stalls(self._host_notes, self._timeouts, lambda: not select.select([self._wake], [], [], 0)[0])
        beat = self._status.beat()
        while True:
            self._status.sample(self._timeouts.computing_s, is_watched=self._is_watched(beat))
            beat = self._status.beat()
            try:
                self._look_round(beat, stalls)
            except Exception as error:  # a defect; without this thread Ctrl-C would do nothing
                self._log.failure("the watch failed", error)
            if self._is_signalled(BEAT_S):
                try:
                    self._end_on_signal()
                finally:  # also after a defect
                    os._exit(INTERRUPTED)

    def _look_round(self, beat: Beat, stalls: Stalls | None) -> None:
        self._feed(beat)
        self._publish(None)
        if time.monotonic() >= self._ends_at and self._exit_notice is not None:
            self._end(self._exit_notice.status, self._unprinted)
        if not self._is_watched(beat):
            self._end_if_storage_hangs(beat)
        elif stalls is not None:
            self._end_if_stalled(stalls, beat)

    def _is_watched(self, own: Beat) -> bool:
        """True if other ranks look for late ones."""
        return self._host_notes is not None and own.size > 1

    def _end_if_storage_hangs(self, own: Beat) -> None:
        limit_s = self._timeouts.stall_s
        if limit_s and own.is_on_storage and own.idle_s >= limit_s and self._takes_over():
            hint = f"--stall-timeout {limit_s:g}" + (f"; its log: {self._log.uri}" if self._log.uri else "")
            line = f"{messages.late(own, [own.rank], {}, {})}; it ends, as the storage does not answer ({hint})"
            self._end(EnvironmentFailure.status, f"{ERROR_PREFIX}{line}")

    def _is_signalled(self, timeout_s: float) -> bool:
        if not select.select([self._wake], [], [], timeout_s)[0]:
            return False
        return any(number in SIGNALS for number in os.read(self._wake, 64))

    def _feed(self, beat: Beat) -> None:
        if self._guard is None:
            return
        silence_s = self._guard.silence_s * (1 if beat.count else LOADING_FACTOR)
        reason = f"was silent for {silence_s:.0f} s, stopped or hung {messages.in_words(beat)}; its guard ends it"
        line = f"{ERROR_PREFIX}{beat.rank_name} (process {beat.pid}) {reason}"
        exit_messages = None
        if self._host_notes is not None:
            exit_messages = self._host_notes.exit_messages(
                Note(beat, self._log.uri, ExitNotice(EnvironmentFailure.status, line))
            )
        self._guard.feed(line, exit_messages, silence_s, beat.is_computing)

    def _end_if_stalled(self, stalls: Stalls, own: Beat) -> None:
        try:
            verdict = stalls.verdict(own, self._log.uri)
        except OSError as error:
            if self._takes_over():
                self._end(EnvironmentFailure.status, ERROR_PREFIX + messages.unreachable(own, error))
            return
        if verdict is None:
            return
        is_late = own.rank in verdict.late
        if self._elastic and not is_late and not stalls.is_over(verdict):
            return
        if not self._takes_over():
            return
        line = verdict.line if own.rank == verdict.judge else ""
        if self._elastic and is_late and len(verdict.late) < own.size:
            line = f"{ERROR_PREFIX}{messages.late(own, [own.rank], {}, {})}; it ends, the others go on"
        self._dump(verdict.line)
        self._publish(ExitNotice(EnvironmentFailure.status, line))
        self._print(line)
        if not is_late:
            stalls.await_exit_notices(verdict.late, NOTICES_S)
        self._leave_and_exit(EnvironmentFailure.status)

    def _end_on_signal(self) -> NoReturn:
        """End after SIGTERM or Ctrl-C, at once; one of all ranks reports why.

        Nothing is lost: what is being written has no final name yet.
        """
        if not self._takes_over():
            self._is_printed.wait(NOTICES_S + 1)
            self._end_now(INTERRUPTED if self._exit_notice is None else self._exit_notice.status, self._unprinted)
        if self._host_notes is not None:
            self._host_notes.hurry(NOTICES_S)
        self._publish(ExitNotice(INTERRUPTED))
        own = self._status.beat()
        if own.idle_s >= LOOK_S:
            self._dump(f"interrupted {messages.in_words(own)}, without progress for {own.idle_s:.0f} s")
        else:
            self._log.info(f"interrupted {messages.in_words(own)}")
        line = self._interrupt_line(own)
        if line:
            self._publish(ExitNotice(INTERRUPTED, line))
        self._end_now(INTERRUPTED, line)

    def _interrupt_line(self, own: Beat) -> str:
        """The line that this rank prints after a signal; empty if another rank reports."""
        if self._exits is None:
            return f"ringslice: interrupted; {self._remedy}" if own.rank == 0 else ""
        return self._exits.interrupted(own)

    def _end(self, status: int, line: str) -> NoReturn:
        """End the process in place of the main thread."""
        self._dump("the process did not end by itself")
        self._publish(ExitNotice(status, line))
        self._end_now(status, line)

    def _end_now(self, status: int, line: str) -> NoReturn:
        if line and self.may_print():
            self._print(line)
        self._leave_and_exit(status)

    def _dump(self, why: str) -> None:
        self._log.info(f"{why}; the stacks of all threads:")
        faulthandler.dump_traceback(self._log.stream, all_threads=True)

    def _print(self, line: str) -> None:
        """Print a line in one piece, unless standard error is not read: then only the log has it."""
        if not line:
            return
        self._log.info(line)
        try:
            if select.select([], [self._stderr], [], 1.0)[1]:
                os.write(self._stderr, f"{line}\n".encode())
        except OSError:
            pass

    def _leave_and_exit(self, status: int) -> NoReturn:
        self.leave()
        os._exit(status)


def _leave_to_watch(number: int, frame: FrameType | None) -> None:
    """What Python does on a signal, once it can; the watch has been woken by then."""
    del number, frame
