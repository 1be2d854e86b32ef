"""The result of normalising one image: `NormalizedImage`, or a `Reject` with its reason. A value, not an exception."""

import enum
from dataclasses import dataclass

from etl.errors import printable


@dataclass(frozen=True)
class NormalizedImage:
    """A normalised image: ``encoded`` as configured; exact sums of its pixels and of their squares by channel.

    ``height`` and ``width`` are its own, those of the source are what its file states, in pixels.
    """

    encoded: bytes
    height: int
    width: int
    sums: list[int]
    squares: list[int]
    source_format: str
    source_width: int
    source_height: int


MAX_DETAIL_CHARS = 200


class Reason(enum.StrEnum):
    """Why an image was rejected: a closed list."""

    EMPTY = "empty"
    NOT_AN_IMAGE = "not-an-image"
    UNSUPPORTED = "unsupported"
    TRUNCATED = "truncated"
    BROKEN = "broken"
    TOO_MANY_PIXELS = "too-many-pixels"
    TOO_MANY_BYTES = "too-many-bytes"
    TOO_MANY_FRAMES = "too-many-frames"
    BAD_ASPECT = "bad-aspect"
    TOO_SMALL = "too-small"
    TOO_SLOW = "too-slow"
    OUT_OF_MEMORY = "out-of-memory"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Reject:
    """An image that cannot be used, and why; ``detail`` is a printable line of up to `MAX_DETAIL_CHARS` characters."""

    reason: Reason
    detail: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", printable(" ".join(self.detail.split()))[:MAX_DETAIL_CHARS])
