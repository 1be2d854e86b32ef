"""Seeded damage to files, by accident or on purpose; it follows from a number alone."""

import random
import zlib
from collections.abc import Mapping

from tests.lib.pictures.png import SIGNATURE, chunks

_EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_MAX_RUN, _MAX_STEPS = 64, 3
_STEPS = ("flip", "overwrite", "cut off", "insert", "lose", "splice", "repeat", "size", "size")


def mutate(number: int, files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """The name of one of the files, and its damaged content; another may lend it a part.

    Half of the PNGs get the CRCs that fit, so that their content is believed.
    """
    chance = random.Random(number)
    origin, lender = chance.choice(list(files)), files[chance.choice(list(files))]
    data = files[origin]
    for _ in range(chance.randint(1, _MAX_STEPS)):
        data = _damage(chance.choice(_STEPS), data, lender, chance)
    if data.startswith(SIGNATURE) and chance.random() < 0.5:
        parts = (part[:-4] for part in chunks(data))
        data = SIGNATURE + b"".join(part + zlib.crc32(part[4:]).to_bytes(4) for part in parts)
    return origin, data


def _damage(step: str, data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """One accident: bits flip, a number that might be a size becomes another, bytes are replaced, lost or added."""
    start, elsewhere, size = _place(data, chance), _place(lender, chance), chance.randint(1, _MAX_RUN)
    if step == "flip":
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8, 64)) if data else 0):
            changed[min(_place(data, chance), len(data) - 1)] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if step == "size":
        width, is_big = chance.choice((1, 2, 4)), chance.random() < 0.5
        known = int.from_bytes(data[start : start + width], "big" if is_big else "little")
        value = chance.choice((*_EXTREMES, known + 1, known - 1, known * 2)) % (1 << 8 * width)
        return data[:start] + value.to_bytes(width, "big" if is_big else "little") + data[start + width :]
    run = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size), lender[elsewhere : elsewhere + size]))
    rest = {
        "overwrite": run + data[start + len(run) :],
        "cut off": b"",
        "insert": run + data[start:],
        "lose": data[start + size :],
        "splice": lender[elsewhere:],
        "repeat": data[start : start + size] * chance.choice((2, 2, 100)) + data[start + size :],
    }
    return data[:start] + rest[step]


def _place(data: bytes, chance: random.Random) -> int:
    """Somewhere in a file; half of the times in its first 100 bytes, where most headers are."""
    size = len(data) if chance.random() < 0.5 else min(len(data), 100)
    return chance.randrange(size + 1)
