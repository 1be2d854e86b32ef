"""A process that decodes parts of batches for another one, until that ends: see `train.torch_backend.decode_pool`.

    python -m train.torch_backend.decode_worker FILE

FILE is the number of the inherited socket over which it gets its `Decoder`, then a `Part` at a time; it answers with
the labels and keys, or with what was raised.
"""

import math
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Self

import cv2
import numpy as np

from etl.errors import RingsliceError
from train.torch_backend.decode import Decoded, Decoder, Pixels, Seed


@dataclass(frozen=True)
class Part:
    """Examples of a batch that lie in the memory of ``file``, an inherited one: each from its begin to its end, in
    bytes. Their pictures are written from ``first`` on, each to its place; that of the first example is ``place``.
    """

    file: int
    first: int
    place: int
    begins: Sequence[int]
    ends: Sequence[int]
    seeds: Sequence[Seed | None]

    def of(self, part: slice) -> Self:
        """These of its examples."""
        begins, ends, seeds = self.begins[part], self.ends[part], self.seeds[part]
        return replace(self, place=self.place + part.start, begins=begins, ends=ends, seeds=seeds)

    def pixels(self, memory: Pixels, shape: tuple[int, int, int]) -> Pixels:
        """Where in ``memory`` the pictures are, each of ``shape``."""
        size = math.prod(shape)
        start = self.first + self.place * size
        return memory[start : start + len(self.begins) * size].reshape(-1, *shape)

    def decode(self, decoder: Decoder, memory: Pixels) -> Decoded:
        """Write the pictures; the labels and keys. Raises DataError if one cannot be decoded."""
        examples = [memory[begin:end].tobytes() for begin, end in zip(self.begins, self.ends, strict=True)]
        return decoder.decode_all(self.pixels(memory, decoder.shape), examples, self.seeds)


def main(connection: Connection) -> None:
    """Answer until the other process ends, or closes its end."""
    cv2.setNumThreads(1)  # this process is one of many
    memories: dict[int, Pixels] = {}
    with suppress(EOFError, ConnectionError):
        decoder: Decoder = connection.recv()
        while True:
            part: Part = connection.recv()
            size = os.fstat(part.file).st_size
            if part.file not in memories or len(memories[part.file]) < size:  # it grows with the batches
                memories[part.file] = np.frombuffer(mmap.mmap(part.file, size), np.uint8)
            try:
                connection.send(part.decode(decoder, memories[part.file]))
            except RingsliceError as error:
                connection.send(error)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
