"""Slices as a dataset of PyTorch, for programs with a training loop of their own.

    from train.torch_backend.data import SliceDataset, SliceLoader

    loader = SliceLoader(SliceDataset("hdfs://namenode/datasets/flowers", batch=64, workers=4))
    for epoch in range(10):
        for pixels, labels in loader:
            ...

Each rank that torchrun started, and each worker of its loader, reads a share of its own: in an epoch each example comes
once, and all ranks get the same number of batches. `SliceLoader.state_dict` is what an epoch has left, to go on from
with any number of ranks and workers.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from train.config.augmentation import Augmentation
from train.config.recipe import AUGMENTATIONS
from train.reader.config import ReaderOptions
from train.reader.intervals import Steps
from train.reader.order import epoch_seed
from train.reader.reader import SplitReader
from train.reader.state import ReaderState
from train.runs.folder import Dataset, find_dataset
from train.runs.position import FIRST_EPOCH
from train.torch_backend.decode import Decoder
from train.torch_backend.feed import PixelFeed, statistics_of

Batch = tuple[Any, ...]


@dataclass(eq=False)
class SliceDataset(IterableDataset[Batch]):
    """Batches of one split of the slices at ``root``: the newest finished ones, or those called ``name``.

    A batch is (pixels, labels): uint8 of shape (examples, channels, height, width) and int64 of shape (examples,); with
    ``has_keys`` also the keys as bytes. Batches of an epoch have up to ``batch`` examples, and sizes that differ by one
    at most, or all of them exactly ``batch`` with ``drop_last``. A batch is empty if fewer examples than shares are
    left for a step: the sum of its losses is 0, their mean NaN. ``augment`` is as in ``--augment``, for example
    "crop,flip"; ``crop`` is the side of the pictures. ``workers`` is the number of the loader's processes, which share
    the ``budget_bytes`` of ``reading``. ``rank`` and ``world_size`` are those of torchrun by default.

    Raises UsageError if there are no such slices, split or examples for every share, or too little memory to read.
    """

    root: str
    batch: int
    split: str = "train"
    name: str | None = None
    augment: tuple[str, ...] | str = ()
    crop: int | None = None
    has_keys: bool = False
    drop_last: bool = False
    seed: int = 0
    workers: int = 0
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    world_size: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", "1")))
    reading: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        self.augment = tuple(filter(None, self.augment.split(","))) if isinstance(self.augment, str) else self.augment
        if unknown := [each for each in self.augment if each not in AUGMENTATIONS]:
            raise UsageError(f"augment {unknown[0]!r}: give some of {', '.join(AUGMENTATIONS)}")
        for name, least in (("batch", 1), ("crop", 1), ("workers", 0), ("rank", 0)):
            value = getattr(self, name)
            if value is not None and (value < least or (name == "rank" and value >= self.world_size)):
                raise UsageError(f"{name} {value} is out of range; give at least {least}, and a rank below world_size")
        self.found: Dataset = find_dataset(self.root, self.name)
        self.manifest = Manifest.from_json(self.found.manifest)
        if self.split not in self.manifest.splits:
            raise UsageError(f"split {self.split!r}: {self.found.folder} has {', '.join(self.manifest.splits)}")
        self.reading = replace(self.reading, budget_bytes=self._budget_bytes())
        if self._reader.total < self.shares:
            raise UsageError(f"{self._reader.total} examples of {self.split} for {self.shares} shares; use fewer ranks")
        if not self.epoch_batches:
            few = f"batch {self.batch} is more than each of {self.shares} shares has"
            raise UsageError(f"{few}, with drop_last; give a smaller batch")
        self.begin_epoch(FIRST_EPOCH)

    def _budget_bytes(self) -> int:
        """The share of each worker in the memory for what is read ahead. The default grows with the workers if need be.

        Raises UsageError if a budget of the caller's is too little for one block of each slice that a worker reads.
        """
        reading = self.reading
        least, budget = reading.least_bytes(self.manifest.splits[self.split]), reading.budget_bytes
        if budget == ReaderOptions.budget_bytes:
            return max(budget // self._loaders, least)
        if budget // self._loaders < least:
            raise UsageError(
                f"reading=ReaderOptions(budget_bytes={budget}) is too little for workers={self.workers}, each of which"
                f" reads {reading.lanes} slices at once; give budget_bytes={least * self._loaders} or more"
            )
        return budget // self._loaders

    @property
    def _loaders(self) -> int:
        """Processes of a rank that read."""
        return max(1, self.workers)

    @property
    def shares(self) -> int:
        """Processes of all ranks that read."""
        return self.world_size * self._loaders

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by label."""
        return list(self.manifest.classes)

    @property
    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the training split by channel, from 0 to 255: of shape (1, channels, 1, 1).

        A deviation is at least 1e-7.
        """
        return statistics_of(self.manifest)

    @property
    def _reader(self) -> SplitReader:
        """Opened where it is used: an open HDFS is of no use in another process."""
        return SplitReader(open_place(str(self.found.folder)), self.manifest, self.split, self.reading)

    def begin_epoch(self, epoch: int) -> None:
        """Read this epoch next, from its begin; they count from 1."""
        reader = self._reader
        self._go_on(reader.begin(self.found.fingerprint, reader.order(self.seed, epoch)))

    def _go_on(self, state: ReaderState) -> None:
        self._state = state.shared(self.shares, self._reader.lanes(self.shares), self.batch, self.drop_last)

    @property
    def epoch(self) -> int:
        """The epoch that is read next, or is being read; they count from 1."""
        return self._state.epoch

    @property
    def epoch_batches(self) -> int:
        """Batches of this rank in a whole epoch."""
        return Steps(self._reader.total, self.shares, self.batch, self.drop_last).number * self._loaders

    def __len__(self) -> int:
        """Batches of this rank that are left of the epoch."""
        return (self._state.steps.number - self._state.taken) * self._loaders

    def __iter__(self) -> Iterator[Batch]:
        worker, workers = (each.id, each.num_workers) if (each := get_worker_info()) else (0, 1)
        if workers != self._loaders:
            raise UsageError(f"the loader has {workers} workers, its SliceDataset was made for workers={self.workers}")
        state = self._state
        size = self.manifest.size if self.crop is None else (self.crop, self.crop)
        feed = PixelFeed(Decoder(self.manifest, size, Augmentation.of(self.augment)), cores=1)
        records = self._reader.batches_of(state, self.rank * workers + worker)
        for batch in feed.epoch(records, epoch_seed(state.seed, state.epoch)):
            real = batch.weights > 0
            columns = batch.pixels[real].permute(0, 3, 1, 2), batch.labels[real]
            yield (*columns, batch.real_keys) if self.has_keys else columns

    def state_dict(self, batches: int = 0) -> dict[str, Any]:
        """What is left of the epoch once each rank has taken so many more batches: small JSON, equal on all ranks."""
        return self._state.after_batches(batches, self._loaders).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read next what is left of an epoch, with any number of ranks and workers.

        Raises UsageError if the state is of other slices or of another split, DataError if it is damaged.
        """
        self._go_on(ReaderState.from_json(state, self.found.fingerprint, self.split, self._reader.total))
        if not len(self):
            self.begin_epoch(self.epoch + 1)


