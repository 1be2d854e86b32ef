"""A process that decodes for this one: what hangs, crashes or eats memory there becomes a reject here.

What decides is the header, as far as Python alone reads it. Plain files (`Header.is_plain`, the usual JPEG above all)
of up to `MOST_PIXELS_HERE` are decoded in this process: what they take goes by the number of their pixels, what decodes
them is libjpeg-turbo, zlib or nothing at all, and the way to the helper and back would add 10 to 20 percent. Everything
else goes to the helper: progressive and CMYK JPEGs, colour profiles, palettes, transparency, animations, every other
format.

Bytes travel over pipes, each message with its length before it; nothing is unpickled. The helper is started at the
first image that needs it, and again after it was ended.

Processor time is what counts as slow, so that a busy machine rejects no image; one that takes `PATIENCE` times as long
by the clock hangs. Memory is what the helper may allocate (RLIMIT_DATA, of Linux) beyond what it has when it is ready.
"""

import errno
import fcntl
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

from etl.config import NormalizeConfig
from etl.errors import EnvironmentFailure
from etl.normalized import Normalized
from etl.rejects import Reason, Reject

START_TIMEOUT_S = 120.0
PATIENCE = 6
PIPE_BYTES = 1 << 20
MOST_PIXELS_HERE = 25_000_000
# BLAS keeps memory for each of its threads, and there is no use for them
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_LENGTH = struct.Struct("<Q")


class ImageHelper:
    """Normalises images as ``config`` says, in a process of its own; a context manager."""

    def __init__(self, config: NormalizeConfig) -> None:
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def normalize(self, data: bytes) -> Normalized | Reject:
        """What `normalize_image` returns, or a reject for what it did to the helper.

        Raises EnvironmentFailure where the helper cannot be started, or is ended by somebody else.
        """
        # here, for most processes that import this module decode nothing
        from etl.headers import MAYBE_PLAIN, Header, sniff
        from etl.images import look, normalize_known

        header = look(data, self.config) if sniff(data) in MAYBE_PLAIN else None
        if isinstance(header, Header) and header.is_plain and header.width * header.height <= MOST_PIXELS_HERE:
            return normalize_known(data, header, self.config)
        answer = self._ask(data) or self._ask(data)  # it may have been ended by what is no fault of the image
        if answer is None:
            raise EnvironmentFailure("the helper process that decodes images was ended twice; is there enough memory?")
        return answer

    def _ask(self, data: bytes) -> Normalized | Reject | None:
        """None where the helper was ended by somebody else."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, data)
            patience_s = PATIENCE * self.config.limits.seconds
            if not _wait(process.stdout, patience_s):
                self._stop(kill=True)
                return Reject(Reason.TOO_SLOW, f"nothing came in {patience_s:g} s")
            told = _receive(process.stdout)
            encoded = _receive(process.stdout)
        except (BrokenPipeError, EOFError):
            return self._explain(self._stop())
        facts = json.loads(told)
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
        words = [sys.executable, "-m", "etl.image_helper", json.dumps(self.config.to_json())]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | _ENVIRONMENT)
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError, AttributeError):  # not allowed, or not Linux: it is slower then
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            if _wait(process.stdout, START_TIMEOUT_S):
                _receive(process.stdout)
                return process
            status = self._stop(kill=True)
        except EOFError:
            status = self._stop()
        raise EnvironmentFailure(f"the helper process that decodes images cannot start (status {status})")

    def _stop(self, kill: bool = False) -> int:
        """End the helper, if there is one; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return process.wait()


def _wait(pipe: IO[bytes], seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many ``seconds``."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _send(pipe: IO[bytes], *messages: bytes) -> None:
    for message in messages:
        pipe.write(_LENGTH.pack(len(message)))
        pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """The next message. Raises EOFError where the other side has gone."""
    header = pipe.read(_LENGTH.size)
    message = pipe.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
    if len(header) < _LENGTH.size or len(message) < _LENGTH.unpack(header)[0]:
        raise EOFError
    return message


def serve(config: NormalizeConfig, requests: IO[bytes], answers: IO[bytes]) -> None:
    """In the helper: answer each image with facts (JSON) and its encoded form, until ``requests`` ends.

    What is kept byte for byte is not sent back.
    """
    from etl.images import normalize_image

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
