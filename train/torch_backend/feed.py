"""From a reader's batches of serialized examples to batches of pixels, decoded ahead."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from etl.slices.manifest import Manifest
from train.reader.batches import RecordBatch
from train.torch_backend.decode import Decoder
from train.torch_backend.decode_pool import DecodePool, DecodeProcesses, DecodeThreads, DecodingBatch

DECODED_BATCHES = 2  # ahead of the one that is being used
MIN_STD = 1e-7  # of a channel that is constant in the training split, as Keras has it
EPOCHS = 2  # that are open at a time, at most: of training, and of an evaluation within it


@dataclass(frozen=True)
class PixelBatch:
    """``pixels`` are uint8 of shape (batch, height, width, channels), ``labels`` int64, ``weights`` float32 (0 for the
    padding that fills a batch up), each of shape (batch,); all on the CPU. ``real_keys`` are those of the examples that
    are not padding.
    """

    pixels: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    real_keys: Sequence[bytes]


PixelBatches = Generator[PixelBatch, None, None]
Ahead = deque[tuple[RecordBatch, DecodingBatch]]


def statistics_of(manifest: Manifest, device: torch.device | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation by channel, from 0 to 255: float32 of shape (1, channels, 1, 1)."""
    mean, std = (torch.tensor(each, device=device).view(1, -1, 1, 1) for each in (manifest.mean, manifest.std))
    return mean, std.clamp(min=MIN_STD)


class PixelFeed:
    """Decodes batches on so many cores: in threads; or, if ``is_for_gpu``, in processes and to pinned memory."""

    def __init__(self, decoder: Decoder, cores: int, is_for_gpu: bool = False) -> None:
        self._pool: DecodePool = (
            DecodeProcesses(decoder, cores, EPOCHS * (DECODED_BATCHES + 1), pinned)
            if is_for_gpu
            else DecodeThreads(decoder, cores)
        )

    def epoch(self, batches: Iterator[RecordBatch], seed: int | None = None) -> PixelBatches:
        """A decoded batch for each of ``batches``, augmented if there is a ``seed``. Raises what ``batches`` raises,
        DataError if a picture cannot be decoded, and EnvironmentFailure if a process that decodes is lost.
        """
        ahead: Ahead = deque()
        try:
            for batch in batches:
                seeds = [None if seed is None else (seed, number) for number in batch.numbers.tolist()]
                ahead.append((batch, self._pool.begin(batch, seeds)))
                if len(ahead) > DECODED_BATCHES:
                    yield self._take(ahead)
            while ahead:
                yield self._take(ahead)
        finally:
            for _, begun in ahead:
                begun.cancel()
            if isinstance(batches, Generator):  # it closes its files and ends its threads now, not at some time
                batches.close()

    def _take(self, ahead: Ahead) -> PixelBatch:
        """The first of the batches that are being decoded; it stays there if it fails."""
        batch, begun = ahead[0]
        decoded = begun.result()
        pixels = torch.from_numpy(begun.pixels)
        begun.release()
        ahead.popleft()
        weights = torch.from_numpy(batch.weights)
        keys = [key for (_, key), weight in zip(decoded, batch.weights, strict=True) if weight > 0]
        return PixelBatch(pixels, torch.tensor([label for label, _ in decoded]), weights, keys)


def pinned(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """An array that a GPU copies from while the host does other things; its values are any."""
    return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
