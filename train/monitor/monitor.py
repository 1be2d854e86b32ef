"""A thread of each rank that watches over it and the others: nobody waits for ever, and one line says why all ended.

It sends this rank's heartbeat, feeds its guard, looks for ranks that are late where nothing gets on, and ends the
process on SIGTERM and Ctrl-C, whatever the main thread is in.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from etl.errors import INTERRUPTED, DataError, EnvironmentFailure, UsageError
from train.monitor import messages
from train.monitor.heartbeat import Beat, Pulse
from train.monitor.kv_store import Letterbox
from train.monitor.messages import PREFIX, Lost, PeerLost
from train.monitor.peers import Farewell, Note, Peers, key, observes, scope
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import LOOK_S, Stalls, Timeouts
from train.monitor.watchdog_process import Guard

BEAT_S, RANKS_PER_BEAT_S = 1.0, 200  # a beat a second, and a second more for so many ranks: the launcher is one
WORDS_S = 2.5  # for the others' farewells: the launcher kills what is left 5 s after SIGTERM
POLL_S = 0.05
LOGGING_S = 1.5  # for the log's last copy
LOADING = 10  # times the patience until the first phase: large libraries are loaded with the interpreter's lock held
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Watch:
    """The watch of this process; `start` it in the main thread.

    After ``timeouts.stall_s`` without progress anywhere, and some rank behind, all ranks end with status 3. In
    ``elastic`` mode only the late rank ends. ``remedy`` says how to go on after an interrupt. Without a ``letterbox``
    there are no others.
    """

    def __init__(
        self,
        pulse: Pulse,
        log: RunLog,
        letterbox: Letterbox | None = None,
        guard: Guard | None = None,
        *,
        timeouts: Timeouts,
        remedy: str,
        elastic: bool = False,
    ) -> None:
        self._pulse, self._log, self._letterbox, self._guard = pulse, log, letterbox, guard
        self._timeouts, self._remedy, self._elastic = timeouts, remedy, elastic
        self._stderr = os.dup(sys.stderr.fileno())  # TensorFlow's loading and libhdfs's put others in its place
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._saying, self._speaking, self._parting, self._leaving = (threading.Lock() for _ in range(4))
        self._farewell: Farewell | None = None
        self._ends_at = float("inf")
        self._untold = ""  # the line of a failure, until the main thread tells it
        self._is_stopped = False
        self._has_spoken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch; from now on SIGTERM and SIGINT are this thread's."""
        self._handlers = {number: signal.signal(number, _leave_to_watch) for number in SIGNALS}
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, in the main thread; the process goes on without, and signals do what they did before."""
        self._is_stopped = True
        os.write(self._waker, b"\0")
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for descriptor in (self._wake, self._waker, self._stderr):
            os.close(descriptor)

    def farewell(self, status: int, line: str) -> None:
        """Tell the others that this rank is about to end with ``status``, and the line it prints ("": another tells).

        From now on it has ``timeouts.ending_s`` to do so. Does not return where the watch ends the process.
        """
        self._parts(line)
        self._say(Farewell(status, line))

    def speaks(self) -> bool:
        """Whether the line is the caller's to print: of the threads of a dying process the first one's that asks."""
        return self._speaking.acquire(blocking=False)

    def has_spoken(self) -> None:
        """The line is printed: nothing is lost where this process is ended."""
        self._untold = ""
        self._has_spoken.set()

    def lost(self) -> list[Lost]:
        """Which ranks are gone, for one that Horovod has told so; within 3 s.

        Those that failed and told so; else those that sent nothing while this waited; else those that left on purpose.
        Empty where all are there, and on the ranks of a large ring that do not observe it.
        """
        return self._lost(self._pulse.beat())[0]

    def peer_lost(self) -> PeerLost:
        """What to raise where Horovod has told that a rank is gone; exactly one rank tells it."""
        own = self._pulse.beat()
        lost, tells = self._lost(own)
        if lost and lost[0].died:
            error = PeerLost(messages.died(lost, "the others go on" if self._elastic else self._remedy))
        elif self._elastic:
            error = PeerLost(f"rank {lost[0].rank} has ended" if lost else "a rank was lost")
        else:
            error = PeerLost(f"another rank has ended, so this one ends too; {self._remedy}")
        error.ends_all = any(each.status in (DataError.status, UsageError.status) for each in lost)
        error.told = not tells or any(each.line for each in lost)
        self._untold = "" if error.told else f"{PREFIX}{error}"
        return error

    def leave(self) -> None:
        """The process ends this moment: complete the log, let the guard go. One thread does it, others wait."""
        if not self._leaving.acquire(timeout=2 * LOGGING_S):
            return
        self._log.end(LOGGING_S)
        if self._guard is not None:
            self._guard.leave()

    @property
    def _is_parting(self) -> bool:
        return self._ends_at < float("inf")

    def _takes_over(self) -> bool:
        """Whether this thread ends the process, and no longer the main thread: that has not begun to, and will not."""
        self._parting.acquire()
        if self._is_parting:
            self._parting.release()
        return not self._is_parting

    def _parts(self, line: str) -> None:
        """The main thread is about to end the process."""
        with self._parting:  # does not return where the watch has taken over
            self._ends_at, self._untold = time.monotonic() + self._timeouts.ending_s, line

    def _lost(self, own: Beat) -> tuple[list[Lost], bool]:
        if self._letterbox is None:
            return [], own.rank == 0
        if not self._elastic:
            self._parts("")
            self._say(Farewell(EnvironmentFailure.status))
        is_observer = observes(own.rank, own.size)
        if not is_observer and not self._elastic:  # an elastic rank must know whether it goes on
            return [], False
        peers = Peers(self._letterbox, own.rank, own.size, own.generation)
        try:
            self._await_words(peers, WORDS_S)
        except OSError:  # the launcher is gone
            return [], own.rank == 0
        tellers = peers.moving if self._elastic else messages.leaving(peers.farewells, own.size)
        tells = is_observer and own.rank < min(tellers, default=own.size)
        return messages.find_lost(peers.notes, peers.silent), tells

    def _await_words(self, peers: Peers, limit_s: float) -> None:
        """Wait until each other has said farewell, or one that it was the cause; an elastic one may go on, too."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            peers.look(lambda: time.monotonic() < deadline, peers.without_farewell)
            pending = peers.silent if self._elastic else peers.without_farewell
            if not pending or any(each.is_cause for each in peers.farewells.values()):
                return
            time.sleep(POLL_S)

    def _say(self, farewell: Farewell | None) -> None:
        """Put this rank's note, with this farewell or the one that it has said."""
        with self._saying:
            self._farewell = farewell or self._farewell
            beat = self._pulse.beat()
            if self._letterbox is None:
                return
            try:
                Note(beat, self._log.uri, self._farewell).put_into(self._letterbox)
            except OSError:  # the next beat may go through
                pass

    def _run(self) -> None:
        stalls = None
        if self._letterbox is not None and self._timeouts.stall_s:
            stalls = Stalls(self._letterbox, self._timeouts, lambda: not select.select([self._wake], [], [], 0)[0])
        while not self._is_stopped:
            beat = self._pulse.beat()
            try:
                self._look_round(beat, stalls)
            except Exception as error:  # a defect; without this thread Ctrl-C would do nothing
                self._log.failure("the watch failed", error)
            if self._is_signalled(BEAT_S + beat.size / RANKS_PER_BEAT_S):
                try:
                    self._end_on_signal()
                finally:  # whatever went wrong on the way
                    os._exit(INTERRUPTED)

    def _look_round(self, beat: Beat, stalls: Stalls | None) -> None:
        self._feed(beat)
        self._say(None)
        if time.monotonic() >= self._ends_at and self._farewell is not None:
            self._end(self._farewell.status, self._untold)
        if stalls is not None:
            self._end_if_stalled(stalls, beat)

    def _is_signalled(self, timeout_s: float) -> bool:
        if not select.select([self._wake], [], [], timeout_s)[0]:
            return False
        return any(number in SIGNALS for number in os.read(self._wake, 64))

    def _feed(self, beat: Beat) -> None:
        if self._guard is None:
            return
        silence_s = self._guard.silence_s * (1 if beat.count else LOADING)
        said = f"was silent for {silence_s:.0f} s, stopped or hung {messages.in_words(beat)}; its guard ends it"
        line = f"{PREFIX}{beat.speaker} (process {beat.pid}) {said}"
        if self._letterbox is None:
            self._guard.fed(line, None, silence_s)
            return
        note = Note(beat, self._log.uri, Farewell(EnvironmentFailure.status, line))
        path = self._letterbox.path_of(scope(beat.generation), key(beat.rank))
        address = {"host": self._letterbox.host, "port": self._letterbox.port}
        self._guard.fed(line, {**address, "path": path, "body": note.as_json()}, silence_s)

    def _end_if_stalled(self, stalls: Stalls, own: Beat) -> None:
        try:
            verdict = stalls.verdict(own, self._log.uri)
        except OSError as error:
            if self._takes_over():
                self._end(EnvironmentFailure.status, PREFIX + messages.unreachable(own, error))
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
            line = f"{PREFIX}{messages.late(own, [own.rank], {}, {})}; it ends, the others go on"
        self._dump(verdict.line)
        self._say(Farewell(EnvironmentFailure.status, line))
        self._print(line)
        if not is_late:
            stalls.await_farewells(verdict.late, WORDS_S)
        self._leave_and_exit(EnvironmentFailure.status)

    def _end_on_signal(self) -> NoReturn:
        """End after SIGTERM or Ctrl-C, here and now; of all ranks one tells why.

        Nothing is lost: what is being written has no final name yet.
        """
        if not self._takes_over():
            self._has_spoken.wait(WORDS_S + 1)
            self._end_now(INTERRUPTED if self._farewell is None else self._farewell.status, self._untold)
        self._say(Farewell(INTERRUPTED))
        own = self._pulse.beat()
        if own.idle_s >= LOOK_S:
            self._dump(f"interrupted {messages.in_words(own)}, without progress for {own.idle_s:.0f} s")
        else:
            self._log.info(f"interrupted {messages.in_words(own)}")
        line = self._words(own)
        if line:
            self._say(Farewell(INTERRUPTED, line))
        self._end_now(INTERRUPTED, line)

    def _words(self, own: Beat) -> str:
        """What this rank has to tell once it was told to end."""
        interrupted = f"ringslice: interrupted; {self._remedy}"
        if self._letterbox is None or own.size == 1:
            return interrupted if own.rank == 0 else ""
        if not observes(own.rank, own.size):
            time.sleep(WORDS_S)  # for those to see that they are interrupted, and not that the ring is broken
            return ""
        peers = Peers(self._letterbox, own.rank, own.size, own.generation)
        try:
            self._await_words(peers, WORDS_S)
        except OSError:  # the launcher is gone
            return interrupted if own.rank == 0 else ""
        is_first = own.rank < min(messages.leaving(peers.farewells, own.size), default=own.size)
        if not is_first or any(each.is_cause for each in peers.farewells.values()):
            return ""
        dead = [] if self._elastic else [each for each in messages.find_lost(peers.notes, peers.silent) if each.died]
        if dead:
            return f"{PREFIX}{messages.died(dead, self._remedy)}"
        if not peers.without_farewell:
            return interrupted
        alone = f"{PREFIX}{own.speaker} was told to end by a signal {messages.in_words(own)}; {self._remedy}"
        return "" if self._elastic else alone

    def _end(self, status: int, line: str) -> NoReturn:
        """End in the main thread's stead."""
        self._dump("the process did not end by itself")
        self._say(Farewell(status, line))
        self._end_now(status, line)

    def _end_now(self, status: int, line: str) -> NoReturn:
        if line and self.speaks():
            self._print(line)
        self._leave_and_exit(status)

    def _dump(self, why: str) -> None:
        self._log.info(f"{why}; the stacks of all threads:")
        faulthandler.dump_traceback(self._log.stream, all_threads=True)

    def _print(self, line: str) -> None:
        """Print a line whole, unless nobody reads standard error: then the log alone has it."""
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
