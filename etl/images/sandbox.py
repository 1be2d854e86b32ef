"""Decode images in a child process, so that one that hangs, crashes or takes too much memory becomes a reject.

Plain files (`Header.is_plain`, such as the usual JPEG) of up to `MAX_PIXELS_HERE` are decoded in this process: their
cost goes by the number of their pixels, their decoder is libjpeg-turbo, zlib or none, and a child process would add 10
to 20 percent. All others go to the worker: progressive and CMYK JPEGs, colour profiles, palettes, transparency,
animations, every other format.

Bytes travel over pipes, each message after its length; nothing is unpickled. The worker is started at the first image
that needs it, and again after it has ended.

The limit of time is one of processor time, so that a busy machine rejects no image; a worker that takes `PATIENCE`
times as long by the clock hangs, and is killed. The limit of memory is what the worker may allocate (RLIMIT_DATA, of
Linux) beyond what it has when it is ready. The worker does not outlive its owner, however that ends.
"""

import errno
import fcntl
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

from etl.errors import EnvironmentFailure
from etl.images.config import NormalizeConfig
from etl.images.result import Normalized, Reason, Reject
from etl.processes import block_interrupts, tie_to_parent, tied_environment

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
PATIENCE = 6
PIPE_BYTES = 1 << 20
MAX_PIXELS_HERE = 25_000_000
# BLAS keeps memory for each of its threads, and there is no use for them
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_LENGTH = struct.Struct("<Q")


class DecodeWorker:
    """Normalises images as ``config`` says, in a process of its own; a context manager."""

    def __init__(self, config: NormalizeConfig) -> None:
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(kill=True)  # what it may still do is for nobody

    def normalize(self, data: bytes) -> Normalized | Reject:
        """What `normalize_image` returns, or a reject for what it did to the worker.

        Raises EnvironmentFailure if the worker cannot be started, or is ended by somebody else.
        """
        # here, for most processes that import this module decode nothing
        from etl.images.header import Header, is_maybe_plain
        from etl.images.normalize import normalize_decoded, read_limited_header

        header = read_limited_header(data, self.config) if is_maybe_plain(data) else None
        if isinstance(header, Header) and header.is_plain and header.width * header.height <= MAX_PIXELS_HERE:
            return normalize_decoded(data, header, self.config)
        answer = self._ask(data) or self._ask(data)  # it may have been ended by what is no fault of the image
        if answer is None:
            raise EnvironmentFailure("the process that decodes images was ended twice; is there enough memory?")
        return answer

    def _ask(self, data: bytes) -> Normalized | Reject | None:
        """None where the worker was ended by somebody else."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        patience_s = PATIENCE * self.config.limits.seconds
        with _kill_after(process, patience_s) as is_late:
            try:
                _send(process.stdin, data)
                facts, encoded = json.loads(_receive(process.stdout)), _receive(process.stdout)
            except (BrokenPipeError, EOFError):
                status = self._stop()
                return (
                    Reject(Reason.TOO_SLOW, f"no answer in {patience_s:g} s")
                    if is_late.is_set()
                    else self._explain(status)
                )
        if "reason" in facts:
            return Reject(Reason(facts["reason"]), facts["detail"])
        return Normalized(encoded or data, **facts)

    def _explain(self, status: int) -> Reject | None:
        seconds = self.config.limits.seconds
        if status == -signal.SIGPROF:
            return Reject(Reason.TOO_SLOW, f"more than {seconds:g} s of processor time")
        if status == errno.ENOMEM:
            return _out_of_memory(self.config)
        if -status in _CRASHES:
            return Reject(Reason.CRASHED, signal.Signals(-status).name)
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-P", "-m", "etl.images.sandbox", json.dumps(self.config.to_json())]
        with block_interrupts():
            process = self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=tied_environment(signal.SIGKILL, os.environ | _ENVIRONMENT),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError, AttributeError):  # not allowed, or not Linux: it is slower then
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            with _kill_after(process, START_TIMEOUT_S):
                _receive(process.stdout)
        except EOFError:
            status = self._stop()
            raise EnvironmentFailure(f"the process that decodes images cannot start (status {status})") from None
        return process

    def _stop(self, kill: bool = False) -> int:
        """End the worker, if there is one; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of what was not sent
                pipe.close()
        try:
            return process.wait(STOP_TIMEOUT_S)  # it ends as soon as its input does
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@contextmanager
def _kill_after(process: subprocess.Popen[bytes], timeout_s: float) -> Iterator[threading.Event]:
    """Kill the process if the block takes longer: its pipes end then, and the event is set."""
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


def _send(pipe: IO[bytes], *messages: bytes) -> None:
    for message in messages:
        pipe.write(_LENGTH.pack(len(message)))
        pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """The next message. Raises EOFError if the other side has ended."""
    return _read(pipe, _LENGTH.unpack(_read(pipe, _LENGTH.size))[0])


def _read(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(config: NormalizeConfig, requests: IO[bytes], answers: IO[bytes]) -> None:
    """In the worker: answer each image with facts (JSON) and its encoded form, until ``requests`` ends.

    What is kept byte for byte is not sent back.
    """
    from etl.images.normalize import normalize_image

    _limit_memory(config.limits.memory_bytes)
    _send(answers, b"ready")
    with suppress(EOFError, BrokenPipeError):
        while True:
            data = _receive(requests)
            signal.setitimer(signal.ITIMER_PROF, config.limits.seconds)  # SIGPROF ends this process
            try:
                result = normalize_image(data, config)
            except MemoryError:
                result = _out_of_memory(config)
            signal.setitimer(signal.ITIMER_PROF, 0)
            facts = dict(vars(result)) if isinstance(result, Normalized) else asdict(result)
            encoded = facts.pop("encoded", b"")
            _send(answers, json.dumps(facts).encode(), b"" if encoded is data else encoded)


def _out_of_memory(config: NormalizeConfig) -> Reject:
    return Reject(Reason.OUT_OF_MEMORY, f"more than {config.limits.memory_bytes} bytes")


def _limit_memory(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[5])  # proc(5): data and stack
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Serve the process that has our pipes; signals for the whole group are for it to deal with."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tie_to_parent()
    answers = os.fdopen(os.dup(1), "wb")
    sys.stderr = os.fdopen(os.dup(2), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)  # what libtiff and others say is in the reject; a traceback of ours is still seen
    try:
        serve(NormalizeConfig.from_json(json.loads(sys.argv[1])), os.fdopen(0, "rb"), answers)
    except MemoryError:  # to take an image in, or to send one back
        os._exit(errno.ENOMEM)


if __name__ == "__main__":
    main()
