"""Batches that are decoded in several threads, or in several processes. Imports no PyTorch."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from weakref import finalize

import numpy as np

from etl.errors import EnvironmentFailure, RingsliceError
from etl.processes import block_interrupts
from train.reader.batches import RecordBatch
from train.reader.intervals import run_of
from train.torch_backend.decode import Decoded, Decoder, Pixels, Seed
from train.torch_backend.decode_worker import Part

STOP_TIMEOUT_S = 10.0
Seeds = Sequence[Seed | None]


def empty(shape: tuple[int, ...]) -> Pixels:
    """An array of any values."""
    return np.empty(shape, np.uint8)


@dataclass(frozen=True)
class DecodingBatch:
    """A batch that is being decoded: ``pixels`` of shape (batch, height, width, channels), in ``parts``.

    ``release`` is called when the pixels are not needed any more.
    """

    pixels: Pixels
    parts: Sequence[Future[Decoded]]
    release: Callable[[], None]

    def result(self) -> Decoded:
        """Wait for the pixels; the labels and keys.

        Raises DataError if a picture cannot be decoded, EnvironmentFailure if a process is lost.
        """
        return [each for part in self.parts for each in part.result()]

    def cancel(self) -> None:
        """Give the pixels up: wait until all that writes to them has ended."""
        for part in self.parts:
            part.cancel()
        wait(self.parts)  # ends: a part takes milliseconds, and a process that is lost ends its part
        self.release()


class DecodeThreads:
    """So many threads, which cost nothing to start."""

    def __init__(self, decoder: Decoder, threads: int) -> None:
        self._decoder, self._count = decoder, threads
        self._threads = ThreadPoolExecutor(threads, "decode")

    def begin(self, batch: RecordBatch, seeds: Seeds) -> DecodingBatch:
        """Begin to decode the examples of a batch, with the seed of each."""
        examples, decode = batch.examples(), self._decoder.decode_all
        pixels = empty((len(examples), *self._decoder.shape))
        parts = [
            self._threads.submit(decode, pixels[part], examples[part], seeds[part])
            for part in parts_of(len(examples), self._count)
        ]
        return DecodingBatch(pixels, parts, lambda: None)


class DecodeProcesses:
    """So many processes, for steps on a GPU: threads would share the interpreter's lock with what starts its kernels.

    Examples and pixels are in memory that the processes share, for ``batches`` batches at a time. The processes start
    with the first batch, and end with this one, however that ends. Each has a thread here that waits for it, and copies
    to and from that memory; the pixels to an array that ``allocate`` gives.
    """

    def __init__(self, decoder: Decoder, processes: int, batches: int, allocate: Callable[..., Pixels] = empty) -> None:
        self._decoder, self._count, self._allocate = decoder, processes, allocate
        self._threads = ThreadPoolExecutor(processes, "decode")
        self._free = [SharedMemory() for _ in range(batches)]
        self._idle: SimpleQueue[DecodeProcess] = SimpleQueue()
        files = [each.file for each in self._free]
        for _ in range(processes):
            self._idle.put(DecodeProcess(decoder, files))

    def begin(self, batch: RecordBatch, seeds: Seeds) -> DecodingBatch:
        """Begin to decode the examples of a batch, with the seed of each."""
        count, ends = len(batch.sizes), np.cumsum(batch.sizes)
        pixels, first = self._allocate((count, *self._decoder.shape)), int(ends[-1])
        memory = self._free.pop()
        array = memory.reserve(first + pixels.size)
        whole = Part(memory.file, first, 0, (ends - batch.sizes).tolist(), ends.tolist(), seeds)

        def decode(examples: slice) -> Decoded:
            """In a thread."""
            part = whole.of(examples)
            batch.write_to(array[part.begins[0] :], examples)
            decoded = self._decode(part)
            pixels[examples] = part.pixels(array, self._decoder.shape)
            return decoded

        parts = [self._threads.submit(decode, examples) for examples in parts_of(count, self._count)]
        return DecodingBatch(pixels, parts, partial(self._free.append, memory))

    def _decode(self, part: Part) -> Decoded:
        """Have a process do it that does nothing else."""
        process = self._idle.get()
        try:
            return process.decode(part)
        finally:
            self._idle.put(process)


DecodePool = DecodeThreads | DecodeProcesses


class SharedMemory:
    """Memory for a batch; processes that have its ``file`` see what the others write to it."""

    def __init__(self) -> None:
        self.file = os.memfd_create("ringslice")
        finalize(self, os.close, self.file)
        self._array = np.empty(0, np.uint8)

    def reserve(self, size: int) -> Pixels:
        """An array of at least ``size`` bytes."""
        if size > len(self._array):
            os.ftruncate(self.file, size)
            self._array = np.frombuffer(mmap.mmap(self.file, size), np.uint8)
        return self._array


class DecodeProcess:
    """A process that decodes parts of batches which are in the memory of ``files``; it starts with the first part."""

    def __init__(self, decoder: Decoder, files: Sequence[int]) -> None:
        self._decoder, self._files = decoder, files
        self._started: tuple[subprocess.Popen[bytes], Connection] | None = None

    def decode(self, part: Part) -> Decoded:
        """Write the pixels of a part; its labels and keys.

        Raises DataError if a picture cannot be decoded, EnvironmentFailure if the process is lost.
        """
        self._started = self._started or self._start()
        process, connection = self._started
        try:
            connection.send(part)
            answer = connection.recv()
        except (ConnectionError, EOFError) as error:
            status = process.wait(STOP_TIMEOUT_S)  # its end of the connection is closed: it has ended, or is about to
            remedy = ": memory was short. Give this rank more, or fewer cores" if status == -signal.SIGKILL else ""
            raise EnvironmentFailure(f"a process that decodes pictures ended with status {status}{remedy}") from error
        if isinstance(answer, RingsliceError):
            raise answer
        return answer

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        connection, other_end = Pipe()
        words = [sys.executable, "-P", "-m", "train.torch_backend.decode_worker", str(other_end.fileno())]
        with block_interrupts(), other_end:  # they are for this process, whose end ends the other
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[other_end.fileno(), *self._files])
        finalize(self, end_process, process, connection)
        with suppress(ConnectionError):  # it has ended already: `decode` finds that, too
            connection.send(self._decoder)
        return process, connection


def end_process(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """Wait for the end of a process that has nothing to decode any more."""
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)


def parts_of(count: int, parts: int) -> list[slice]:
    """The examples of a batch, in parts of nearly equal size; empty ones are left out."""
    runs = (run_of(count, part, parts) for part in range(parts))
    return [slice(*run) for run in runs if run[0] < run[1]]
