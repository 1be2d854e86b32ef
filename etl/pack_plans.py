"""Which images go into which pack: arithmetic."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from etl.sources import SourceImage

MOST_IMAGES = 10_000  # so that a mapper holds no more rows than that, and tiny images make more than one task


@dataclass(frozen=True)
class PackPlan:
    """The images that go into one pack, in order."""

    name: str
    images: tuple[SourceImage, ...]


def pack_name(number: int) -> str:
    return f"pack-{number:05d}"


def plan_packs(images: Iterable[SourceImage], pack_bytes: int, first: int = 0) -> Iterator[PackPlan]:
    """Deal ``images``, in order, to packs of about ``pack_bytes`` and at most `MOST_IMAGES`; none is empty.

    They are numbered from ``first`` on.
    """
    number, batch, size = first, list[SourceImage](), 0
    for image in images:
        if len(batch) == MOST_IMAGES or (batch and size + image.size_bytes > pack_bytes):
            yield PackPlan(pack_name(number), tuple(batch))
            number, batch, size = number + 1, [], 0
        batch.append(image)
        size += image.size_bytes
    if batch:
        yield PackPlan(pack_name(number), tuple(batch))


def plan_files(images: Iterable[SourceImage], first: int = 0) -> Iterator[PackPlan]:
    """The images of each file of a source, which come one after the other, as packs of at most `MOST_IMAGES`."""
    number = first
    for _, run in groupby(images, lambda image: image.position[0]):
        while batch := tuple(islice(run, MOST_IMAGES)):
            yield PackPlan(pack_name(number), batch)
            number += 1
