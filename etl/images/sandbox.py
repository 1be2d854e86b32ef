"""Decode images in a child process, so that one that hangs, crashes or takes too much memory becomes a reject.

Plain files (`Header.is_plain`, such as the usual JPEG) of up to `MAX_PIXELS_HERE` are decoded in this process: their
cost is proportional to the number of their pixels, their decoder is libjpeg-turbo, zlib or none, and a child process
would add 10 to 20 percent. The header of every JPEG, PNG and plain PNM is read here, too. All others go to the worker:
progressive and CMYK JPEGs, colour profiles, palettes, transparency, animations, every other format.

Messages are bytes over a socket; nothing is unpickled. The worker is started at the first image that needs it, and
again after it has ended.

The time limit is one of processor time, so that a busy machine rejects no image; a worker that takes `MAX_WALL_RATIO`
times as long by the clock hangs, and is killed. The memory limit is what the worker may allocate (RLIMIT_DATA, of
Linux) beyond what it has when it is ready. The worker does not outlive its owner, however that ends.
"""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from etl.errors import EnvironmentFailure
from etl.images.config import NormalizeConfig
from etl.images.result import NormalizedImage, Reason, Reject
from etl.processes import block_interrupts, tie_to_parent, tied_environment

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
MAX_WALL_RATIO = 6
MAX_PIXELS_HERE = 25_000_000
# BLAS keeps memory for each of its threads, which are not used
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


class DecodeWorker:
    """Normalize images as ``config`` says: plain ones in this process, others in a child process; a context manager."""

    def __init__(self, config: NormalizeConfig) -> None:
        self.config = config
        self._started: tuple[subprocess.Popen[bytes], Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(kill=True)  # nobody waits for what it may still be doing

    def normalize(self, data: bytes) -> NormalizedImage | Reject:
        """Return what `normalize_image` returns, or a reject if the image made the worker fail.

        Raises EnvironmentFailure if the worker cannot be started, or is ended by somebody else.
        """
        # imported here, because most processes that import this module decode nothing
        from etl.images.header import Header, is_maybe_plain
        from etl.images.normalize import normalize_decoded, read_limited_header

        header = read_limited_header(data, self.config) if is_maybe_plain(data) else None
        if isinstance(header, Header) and header.is_plain and header.width * header.height <= MAX_PIXELS_HERE:
            return normalize_decoded(data, header, self.config)
        answer = self._ask(data) or self._ask(data)  # once more, because it may have been ended by somebody else
        if answer is None:
            raise EnvironmentFailure("the process that decodes images was ended twice; is there enough memory?")
        return answer

    def _ask(self, data: bytes) -> NormalizedImage | Reject | None:
        """None if the worker was ended by somebody else."""
        process, connection = self._started or self._start()
        timeout_s = MAX_WALL_RATIO * self.config.limits.seconds
        with _kill_after(process, timeout_s) as is_late:
            try:
                connection.send_bytes(data)
                facts, encoded = json.loads(connection.recv_bytes()), connection.recv_bytes()
            except (OSError, EOFError):  # OSError: it ended in the middle of a message
                status = self._stop()
                return (
                    Reject(Reason.TOO_SLOW, f"no answer in {timeout_s:g} s")
                    if is_late.is_set()
                    else self._explain(status)
                )
        if "reason" in facts:
            return Reject(Reason(facts["reason"]), facts["detail"])
        return NormalizedImage(encoded or data, **facts)

    def _explain(self, status: int) -> Reject | None:
        seconds = self.config.limits.seconds
        if status == -signal.SIGPROF:
            return Reject(Reason.TOO_SLOW, f"more than {seconds:g} s of processor time")
        if status == errno.ENOMEM:
            return _out_of_memory(self.config)
        if -status in _CRASHES:
            return Reject(Reason.CRASHED, signal.Signals(-status).name)
        return None

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        connection, other_end = Pipe()
        config = json.dumps(self.config.to_json())
        words = [sys.executable, "-P", "-m", "etl.images.sandbox", config, str(other_end.fileno())]
        with block_interrupts(), other_end:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                env=tied_environment(signal.SIGKILL, os.environ | _ENVIRONMENT),
            )
            self._started = process, connection
        try:
            with _kill_after(process, START_TIMEOUT_S):
                connection.recv_bytes()
        except (OSError, EOFError):
            status = self._stop()
            raise EnvironmentFailure(f"the process that decodes images cannot start (status {status})") from None
        return self._started

    def _stop(self, kill: bool = False) -> int:
        """End the worker, if there is one; returns its exit status."""
        if self._started is None:
            return 0
        (process, connection), self._started = self._started, None
        if kill:
            process.kill()
        connection.close()
        try:
            return process.wait(STOP_TIMEOUT_S)  # it ends as soon as its connection does
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@contextmanager
def _kill_after(process: subprocess.Popen[bytes], timeout_s: float) -> Iterator[threading.Event]:
    """Kill the process if the block takes longer: its connection ends then, and the event is set."""
    is_late = threading.Event()

    def kill() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(timeout_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def serve(config: NormalizeConfig, connection: Connection) -> None:
    """In the worker: answer each image with facts (JSON) and its encoded form, until the connection ends.

    What is kept byte for byte is not sent back.
    """
    from etl.images.normalize import normalize_image

    _limit_memory(config.limits.memory_bytes)
    connection.send_bytes(b"ready")
    with suppress(EOFError, ConnectionError):
        while True:
            data = connection.recv_bytes()
            signal.setitimer(signal.ITIMER_PROF, config.limits.seconds)  # SIGPROF ends this process
            try:
                result = normalize_image(data, config)
            except MemoryError:
                result = _out_of_memory(config)
            signal.setitimer(signal.ITIMER_PROF, 0)
            facts = dict(vars(result)) if isinstance(result, NormalizedImage) else asdict(result)
            encoded = facts.pop("encoded", b"")
            connection.send_bytes(json.dumps(facts).encode())
            connection.send_bytes(b"" if encoded is data else encoded)


def _out_of_memory(config: NormalizeConfig) -> Reject:
    return Reject(Reason.OUT_OF_MEMORY, f"more than {config.limits.memory_bytes} bytes")


def _limit_memory(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[5])  # proc(5): data and stack
        most, hard = pages * resource.getpagesize() + memory_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard != resource.RLIM_INFINITY:  # a limit of the caller's may be lower
            most = min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Serve the process at the other end of a socket; signals for the whole group are handled by that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tie_to_parent()
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(1, 2)  # what libtiff and others print is in the reject; a traceback of ours is still seen
    try:
        serve(NormalizeConfig.from_json(json.loads(sys.argv[1])), Connection(int(sys.argv[2])))
    except MemoryError:  # to receive an image, or to send one back
        os._exit(errno.ENOMEM)


if __name__ == "__main__":
    main()
