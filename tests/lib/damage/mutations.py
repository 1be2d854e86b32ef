"""Seeded damage to files, by accident or on purpose; it follows from a number alone."""

import random
import zlib
from collections.abc import Mapping
from typing import Literal

from tests.lib.pictures.jpeg import segments
from tests.lib.pictures.png import SIGNATURE, chunks

_EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_MAX_RUN, _MAX_STEPS = 64, 3
_STEPS = ("flip", "overwrite", "cut off", "insert", "lose", "splice", "size", "part", "part")


def mutate(number: int, files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """The name of one of the files, and its damaged content; another may lend it a part."""
    chance = random.Random(number)
    origin, lender = chance.choice(list(files)), files[chance.choice(list(files))]
    data = files[origin]
    for _ in range(chance.randint(1, _MAX_STEPS)):
        step = chance.choice(_STEPS)
        data = _damage_part(data, lender, chance) if step == "part" else _damage(step, data, lender, chance)
    return origin, data


def _damage(step: str, data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """One accident: bits flip, a number that might be a size becomes another, bytes are replaced, lost or added."""
    start, elsewhere, size = _place(data, chance), _place(lender, chance), chance.randint(1, _MAX_RUN)
    if step == "flip":
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8, 64)) if data else 0):
            changed[min(_place(data, chance), len(data) - 1)] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if step == "overwrite":
        run = chance.choice((bytes(size), b"\xff" * size, chance.randbytes(size), lender[elsewhere : elsewhere + size]))
        return data[:start] + run + data[start + len(run) :]
    if step == "size":
        width, order = chance.choice((1, 2, 4)), chance.choice(_ORDERS)
        known = int.from_bytes(data[start : start + width], order)
        value = chance.choice((*_EXTREMES, known + 1, known - 1, known * 2)) % (1 << 8 * width)
        return data[:start] + value.to_bytes(width, order) + data[start + width :]
    rest = {
        "cut off": b"",
        "insert": chance.randbytes(size) + data[start:],
        "lose": data[start + size :],
        "splice": lender[elsewhere:],
    }
    return data[:start] + rest[step]


_ORDERS: tuple[Literal["big", "little"], ...] = ("big", "little")


def _place(data: bytes, chance: random.Random) -> int:
    """Somewhere in a file; half of the times in its first 100 bytes, where most headers are."""
    size = len(data) if chance.random() < 0.5 else min(len(data), 100)
    return chance.randrange(size + 1)


def _damage_part(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """Damage, drop or repeat a part of the format; a chunk of PNG gets the CRC that fits: its content is believed."""
    parts = _parts_of(data)
    which = chance.randrange(1, len(parts)) if len(parts) > 1 else 0
    part, step = parts[which], chance.choice(_STEPS[:-2])
    if chance.random() < 0.3:
        parts[which] = part * chance.choice((0, 2, 2, 100))
    elif data.startswith(SIGNATURE) and len(part) > 12:
        body = _damage(step, part[8:-4], lender, chance)[: len(part) - 12].ljust(len(part) - 12)
        parts[which] = part[:8] + body + zlib.crc32(part[4:8] + body).to_bytes(4, "big")
    else:
        parts[which] = _damage(step, part, lender, chance)
    return b"".join(parts)


def _parts_of(data: bytes) -> list[bytes]:
    """The segments of a JPEG, the chunks of a PNG, the blocks of a tar, or else pieces as long as an entry of TIFF."""
    if data.startswith(b"\xff\xd8"):
        return segments(data)
    if data.startswith(SIGNATURE):
        return [SIGNATURE, *chunks(data)]
    size = 512 if data[257:262] == b"ustar" else 12
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]
