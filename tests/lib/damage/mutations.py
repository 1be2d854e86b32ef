"""Seeded damage to files, by accident or on purpose; a mutation follows from its number alone."""

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.lib.pictures.jpeg import segments
from tests.lib.pictures.png import SIGNATURE, chunks

_EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_LONGEST_RUN = 64
_MOST_STEPS = 3


@dataclass(frozen=True)
class Mutation:
    """A damaged file: which it was, and what was done to it."""

    number: int
    origin: str
    steps: tuple[str, ...]
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"mutation {self.number} of {self.origin} ({', '.join(self.steps)})"


def mutate(number: int, files: Mapping[str, bytes]) -> Mutation:
    """The mutation of this number of one of these files; another may lend it a part."""
    chance = random.Random(number)
    names = list(files)
    origin = names[chance.randrange(len(names))]
    lender = files[names[chance.randrange(len(names))]]
    data, steps = files[origin], []
    for _ in range(chance.randint(1, _MOST_STEPS)):
        step = chance.choice(_STEPS)
        data = step(data, lender, chance)
        steps.append(step.__name__)
    return Mutation(number, origin, tuple(steps), data)


Step = Callable[[bytes, bytes, random.Random], bytes]


def _place(data: bytes, chance: random.Random) -> int:
    """Somewhere in a file; half of the times in its first 100 bytes, where most headers are."""
    size = len(data) if chance.random() < 0.5 else min(len(data), 100)
    return chance.randrange(size + 1)


def flip_bits(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64)) if data else 0):
        changed[min(_place(data, chance), len(data) - 1)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """A run of other bytes: zeros, ones, noise, or what stands elsewhere."""
    size, start = chance.randint(1, _LONGEST_RUN), _place(data, chance)
    elsewhere = _place(lender, chance)
    runs = (bytes(size), b"\xff" * size, chance.randbytes(size), lender[elsewhere : elsewhere + size])
    run = chance.choice(runs)
    return data[:start] + run + data[start + len(run) :]


def truncate(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def insert_or_cut(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    start, size = _place(data, chance), chance.randint(1, _LONGEST_RUN)
    return data[:start] + (chance.randbytes(size) + data[start:] if chance.random() < 0.5 else data[start + size :])


def splice(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """The header of one file, the body of another."""
    return data[: _place(data, chance)] + lender[_place(lender, chance) :]


def set_size(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """A number that might be a size becomes an extreme one, or one more or less."""
    width = chance.choice((1, 2, 4))
    order: Literal["big", "little"] = "big" if chance.random() < 0.5 else "little"
    start = _place(data, chance)
    known = int.from_bytes(data[start : start + width], order)
    value = chance.choice((*_EXTREMES, known + 1, known - 1, known * 2)) % (1 << 8 * width)
    return data[:start] + value.to_bytes(width, order) + data[start + width :]


def damage_part(data: bytes, lender: bytes, chance: random.Random) -> bytes:
    """Damage, drop or repeat a part of the format; a chunk of PNG gets the CRC that fits: its content is believed."""
    parts = _parts_of(data)
    which = chance.randrange(1, len(parts)) if len(parts) > 1 else 0
    part = parts[which]
    if chance.random() < 0.3:
        parts[which] = part * chance.choice((0, 2, 2, 100))
    elif data.startswith(SIGNATURE) and len(part) > 12:
        body = chance.choice((flip_bits, overwrite, set_size))(part[8:-4], lender, chance)[: len(part) - 12]
        parts[which] = part[:8] + body + zlib.crc32(part[4:8] + body).to_bytes(4, "big")
    else:
        parts[which] = chance.choice((flip_bits, overwrite, set_size, insert_or_cut))(part, lender, chance)
    return b"".join(parts)


def _parts_of(data: bytes) -> list[bytes]:
    """The segments of a JPEG, the chunks of a PNG, the blocks of a tar, or else pieces as long as an entry of TIFF."""
    if data.startswith(b"\xff\xd8"):
        return segments(data)
    if data.startswith(SIGNATURE):
        return [SIGNATURE, *chunks(data)]
    size = 512 if data[257:262] == b"ustar" else 12
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]


_STEPS: tuple[Step, ...] = (flip_bits, overwrite, truncate, insert_or_cut, splice, set_size, damage_part, damage_part)
