"""Configuration of the stage `normalize`, as in its marker: what determines the bytes of images, and limits."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from etl.errors import UsageError
from etl.images.geometry import CROP, PAD
from etl.images.result import Reason, Reject

DEFAULT_SIDE = 224
JPEG, PNG, RAW = "jpeg", "png", "raw"
FLOATS = {"float16": "f2", "float32": "f4"}
FORMATS = (JPEG, PNG, RAW, *FLOATS)
COLORS = ("rgb", "gray")
SUBSAMPLINGS = (420, 444)
MAX_FLOATS = {"float16": 65_504.0, "float32": (2 - 2**-23) * 2.0**127}  # IEEE 754, binary16 and binary32
WHITE = (255, 255, 255)
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 64 << 20, 1 << 50
# as measured: of what Pillow decodes its 4 and our 3, and what resizing takes; WebP, AVIF and JPEG 2000 take 20
_MEMORY_OF_A_PIXEL, _MIN_DEFAULT_MEMORY_BYTES = 8, 800_000_000
# minimum and maximum of those with other bounds: what timers and limits of processes accept
_BOUNDS = {"seconds": (0.001, 86_400.0), "memory_bytes": (MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)}
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
    processor time and ``memory_bytes``, what decoding allocates, are enforced by `etl.images.sandbox`. Raises
    UsageError for one that is out of range.
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

    @classmethod
    def resolve(cls, values: Mapping[str, Any]) -> Self:
        """Make them from option values; see `default_memory`."""
        limits = {name: values[flag.removeprefix("--").replace("-", "_")] for name, flag in FLAGS.items()}
        memory_bytes = limits["memory_bytes"] or cls.default_memory(limits["pixels"], limits["size_bytes"])
        return cls(**limits | {"memory_bytes": memory_bytes})

    @staticmethod
    def default_memory(pixels: int, size_bytes: int) -> int:
        """Return the memory that suffices to decode most files of so many pixels and bytes."""
        enough = max(_MIN_DEFAULT_MEMORY_BYTES, _MEMORY_OF_A_PIXEL * pixels + size_bytes)
        return min(enough, MAX_MEMORY_BYTES)

    def refuse_less_than(self, known: Self) -> None:
        """Raise UsageError if these limits may reject an image that ``known`` allows."""
        for name, flag in FLAGS.items():
            ours, theirs = getattr(self, name), getattr(known, name)
            if ours > theirs if name == "least_side" else ours < theirs:
                raise UsageError(f"{flag} {ours} is stricter than the {theirs} that the images were normalised with")

    def check_bytes(self, size_bytes: int) -> Reject | None:
        """Reject a file that is too large to be read."""
        if size_bytes > self.size_bytes:
            return Reject(Reason.TOO_MANY_BYTES, f"{size_bytes} bytes, at most {self.size_bytes} are allowed")
        return None

    def check(self, width: int, height: int, frames: int) -> Reject | None:
        """Reject an image by its size and number of frames before it is decoded."""
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


@dataclass(frozen=True)
class NormalizeConfig:
    """What every normalised image looks like, and which are rejected.

    ``fit`` is one of `etl.images.geometry.FITS`. ``background`` (red, green, blue) is what padding and transparency
    show. ``subtract`` and ``divide_by``, one number or one for each channel, make floats of pixels.
    """

    height: int
    width: int
    fit: str = CROP
    color: str = "rgb"
    format: str = JPEG
    quality: int = 95
    subsampling: int = 420
    background: tuple[int, int, int] = WHITE
    subtract: tuple[float, ...] = (0.0,)
    divide_by: tuple[float, ...] = (255.0,)
    only_shrink: bool = False
    pass_through: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.pass_through and self.format not in (JPEG, PNG):
            raise UsageError(f"--pass-through with --format {self.format}: give jpeg or png, which files can be")
        for flag, numbers in (("--subtract", self.subtract), ("--divide-by", self.divide_by)):
            if len(numbers) not in (1, self.channels):
                raise UsageError(f"{flag} has {len(numbers)} numbers; give one, or one for each of {self.channels}")
        if self.format in FLOATS:
            self._check_floats()
        kinds = {"quality": (JPEG,), "subsampling": (JPEG,), "subtract": FLOATS, "divide_by": FLOATS}
        for name, formats in kinds.items():
            if self.format not in formats and getattr(self, name) != getattr(type(self), name):
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} has no effect with --format {self.format}; leave it out")

    def _check_floats(self) -> None:
        largest = MAX_FLOATS[self.format]
        for subtract, divide_by in zip(*self.scaling, strict=True):
            if divide_by == 0 or not max(abs(subtract), abs(255 - subtract)) / abs(divide_by) <= largest:
                raise UsageError(
                    f"--subtract {subtract:g} --divide-by {divide_by:g} give no {self.format} of some pixels;"
                    " give other numbers"
                )

    @property
    def channels(self) -> int:
        """Return 3 for colour, 1 for gray."""
        return 3 if self.color == "rgb" else 1

    @property
    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """``subtract`` and ``divide_by``, with a number for each channel."""
        return _by_channel(self.subtract, self.channels), _by_channel(self.divide_by, self.channels)

    @property
    def sizes_differ(self) -> bool:
        """True if images may have different sizes."""
        return self.fit not in (CROP, "exact", PAD) or (self.only_shrink and self.fit != PAD)

    def to_json(self) -> dict[str, Any]:
        """Return it as in the marker: quality only for JPEG, numbers of scaling only for floats."""
        jpeg = {"quality": self.quality, "subsampling": self.subsampling} if self.format == JPEG else {}
        floats = {"subtract": self.scaling[0], "divide_by": self.scaling[1]} if self.format in FLOATS else {}
        return {
            "size": [self.height, self.width],
            "fit": self.fit,
            "only_shrink": self.only_shrink,
            "color": self.color,
            "background": list(self.background),
            "format": self.format,
            **jpeg,
            **{name: list(numbers) for name, numbers in floats.items()},
            "pass_through": self.pass_through,
            "limits": asdict(self.limits),
        }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; missing fields have their defaults."""
        known = {name: value for name, value in config.items() if name not in ("size", "limits")}
        for name in ("background", "subtract", "divide_by"):
            if name in known:
                known[name] = tuple(known[name])
        height, width = config["size"]
        return cls(height, width, **{**known, "limits": Limits(**config.get("limits", {}))})

    @classmethod
    def resolve(cls, values: Mapping[str, Any], pixels: Mapping[str, int] | None) -> Self:
        """Make it from option values, and the source's own ``pixels`` (height, width, channels) if it states them."""
        own_size = (pixels["height"], pixels["width"]) if pixels else (DEFAULT_SIDE, DEFAULT_SIDE)
        own_color = "gray" if pixels and pixels["channels"] == 1 else "rgb"
        height, width = values["size"] or own_size
        as_given = ("fit", "quality", "background", "subtract", "divide_by", "only_shrink", "pass_through")
        return cls(
            height,
            width,
            color=values["color"] or own_color,
            format=values["format"] or (PNG if pixels else JPEG),
            subsampling=int(values["subsampling"]),
            limits=Limits.resolve(values),
            **{name: values[name] for name in as_given},
        )


def _by_channel(numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return tuple(map(float, numbers)) * (channels if len(numbers) == 1 else 1)