class SliceLoader(DataLoader[Batch]):
    """A DataLoader of a `SliceDataset`, with its workers; ``options`` are DataLoader's, such as ``pin_memory``.

    It goes through one epoch after the other, and knows how much of it the program has got.
    """

    def __init__(self, dataset: SliceDataset, **options: Any) -> None:
        if options.get("persistent_workers"):
            raise UsageError("persistent_workers=True: they would read the first epoch again and again. Leave it out")
        if not options.get("in_order", True):
            raise UsageError("in_order=False: which examples of an epoch are left would be unknown. Leave it out")
        if dataset.workers and "://" in str(dataset.found.folder):
            options.setdefault("multiprocessing_context", "spawn")  # a forked process cannot use an open HDFS
        super().__init__(dataset, batch_size=None, num_workers=dataset.workers, **options)
        self._slices, self._taken = dataset, 0
        self._pass = object()  # of the iterator that counts: those before it, and before a state was loaded, do not

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch, also if some are taken already: Lightning counts those itself."""
        return self._slices.epoch_batches

    def __iter__(self) -> Iterator[Batch]:
        """The rest of an epoch that was loaded; else the epoch after the last pass, though that was left early."""
        if self._taken:  # also Lightning leaves it: after so many batches, without asking whether there are more
            self._slices.begin_epoch(self._slices.epoch + 1)
        self._taken, self._pass = 0, object()
        return self._counted(super().__iter__(), self._pass)

    def _counted(self, batches: Iterator[Batch], own: object) -> Iterator[Batch]:
        for batch in batches:
            self._taken += own is self._pass
            yield batch
        if own is self._pass:
            self._slices.begin_epoch(self._slices.epoch + 1)
            self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        """What is left of the epoch after the last batch that was given: equal on all ranks after the same step."""
        return self._slices.state_dict(self._taken)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; see `SliceDataset.load_state_dict`."""
        self._slices.load_state_dict(state)
        self._taken, self._pass = 0, object()
