"""What an image may take at most. More makes it a reject, before a pixel is decoded where the header tells it."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from etl.errors import UsageError
from etl.images.result import Reason, Reject

LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES = 64 << 20, 1 << 50
# as measured: of what Pillow decodes its 4 and our 3, and what resizing takes; WebP, AVIF and JPEG 2000 take 20
_MEMORY_OF_A_PIXEL, _LEAST_DEFAULT_MEMORY_BYTES = 8, 800_000_000
# least and most of those with bounds of their own: what timers and limits of processes can take
_BOUNDS = {"seconds": (0.001, 86_400.0), "memory_bytes": (LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES)}
FLAGS = {
    "pixels": "--max-pixels",
    "size_bytes": "--max-bytes",
    "frames": "--max-frames",
    "aspect": "--max-aspect",
    "least_side": "--min-side",
    "seconds": "--max-seconds",
    "memory_bytes": "--max-memory",
}


@dataclass(frozen=True)
class Limits:
    """Bounds for one source image.

    ``pixels`` and ``least_side`` are of its first frame, ``aspect`` is the longer side by the shorter. ``seconds`` of
    processor time and ``memory_bytes``, what decoding allocates, are held by `etl.images.sandbox`.
    """

    pixels: int = 100_000_000
    size_bytes: int = 256_000_000
    frames: int = 10_000
    aspect: float = 200.0
    least_side: int = 1
    seconds: float = 10.0
    memory_bytes: int = 1_056_000_000

    def __post_init__(self) -> None:
        for name, flag in FLAGS.items():
            value, (least, most) = getattr(self, name), _BOUNDS.get(name, (1, sys.maxsize))
            if not least <= value <= most:
                raise UsageError(f"{flag} {value} is out of range; give {least} to {most}")

    @staticmethod
    def default_memory(pixels: int, size_bytes: int) -> int:
        """Memory that suffices to decode most files of so many pixels and bytes."""
        enough = max(_LEAST_DEFAULT_MEMORY_BYTES, _MEMORY_OF_A_PIXEL * pixels + size_bytes)
        return min(enough, MOST_MEMORY_BYTES)

    def refuse_less_than(self, known: Self) -> None:
        """Raise UsageError where an image that ``known`` allows may be too much for these."""
        for name, flag in FLAGS.items():
            ours, theirs = getattr(self, name), getattr(known, name)
            if ours > theirs if name == "least_side" else ours < theirs:
                raise UsageError(f"{flag} {ours} is stricter than the {theirs} that the images were normalised with")

    def check_bytes(self, size_bytes: int) -> Reject | None:
        """Why a file of this size is not looked at."""
        if size_bytes > self.size_bytes:
            return Reject(Reason.TOO_MANY_BYTES, f"{size_bytes} bytes, at most {self.size_bytes} are allowed")
        return None

    def check(self, width: int, height: int, frames: int) -> Reject | None:
        """Why an image with this header is not decoded."""
        size, short, long = f"{width}x{height}", min(width, height), max(width, height)
        if width * height > self.pixels:
            return Reject(Reason.TOO_MANY_PIXELS, f"{size}, at most {self.pixels} pixels are allowed")
        if frames > self.frames:
            return Reject(Reason.TOO_MANY_FRAMES, f"{frames} frames or more, at most {self.frames} are allowed")
        if short < self.least_side:
            return Reject(Reason.TOO_SMALL, f"{size}, sides of at least {self.least_side} are asked for")
        if long > self.aspect * short:
            return Reject(Reason.BAD_ASPECT, f"{size}, an aspect of at most {self.aspect:g} is allowed")
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, limits: Mapping[str, Any]) -> Self:
        return cls(**limits)
