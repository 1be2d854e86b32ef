"""The project's reader as the benchmarks run it: in a seeded order, checked, with its default memory."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage_in
from etl.storage.place import open_place
from lib.ways.reader_job import Job
from train.config.augmentation import NOTHING, Augmentation
from train.reader.batches import RecordBatch
from train.reader.config import ReaderOptions
from train.reader.intervals import Steps
from train.reader.reader import SplitReader
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import Feed, PixelBatch, PixelFeed

SPLIT = "train"


class OurReader:
    """Reads epochs of the training slices of a folder: all of them, or the first ``most``.

    Without ``drop_last`` the last batch of an epoch is filled up with repeated examples of weight 0.
    """

    def __init__(
        self, folder: str, batch: int, reading: ReaderOptions, most: int | None = None, drop_last: bool = True
    ) -> None:
        place = open_place(folder)
        manifest = Manifest.from_json(read_manifest(slices_stage_in(place)))
        self.manifest = replace(manifest, splits={SPLIT: manifest.splits[SPLIT][:most]})
        self.batch = batch
        self._reader = SplitReader(place, self.manifest, SPLIT, reading)
        self._steps = Steps(self._reader.total, 1, batch, drop_last=drop_last)
        self._feed = Feed(batch)

    def serialized(self, epochs: Sequence[int]) -> int:
        """Read these epochs in a row into batches of serialized examples; return how many examples."""
        return sum(int(examples.shape[0]) for examples, _, _ in self._feed.epoch(self._epochs(epochs)))

    def decoded(self, epochs: Sequence[int], decoder: Decoder) -> int:
        """Read these epochs into batches of pixels; return how many examples."""
        return sum(int(batch.pixels.shape[0]) for batch in self.pictures(epochs, decoder))

    def pictures(self, epochs: Iterable[int], decoder: Decoder) -> Iterator[PixelBatch]:
        """Batches of pixels, of these epochs in a row."""
        return PixelFeed(decoder, self.batch, len(os.sched_getaffinity(0))).epoch(self._epochs(epochs))

    def _epochs(self, epochs: Iterable[int]) -> Iterator[RecordBatch]:
        for epoch in epochs:
            yield from self._reader.batches(self._reader.order(0, epoch), self._steps, 0)


@functools.cache
def _open(folder: str, batch: int, at_once: int, most: int) -> OurReader:
    """One reader for all passes, as a trainer has one for all epochs."""
    return OurReader(folder, batch, ReaderOptions(lanes=at_once), most)


def _reader(job: Job) -> OurReader:
    return _open(job.folder, job.batch, job.at_once, len(job.files))


def serialized(job: Job) -> int:
    """Batches of serialized examples in `tf.data`."""
    return _reader(job).serialized(range(job.passes))


def decoded(job: Job) -> int:
    """Pictures of ``side`` pixels as for evaluation: the centre."""
    return _decode(job, NOTHING)


def augmented(job: Job) -> int:
    """Pictures of ``side`` pixels as for training: a random crop, resized, and flipped at random."""
    return _decode(job, Augmentation(crop=True, flip=True))


def _decode(job: Job, augmentation: Augmentation) -> int:
    assert job.side is not None
    reader = _reader(job)
    return reader.decoded(range(job.passes), Decoder(reader.manifest, (job.side, job.side), augmentation))
