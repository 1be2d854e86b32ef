"""From a reader's batches of serialized examples to batches of pixels, decoded ahead in threads."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from train.reader.batches import RecordBatch
from train.reader.intervals import run_of
from train.torch_backend.decode import Decoder

DECODED_BATCHES = 2  # ahead of the one that is being used


@dataclass(frozen=True)
class PixelBatch:
    """``pixels`` are uint8 of shape (batch, height, width, channels), ``labels`` int64, ``weights`` float32 (0 for the
    padding that fills a batch up), each of shape (batch,); all on the CPU. ``keys`` are of the examples that are no
    padding.
    """

    pixels: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    keys: Sequence[bytes]


PixelBatches = Generator[PixelBatch, None, None]
Decoded = list[tuple[int, bytes]]  # labels and keys


class PixelFeed:
    """Decodes batches on so many ``threads``, into pinned memory if they go to a GPU."""

    def __init__(self, decoder: Decoder, threads: int, is_pinned: bool) -> None:
        self._decoder, self._threads, self._is_pinned = decoder, threads, is_pinned
        self._pool = ThreadPoolExecutor(threads, "decode")

    def epoch(self, batches: Iterator[RecordBatch], seed: int = 0) -> PixelBatches:
        """A decoded batch for each of ``batches``, augmented by ``seed``. Raises what ``batches`` raises, and DataError
        if a picture cannot be decoded.
        """
        ahead: deque[tuple[RecordBatch, torch.Tensor, list[Future[Decoded]]]] = deque()
        try:
            for batch in batches:
                ahead.append(self._begin(batch, seed))
                if len(ahead) > DECODED_BATCHES:
                    yield self._finish(*ahead.popleft())
            while ahead:
                yield self._finish(*ahead.popleft())
        finally:
            for _, _, parts in ahead:
                for part in parts:
                    part.cancel()
            if isinstance(batches, Generator):  # it closes its files and ends its threads now, not at some time
                batches.close()

    def _begin(self, batch: RecordBatch, seed: int) -> tuple[RecordBatch, torch.Tensor, list[Future[Decoded]]]:
        """Have the threads decode the examples of a batch, in parts."""
        examples = batch.examples()
        shape = (len(examples), *self._decoder.size, self._decoder.manifest.channels)
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._is_pinned)
        array, seeds = pixels.numpy(), [(seed, int(number)) for number in batch.numbers]

        def decode(part: range) -> Decoded:
            return [self._decoder.decode_into(array[each], examples[each], seeds[each]) for each in part]

        parts = [range(*run_of(len(examples), each, self._threads)) for each in range(self._threads)]
        return batch, pixels, [self._pool.submit(decode, part) for part in parts if part]

    def _finish(self, batch: RecordBatch, pixels: torch.Tensor, parts: list[Future[Decoded]]) -> PixelBatch:
        decoded = [each for part in parts for each in part.result()]
        weights = torch.from_numpy(batch.weights)
        keys = [key for (_, key), weight in zip(decoded, batch.weights, strict=True) if weight > 0]
        return PixelBatch(pixels, torch.tensor([label for label, _ in decoded]), weights, keys)
