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

from etl.errors import INTERRUPTED, EnvironmentFailure
from train import last_words
from train.guard import Guard
from train.last_words import PREFIX, Lost, PeerLost
from train.lateness import late_ranks
from train.mailbox import Mailbox
from train.peers import Farewell, Note, Peers, Verdict, key, scope
from train.pulse import Beat, Pulse
from train.run_log import RunLog

BEAT_S, RANKS_PER_BEAT_S = 1.0, 200  # a beat a second, and a second more for so many ranks: the launcher is one
LOOK_S = 5.0  # without progress, before a rank looks at the others
OBSERVERS = 8  # only the lowest ranks look at all others; the rest wait for their verdict for some seconds more
VERDICT_S = 5.0
WORDS_S = 2.5  # for the others' farewells: the launcher kills what is left 5 s after SIGTERM
POLL_S = 0.05
LEAVING_S = 15.0  # for an elastic rank that is late to end; the others end then, too
LOGGING_S = 1.5  # for the log's last copy
ENDING_S = 20.0  # for a rank that has said farewell
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Watch:
    """The watch of this process; `start` it in the main thread.

    After ``timeout_s`` without progress anywhere, and some rank behind, all ranks end with status 3; 0 turns this off.
    In ``elastic`` mode only the late rank ends. ``remedy`` says how to go on after an interrupt. Without a ``mailbox``
    there are no others.
    """

    def __init__(
        self,
        pulse: Pulse,
        log: RunLog,
        mailbox: Mailbox | None = None,
        guard: Guard | None = None,
        *,
        timeout_s: float,
        remedy: str,
        elastic: bool = False,
    ) -> None:
        self._pulse, self._log, self._mailbox, self._guard = pulse, log, mailbox, guard
        self.timeout_s, self._remedy, self._elastic = timeout_s, remedy, elastic
        self._stderr = os.dup(sys.stderr.fileno())  # TensorFlow's loading and libhdfs's put others in its place
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._saying, self._leaving = threading.Lock(), threading.Lock()
        self._farewell: Farewell | None = None
        self._ends_at = float("inf")
        self._untold = ""  # the line of a failure, until the main thread tells it
        self._has_lost = self._is_stopped = False
        self._has_spoken = threading.Event()
        self._joined: Beat | None = None
        self._peers: Peers | None = None
        self._looks = False
        self._suspects_since = self._obeys_since = 0.0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch; from now on SIGTERM and SIGINT are this thread's."""
        for number in SIGNALS:
            signal.signal(number, _leave_to_watch)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the process goes on without."""
        self._is_stopped = True
        os.write(self._waker, b"\0")
        self._thread.join()

    def farewell(self, status: int, line: str) -> None:
        """Tell the others that this rank is about to end with ``status``, and the line it prints ("": another tells).

        From now on it has `ENDING_S` to do so.
        """
        self._ends_at, self._untold = time.monotonic() + ENDING_S, line
        self._say(Farewell(status, line))

    def has_spoken(self) -> None:
        """The line is printed: nothing is lost where this process is ended."""
        self._untold = ""
        self._has_spoken.set()

    def lost(self) -> list[Lost]:
        """Which ranks are gone, for one that Horovod has told so; within 3 s. Empty where all are there.

        Those that failed and told so; else those that sent nothing while this waited; else those that left on purpose.
        """
        return self._lost(self._pulse.beat())[0]

    def peer_lost(self) -> PeerLost:
        """What to raise where Horovod has told that a rank is gone; exactly one rank tells it."""
        own = self._pulse.beat()
        lost, tells = self._lost(own)
        if lost and lost[0].status is None:
            error = PeerLost(last_words.died(lost, self._remedy))
        else:
            error = PeerLost(f"another rank has ended, so this one ends too; {self._remedy}")
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

    def _lost(self, own: Beat) -> tuple[list[Lost], bool]:
        if self._mailbox is None:
            return [], own.rank == 0
        if not self._elastic:
            self._has_lost = True
            self._say(Farewell(INTERRUPTED))
        peers = Peers(self._mailbox, own)
        try:
            self._await_words(peers, WORDS_S)
        except OSError:  # the launcher is gone
            return [], own.rank == 0
        tellers = peers.moving if self._elastic else last_words.leaving(peers.farewells)
        return last_words.find_lost(peers.notes, peers.silent), own.rank < min(tellers, default=own.size)

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
            if self._mailbox is None:
                return
            try:
                note = Note(beat, self._log.uri, self._farewell)
                self._mailbox.put(scope(beat.generation), key(beat.rank), note.as_json())
            except OSError:  # the next beat may go through
                pass

    def _run(self) -> None:
        while not self._is_stopped:
            beat = self._pulse.beat()
            self._feed(beat)
            self._say(None)
            if time.monotonic() >= self._ends_at and self._farewell is not None:
                self._end(self._farewell)
            if self._mailbox is not None and self.timeout_s and beat.size > 1:
                self._look_for_stall(self._mailbox, beat)
            if self._is_signalled(BEAT_S + beat.size / RANKS_PER_BEAT_S):
                self._end_on_signal()

    def _is_signalled(self, timeout_s: float) -> bool:
        if not select.select([self._wake], [], [], timeout_s)[0]:
            return False
        return any(number in SIGNALS for number in os.read(self._wake, 64))

    def _feed(self, beat: Beat) -> None:
        if self._guard is None:
            return
        silence_s = self._guard.silence_s
        said = f"was silent for {silence_s:.0f} s, stopped or hung {last_words.in_words(beat)}; its guard ends it"
        line = f"{PREFIX}{beat.speaker} (process {beat.pid}) {said}"
        if self._mailbox is None:
            self._guard.fed(line)
            return
        note = Note(beat, self._log.uri, Farewell(EnvironmentFailure.status, line))
        path = f"/{scope(beat.generation)}/{key(beat.rank)}"
        address = {"host": self._mailbox.host, "port": self._mailbox.port}
        self._guard.fed(line, {**address, "path": path, "body": note.as_json()})

    def _look_for_stall(self, mailbox: Mailbox, own: Beat) -> None:
        ring = own.rank, own.size, own.generation
        if self._peers is None or self._joined is None or ring != _ring(self._joined):
            self._peers, self._joined, self._looks = Peers(mailbox, own), own, False
        if own.idle_s < min(LOOK_S, self.timeout_s / 4):
            self._looks = False
            return
        peers = self._peers
        if not self._looks:
            self._looks, self._suspects_since, self._obeys_since = True, 0.0, 0.0
            peers.begin_to_look()
        try:
            if verdict := peers.verdict():
                return self._obey(verdict, own)
            if own.rank < OBSERVERS or own.idle_s >= self.timeout_s + VERDICT_S:
                peers.look(lambda: not select.select([self._wake], [], [], 0)[0])
        except OSError as error:
            if own.idle_s >= self.timeout_s + VERDICT_S:
                self._end(Farewell(EnvironmentFailure.status, self._unreachable(own, error)))
            return
        if late := late_ranks(own, peers.beats, peers.silent_s, self.timeout_s):
            self._suspect(peers, late, own)

    def _suspect(self, peers: Peers, late: list[int], own: Beat) -> None:
        """Give the verdict, if that is this rank's: the lowest one that is not late, or that waited for it in vain."""
        now = time.monotonic()
        self._suspects_since = self._suspects_since or now
        ended = {rank for rank, each in peers.farewells.items() if each.status == 0}
        able = [rank for rank in range(own.size) if rank not in {*late, *ended}] or [own.rank]
        if able[0] != own.rank and now - self._suspects_since < VERDICT_S:
            return
        note = peers.notes.get(late[0])
        log = self._log.uri if late[0] == own.rank else (note.log if note else "")
        hint = f"--stall-timeout {self.timeout_s:g}" + (f"; its log: {log}" if log else "")
        line = f"{PREFIX}{last_words.late(own, late, peers.notes, peers.silent_s)}; all ranks end ({hint})"
        verdict = Verdict(own.rank, tuple(late), line)
        try:
            peers.judge(verdict)
        except OSError:
            pass
        self._obey(verdict, own)

    def _obey(self, verdict: Verdict, own: Beat) -> None:
        """End, as the verdict has it; of an elastic ring only the late ranks, and the others where these do not."""
        self._obeys_since = self._obeys_since or time.monotonic()
        is_late = own.rank in verdict.late
        if self._elastic and not is_late and time.monotonic() - self._obeys_since < LEAVING_S:
            return
        line = verdict.line if own.rank == verdict.judge else ""
        if self._elastic and is_late:
            line = f"{PREFIX}{last_words.late(own, [own.rank], {}, {})}; it ends, the others go on"
        self._dump(f"verdict: {verdict.line}")
        self._say(Farewell(EnvironmentFailure.status, line))
        self._print(line)
        if own.rank == verdict.judge and self._peers is not None:
            self._await_stacks(self._peers, verdict.late)
        self._leave_and_exit(EnvironmentFailure.status)

    def _await_stacks(self, peers: Peers, late: tuple[int, ...]) -> None:
        """Leave the late ranks time to write down where they are: the launcher ends them when this one has ended."""
        deadline = time.monotonic() + WORDS_S
        try:
            while time.monotonic() < deadline and set(late) & set(peers.without_farewell):
                peers.look(lambda: time.monotonic() < deadline, late)
                time.sleep(POLL_S)
        except OSError:
            pass

    def _unreachable(self, own: Beat, error: OSError) -> str:
        return (
            f"{PREFIX}{own.speaker} got no further for {own.idle_s:.0f} s ({own.where}), and horovodrun's launcher,"
            f" which the ranks tell each other through where they are, does not answer ({error}); this rank ends"
        )

    def _end_on_signal(self) -> NoReturn:
        """End after SIGTERM or Ctrl-C, here and now; of all ranks one tells why.

        Nothing is lost: what is being written has no final name yet.
        """
        if self._has_lost or self._ends_at < float("inf"):  # the main thread is about to end
            self._has_spoken.wait(WORDS_S + 1)
            self._print(self._untold)
            self._leave_and_exit(INTERRUPTED if self._farewell is None else self._farewell.status)
        self._say(Farewell(INTERRUPTED))
        own = self._pulse.beat()
        self._log.info(f"interrupted in {own.where}")
        self._print(self._words(own))
        self._leave_and_exit(INTERRUPTED)

    def _words(self, own: Beat) -> str:
        """What this rank has to tell once it was told to end."""
        interrupted = f"ringslice: interrupted; {self._remedy}"
        if self._mailbox is None or own.size == 1:
            return interrupted if own.rank == 0 else ""
        if own.rank >= OBSERVERS:
            return ""
        peers = Peers(self._mailbox, own)
        try:
            self._await_words(peers, WORDS_S)
        except OSError:  # the launcher is gone
            return interrupted if own.rank == 0 else ""
        farewells = peers.farewells
        is_first = own.rank < min(last_words.leaving(farewells), default=own.size)
        if not is_first or any(each.is_cause for each in farewells.values()):
            return ""
        if self._elastic:
            return "" if peers.without_farewell else interrupted
        lost = last_words.find_lost(peers.notes, peers.silent)
        dead = [each for each in lost if each.status is None]
        return f"{PREFIX}{last_words.died(dead, self._remedy)}" if dead else interrupted

    def _end(self, farewell: Farewell) -> NoReturn:
        self._dump("the process did not end by itself")
        self._say(farewell)
        self._print(farewell.line)
        self._leave_and_exit(farewell.status)

    def _dump(self, why: str) -> None:
        self._log.info(f"{why}; the stacks of all threads:")
        faulthandler.dump_traceback(self._log.stream, all_threads=True)

    def _print(self, line: str) -> None:
        """Print a line whole, unless nobody reads standard error: then the log alone has it."""
        if not line:
            return
        self._log.info(line)
        if select.select([], [self._stderr], [], 1.0)[1]:
            os.write(self._stderr, f"{line}\n".encode())

    def _leave_and_exit(self, status: int) -> NoReturn:
        self.leave()
        os._exit(status)


def _ring(beat: Beat) -> tuple[int, int, int]:
    return beat.rank, beat.size, beat.generation


def _leave_to_watch(number: int, frame: FrameType | None) -> None:
    """What Python does on a signal, once it can; the watch has been woken by then."""
    del number, frame
