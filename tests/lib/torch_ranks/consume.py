"""Read an epoch of the slices at argv[1] by `train.torch_backend.data`, in PHASES, rank by rank; then train two epochs
by Lightning's Trainer.

Prints, as JSON, the keys that all have read, the number of batches of each rank in each phase, the epoch that the
loader would read next, and the keys of each of Lightning's epochs.
"""

import contextlib
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import nn

from etl.errors import UsageError
from train.reader.config import ReaderOptions
from train.torch_backend.data import SliceDataset, SliceLoader

# ranks, workers of each, and how many batches each rank takes (None: all)
PHASES = [(2, 2, 7), (3, 0, 5), (1, 3, 10), (2, 2, None)]


def require_memory() -> None:
    """Any number of workers has the memory that it needs, unless the caller gave less, and is given the number."""
    workers, lanes = 1000, 256
    default = SliceDataset(sys.argv[1], batch=1, workers=workers, reading=ReaderOptions(lanes=lanes))
    least_bytes = workers * default.reading.budget_bytes
    assert least_bytes > ReaderOptions.budget_bytes
    SliceDataset(sys.argv[1], batch=1, workers=workers, reading=ReaderOptions(lanes=lanes, budget_bytes=least_bytes))
    try:
        small = ReaderOptions(lanes=lanes, budget_bytes=least_bytes - 1)
        SliceDataset(sys.argv[1], batch=1, workers=workers, reading=small)
    except UsageError as error:
        assert str(error).endswith(f"; give budget_bytes={least_bytes} or more"), error
        return
    raise AssertionError("too little memory was not refused")


def require_the_last_pass_counts() -> None:
    """An iterator that another one follows, or a state that is loaded, counts nothing at its end."""
    loader = SliceLoader(dataset := SliceDataset(sys.argv[1], batch=64))
    older = iter(loader)
    next(older)
    newer = iter(loader)  # of the next epoch
    next(newer)
    list(older)
    assert (dataset.epoch, loader.state_dict()["taken"]) == (2, 1)
    loader.load_state_dict(loader.state_dict())
    list(newer)
    assert (dataset.epoch, loader.state_dict()["taken"]) == (2, 1)


class Classifier(lightning.LightningModule):
    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        self.mean, self.std, self.keys = mean, std, [list[str](), list[str]()]

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        pixels, labels, keys = batch
        self.keys[self.current_epoch] += [key.decode() for key in keys]
        logits = self.net((pixels.float() - self.mean) / self.std)
        return nn.functional.cross_entropy(logits, labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_by_lightning() -> list[list[str]]:
    """The keys of each epoch."""
    dataset = SliceDataset(sys.argv[1], batch=64, workers=2, has_keys=True)
    model = Classifier(*dataset.statistics)
    shown = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
    lightning.Trainer(accelerator="cpu", max_epochs=2, **dict.fromkeys(shown, False)).fit(model, SliceLoader(dataset))
    return model.keys


def main() -> None:
    state, keys, counts, epoch = None, [], [], 0
    for ranks, workers, batches in PHASES:
        states = []
        for rank in range(ranks):
            dataset = SliceDataset(
                sys.argv[1], batch=16, workers=workers, rank=rank, world_size=ranks, has_keys=True, augment="crop,flip"
            )
            loader = SliceLoader(dataset)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state, allow_nan=False)))
            left = len(dataset)
            taken = list(itertools.islice(loader, batches))
            assert batches is not None or len(taken) == left
            assert all(pixels.shape == (len(labels), 1, 28, 28) for pixels, labels, _ in taken)
            keys += [key.decode() for _, _, own in taken for key in own]
            states.append(loader.state_dict())
            counts.append(len(taken))
            epoch = dataset.epoch
        assert all(each == states[0] for each in states)
        state = states[0]
    refused: list[Callable[[], object]] = [
        lambda: SliceLoader(dataset, persistent_workers=True),
        lambda: SliceLoader(dataset, in_order=False),
        lambda: SliceDataset(sys.argv[1], batch=16, crop=0),
        lambda: SliceDataset(sys.argv[1], batch=1 << 20, drop_last=True),
        lambda: dataset.load_state_dict([]),  # type: ignore[arg-type]
        lambda: SliceDataset(sys.argv[1], batch=16, split="test").load_state_dict(state or {}),
    ]
    for number, make in enumerate(refused):
        with contextlib.suppress(UsageError):
            make()
            raise AssertionError(f"{number} was not refused")
    require_memory()
    require_the_last_pass_counts()
    found = {"keys": keys, "batches": counts, "epoch": epoch, "of_lightning": train_by_lightning()}
    print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main()
