"""Which packs a renewal keeps, and which images go to new ones: arithmetic on numbers of images. No file is read.

The source's images are numbered from 0. Of a pack it is known which image each of its rows still holds, and which rows
hold none any more: the image is gone, has changed, or was removed before.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_IMAGE = -1

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeptPack:
    """A pack that stays as it is; ``removed`` are the rows of it that hold no image any more: int64, ascending."""

    name: str
    removed: Integers


@dataclass(frozen=True)
class RenewalPlan:
    """The packs that stay, in their order, and the images that none of them holds: int64, ascending."""

    kept: tuple[KeptPack, ...]
    unpacked: Integers


def plan_renewal(packs: Iterable[tuple[str, Integers]], images: int) -> RenewalPlan:
    """What becomes of ``packs``, each a name and the image of each row (`NO_IMAGE` for none): int64 of shape (rows,).

    A pack with more than half of its rows removed is not kept: what it still holds is packed anew. Of two rows with the
    same image the second one is removed.
    """
    packed = np.zeros(images, dtype=np.bool_)
    kept = []
    for name, held in packs:
        live = _first_of_each(held) & ~packed[held]  # NO_IMAGE reads the last image's, and is live nowhere
        removed = np.flatnonzero(~live)
        if 2 * len(removed) > len(held) or len(removed) == len(held):
            continue
        packed[held[live]] = True
        kept.append(KeptPack(name, removed))
    return RenewalPlan(tuple(kept), np.flatnonzero(~packed))


def _first_of_each(held: Integers) -> npt.NDArray[np.bool_]:
    first = np.zeros(len(held), dtype=np.bool_)
    first[np.unique(held, return_index=True)[1]] = True
    return first & (held != NO_IMAGE)
