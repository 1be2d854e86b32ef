"""How fast slices are read: by pyarrow alone, as serialized examples in ``tf.data``, and decoded; each for a while."""

import itertools
import os
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from etl.slices.manifest import Manifest
from etl.storage.place import Place
from train.reader.batches import RecordBatch
from train.reader.config import ReaderOptions
from train.reader.intervals import Steps
from train.reader.reader import SplitReader
from train.reader.retry import missing
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import Feed, PixelFeed

RAW, RECORDS, DECODED = WAYS = ("raw", "records", "decoded")
CHUNK_BYTES = 8 << 20
BATCH = 256
SEED = 0


@dataclass(frozen=True)
class Rate:
    """What one way of reading gave in ``seconds`` with so many slices at once; ``records`` is None for raw bytes."""

    way: str
    slices_at_once: int
    size_bytes: float
    records: int | None
    seconds: float
    cpu_s: float

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6 bytes) of slices per second."""
        return self.size_bytes / self.seconds / 1e6

    @property
    def records_per_s(self) -> float | None:
        """Records per second; None for raw bytes."""
        return self.records / self.seconds if self.records is not None else None

    @property
    def cpu_s_per_gb(self) -> float:
        """Seconds of CPU time for each 10^9 bytes of slices."""
        return self.cpu_s / self.size_bytes * 1e9


class Throughput:
    """Measures reading one split of slices, again and again from its beginning, for ``seconds`` each time."""

    def __init__(self, folder: Place, manifest: Manifest, split: str, seconds: float) -> None:
        self._folder, self._manifest, self._split, self._seconds = folder, manifest, split, seconds
        self._slices = manifest.splits[split]
        self.records = sum(each.records for each in self._slices)
        self.size_bytes = sum(each.size_bytes for each in self._slices)

    def measure(self, way: str, at_once: int) -> Rate:
        """One measurement, without what it takes to connect and to start. Raises what reading raises."""
        return self._measure_raw(at_once) if way == RAW else self._measure_batches(way, at_once)

    def _measure_raw(self, at_once: int) -> Rate:
        places = itertools.cycle([self._folder / f"{each.name}.tfrecord" for each in self._slices])
        taking = threading.Lock()
        next(places).info()  # connects
        started, busy = time.perf_counter(), time.process_time()

        def is_over() -> bool:
            return time.perf_counter() - started >= self._seconds

        def read() -> int:
            size_bytes = 0
            while not is_over():
                with taking:
                    place = next(places)
                with _open(place) as file:
                    while not is_over() and (chunk := file.read_buffer(CHUNK_BYTES)).size:
                        size_bytes += chunk.size
            return size_bytes

        with ThreadPoolExecutor(at_once) as pool:
            sizes = [pool.submit(read) for _ in range(at_once)]
        size_bytes = sum(each.result() for each in sizes)
        return Rate(RAW, at_once, size_bytes, None, time.perf_counter() - started, time.process_time() - busy)

    def _measure_batches(self, way: str, at_once: int) -> Rate:
        batch = min(BATCH, self.records)
        with closing(self._batches(way, at_once, batch)) as batches:
            next(batches)  # connects, and starts what reads ahead
            taken, started, busy = 0, time.perf_counter(), time.process_time()
            while (seconds := time.perf_counter() - started) < self._seconds:
                next(batches)
                taken += batch
            cpu_s = time.process_time() - busy
        return Rate(way, at_once, taken * self.size_bytes / self.records, taken, seconds, cpu_s)

    def _batches(self, way: str, at_once: int, batch: int) -> Generator[object, None, None]:
        """Batches without an end, of serialized examples or of pixels; who measures stops when the time is over."""
        reader = SplitReader(self._folder, self._manifest, self._split, ReaderOptions(lanes=at_once))
        reader.require()
        records = self._epochs(reader, Steps(self.records, 1, batch, drop_last=True))
        if way == RECORDS:
            yield from Feed(batch).epoch(records)
        else:
            decoder = Decoder(self._manifest, self._manifest.size)
            yield from PixelFeed(decoder, batch, len(os.sched_getaffinity(0))).epoch(records)

    @staticmethod
    def _epochs(reader: SplitReader, steps: Steps) -> Iterator[RecordBatch]:
        for epoch in itertools.count(1):
            yield from reader.batches(reader.order(SEED, epoch), steps, 0)


def _open(place: Place) -> pa.NativeFile:
    try:
        return place.open_input()
    except FileNotFoundError:
        raise missing(place) from None
