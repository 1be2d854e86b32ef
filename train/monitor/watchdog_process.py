"""A process beside each rank, that ends it if it cannot end itself: stopped, or hung in code that keeps the GIL.

Every second the rank writes to a pipe that it lives, and which line to print if it falls silent.
A rank that computes in code that keeps the GIL is silent too: while it uses CPU time, its guard reports that it lives.
The guard is a program of its own (this file), so that it shares nothing with TensorFlow or a JVM: the standard library
only, and nothing of this project.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from types import FrameType
from typing import Any

TICK_S = 1.0
REQUEST_S = 1.0
NEWS_BYTES = select.PIPE_BUF  # what a pipe takes whole or not at all
REAPING_S = 0.5
BUSY, COMPUTING = 0.25, 10  # as in train.monitor.heartbeat and stall_detector
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Guard:
    """The rank's end of the pipe."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, silence_s: float) -> None:
        self._process, self._pipe, self.silence_s = process, pipe, silence_s

    def feed(self, line: str, last_note: Mapping[str, Any] | None, silence_s: float, computes: bool) -> None:
        """The rank lives. If it falls silent from now on, for ``silence_s``, ``line`` is printed.

        ``last_note`` is what is then put on the host's board and into the launcher's store, see
        `train.monitor.host_notes.HostNotes.exit_messages`. Set ``computes`` in a phase in which CPU time is progress.
        """
        message = {"line": line, "silence_s": silence_s, "note": last_note, "computes": computes}
        news = json.dumps(message).encode() + b"\n"
        if len(news) > NEWS_BYTES:
            short = {**message, "line": line[: NEWS_BYTES // 8], "note": None}
            news = json.dumps(short).encode() + b"\n"
        try:
            os.write(self._pipe, news)
        except OSError:  # it was stopped (its pipe is full) or killed: the rank goes on without
            pass

    def leave(self) -> None:
        """The rank is about to end."""
        os.close(self._pipe)
        try:
            self._process.wait(REAPING_S)
        except subprocess.TimeoutExpired:  # it is on its way
            pass


def start_guard(silence_s: float) -> Guard:
    """Start the guard of this process, which ends it after ``silence_s`` without a message since the last one."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the guard's too, until it handles them
    try:
        process = subprocess.Popen(words, stdin=reading, stdout=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(reading)
    return Guard(process, writing, silence_s)


def main(rank: int) -> None:
    """Keep watch over the process ``rank``, which has started this one, until it has ended.

    A launcher that ends its ranks may signal only the guard, which passes SIGTERM on.
    """

    def send(number: int) -> None:
        if os.getppid() == rank:  # else it has ended, and its number may be another's by now
            os.kill(rank, number)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        send(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    last: dict[str, Any] = {"silence_s": math.inf}
    used_s = 0.0
    silent_s = 0.0  # in ticks that the guard itself was awake: while the machine stood still, no rank was silent
    while os.getppid() == rank:
        before = time.monotonic()
        if select.select([0], [], [], TICK_S)[0]:
            fresh = os.read(0, 16 * NEWS_BYTES)
            if not fresh:
                return
            last, silent_s = json.loads(fresh.splitlines()[-1]), 0.0
            continue
        awake_s = min(TICK_S, time.monotonic() - before)
        used_before_s, used_s = used_s, _cpu_s(rank)
        if last.get("computes") and used_s - used_before_s >= BUSY * awake_s:
            silent_s += awake_s / COMPUTING
            _put_live_note(last["note"])
        else:
            silent_s += awake_s
        if silent_s >= last["silence_s"]:
            _leave_note(last["note"])
            if not select.select([0], [], [], 0)[0]:
                send(signal.SIGKILL)
                print(last["line"], file=sys.stderr, flush=True)
                return


def _cpu_s(process: int) -> float:
    """The CPU time of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _put_live_note(note: dict[str, Any] | None) -> None:
    """Put a note of this moment for the rank: it makes progress."""
    if note is None:
        return
    beat = note["body"]["note"]["beat"]
    beat["number"] = max(beat["number"] + 1, time.monotonic_ns() // 1_000_000)  # as in train.monitor.heartbeat
    alive = {"exit_notice": None, "beat": {**beat, "idle_s": 0.0}}
    own = note["body"]["note"] | alive
    store = note["store"] and {**note["store"], "body": {"ranks": [own]}}
    _leave_note({"file": note["file"], "body": {"at": 0, "note": own}, "store": store})


def _leave_note(note: dict[str, Any] | None) -> None:
    if note is None:
        return
    try:  # if it fails, the others only see that the rank is gone
        if note["file"] is not None:
            folder, name = os.path.split(note["file"])
            new = os.path.join(folder, f".{name}-last")
            with open(new, "w", encoding="utf-8") as file:
                json.dump(note["body"], file)
            os.replace(new, note["file"])
        if note["store"] is not None:
            _put(note["store"])
    except (OSError, HTTPException):
        pass


def _put(note: dict[str, Any]) -> None:
    connection = HTTPConnection(note["host"], note["port"], timeout=REQUEST_S)
    try:
        connection.request("PUT", note["path"], json.dumps(note["body"]).encode())
        connection.getresponse().read()
    finally:
        connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
