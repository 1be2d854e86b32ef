"""What decides the bytes of each stage: frozen, checked, and written into its marker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self

from etl.errors import DataError, UsageError
from etl.images.geometry import CROP, FITS, PAD
from etl.images.limits import Limits

SPLIT_NAMES = ("train", "validation", "test")
DEFAULT_SPLIT = "train=0.8,validation=0.1,test=0.1"
SOURCE_SPLIT = "source"
REST = "rest"
DEFAULT_SIDE = 224
JPEG, PNG, RAW = "jpeg", "png", "raw"
FLOATS = {"float16": "f2", "float32": "f4"}
FORMATS = (JPEG, PNG, RAW, *FLOATS)
COLORS = ("rgb", "gray")
SUBSAMPLINGS = (420, 444)
LARGEST_FLOATS = {"float16": 65_504.0, "float32": (2 - 2**-23) * 2.0**127}  # IEEE 754, binary16 and binary32
WHITE = (255, 255, 255)

Fractions = dict[str, Fraction]
# What is asked of each split: a fraction of the examples, a number of them, or (None) what the others leave.
SplitRequest = dict[str, Fraction | int | None]


def parse_split(text: str) -> SplitRequest | str:
    """``'train=0.8,test=0.2'``, ``'train=rest,test=1000'`` by split name, or ``'source'``. Raises ValueError."""
    if text.strip() == SOURCE_SPLIT:
        return SOURCE_SPLIT
    words: dict[str, str] = {}
    for item in text.split(","):
        name, separator, value = (word.strip() for word in item.partition("="))
        if not separator or name not in SPLIT_NAMES or name in words:
            raise ValueError(
                f"{text!r} is no split; give e.g. {DEFAULT_SPLIT}, or train=rest,test=1000"
                f" (names: {', '.join(SPLIT_NAMES)}), or 'source'"
            )
        words[name] = value
    counted = REST in words.values()
    request = {name: _parse_share(name, value, counted) for name, value in words.items()}
    _check_request(text, request)
    return {name: request[name] for name in SPLIT_NAMES if name in request and request[name] != 0}


def _parse_share(name: str, value: str, counted: bool) -> Fraction | int | None:
    if value == REST:
        return None
    if counted and value.isdigit():
        return int(value)
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is no fraction for the split {name!r}") from None


def _check_request(text: str, request: SplitRequest) -> None:
    fractions = [share for share in request.values() if isinstance(share, Fraction)]
    rests = list(request.values()).count(None)
    total = sum(fractions)
    if rests > 1:
        raise ValueError(f"{text!r} gives the rest to more than one split")
    if any(fraction < 0 for fraction in fractions) or (total > 1 if rests else total != 1):
        raise ValueError(f"the fractions of {text!r} are not parts of 1; their sum is {float(total):g}")
    if request.get("train", 0) == 0:
        raise ValueError(f"{text!r} leaves nothing to train on; give train a share above 0")


def resolve_fractions(request: SplitRequest, total: int) -> Fractions:
    """The fractions of ``total`` examples that ``request`` asks for; they add up to 1.

    Raises DataError where there are not as many examples as it counts.
    """
    fractions = {
        name: share if isinstance(share, Fraction) else Fraction(share, max(total, 1))
        for name, share in request.items()
        if share is not None
    }
    left = 1 - sum(fractions.values(), Fraction(0))
    if left < 0:
        raise DataError(f"--split asks for more examples than there are ({total}); give smaller numbers")
    return {name: fractions.get(name, left) for name in request}


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
        for flag, value, known in (
            ("--fit", self.fit, FITS),
            ("--color", self.color, COLORS),
            ("--format", self.format, FORMATS),
            ("--subsampling", self.subsampling, SUBSAMPLINGS),
        ):
            if value not in known:
                raise UsageError(f"{flag} {value!r}: give one of {', '.join(map(str, known))}")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"--quality {self.quality} is out of range; JPEG quality is from 1 to 100")
        if self.pass_through and self.format not in (JPEG, PNG):
            raise UsageError(f"--pass-through with --format {self.format}: give jpeg or png, which files can be")
        for flag, numbers in (("--subtract", self.subtract), ("--divide-by", self.divide_by)):
            if len(numbers) not in (1, self.channels):
                raise UsageError(f"{flag} has {len(numbers)} numbers; give one, or one for each of {self.channels}")
        if self.format in FLOATS:
            self._check_floats()

    def _check_floats(self) -> None:
        largest = LARGEST_FLOATS[self.format]
        for subtract, divide_by in zip(*self.scaling, strict=True):
            if divide_by == 0 or not max(abs(subtract), abs(255 - subtract)) / abs(divide_by) <= largest:
                raise UsageError(
                    f"--subtract {subtract:g} --divide-by {divide_by:g} give no {self.format} of some pixels;"
                    " give other numbers"
                )

    @property
    def channels(self) -> int:
        return 3 if self.color == "rgb" else 1

    @property
    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """``subtract`` and ``divide_by``, with a number for each channel."""
        return _by_channel(self.subtract, self.channels), _by_channel(self.divide_by, self.channels)

    @property
    def sizes_differ(self) -> bool:
        """Whether images may come to sizes of their own."""
        return self.fit not in (CROP, "exact", PAD) or (self.only_shrink and self.fit != PAD)

    def to_json(self) -> dict[str, Any]:
        """As the marker has it: without a quality where there is no JPEG, and without numbers where no floats are."""
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
            "limits": self.limits.to_json(),
        }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; what is not told is the default."""
        known = {name: value for name, value in config.items() if name not in ("size", "limits")}
        for name in ("background", "subtract", "divide_by"):
            if name in known:
                known[name] = tuple(known[name])
        height, width = config["size"]
        return cls(height, width, **{**known, "limits": Limits.from_json(config.get("limits", {}))})

    @classmethod
    def resolve(cls, values: Mapping[str, Any], pixels: Mapping[str, int] | None) -> Self:
        """From option values, with the source's own ``pixels`` (height, width, channels) where it states them."""
        own_size = (pixels["height"], pixels["width"]) if pixels else (DEFAULT_SIDE, DEFAULT_SIDE)
        own_color = "gray" if pixels and pixels["channels"] == 1 else "rgb"
        limits = Limits(
            pixels=values["max_pixels"],
            size_bytes=values["max_bytes"],
            frames=values["max_frames"],
            aspect=values["max_aspect"],
            least_side=values["min_side"],
            seconds=values["max_seconds"],
            memory_bytes=values["max_memory"],
        )
        height, width = values["size"] or own_size
        return cls(
            height,
            width,
            fit=values["fit"],
            color=values["color"] or own_color,
            format=values["format"] or (PNG if pixels else JPEG),
            quality=values["quality"],
            subsampling=int(values["subsampling"]),
            background=values["background"],
            subtract=values["subtract"],
            divide_by=values["divide_by"],
            only_shrink=bool(values["only_shrink"]),
            pass_through=bool(values["pass_through"]),
            limits=limits,
        )


def _by_channel(numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return tuple(map(float, numbers)) * (channels if len(numbers) == 1 else 1)


@dataclass(frozen=True)
class ShardConfig:
    """How examples are dealt to splits and slices.

    ``split`` is None where the source gave the splits; ``splits_from`` the SHA-256 of the manifest whose splits are
    kept, ``removed_keys`` that of the list of keys to leave out.
    """

    partition: str
    split: SplitRequest | None
    slices: dict[str, int]
    workers: int = 1
    groups: int = 1
    seed: int = 0
    group_by: str | None = None
    drop_duplicates: bool = False
    splits_from: str | None = None
    removed_keys: str | None = None

    def __post_init__(self) -> None:
        if self.partition not in ("stratified", "uniform"):
            raise UsageError(f"--partition {self.partition!r}: give stratified or uniform")
        if self.workers % self.groups:
            raise UsageError(
                f"--workers {self.workers} cannot be cut into --groups {self.groups}; give a multiple of the groups"
            )
        if self.group_by is not None and self.split is None:
            raise UsageError(f"--group-by {self.group_by} and --split source contradict each other; give one of them")

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it: fractions as exact text, or 'source'."""
        if self.split is None:
            return {**vars(self), "split": SOURCE_SPLIT}
        shares = {name: REST if share is None else share for name, share in self.split.items()}
        split = {name: str(share) if isinstance(share, Fraction) else share for name, share in shares.items()}
        return {**vars(self), "split": split}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        split = config["split"]
        request: SplitRequest | None = None
        if split != SOURCE_SPLIT:
            request = {
                name: None if share == REST else share if isinstance(share, int) else Fraction(share)
                for name, share in split.items()
            }
        return cls(**{**config, "split": request})


def resolve_slices(
    counts: Mapping[str, int], total_bytes: int, workers: int, slices: int | None, slice_bytes: int
) -> dict[str, int]:
    """How many slices each split gets.

    The training split gets ``slices``, or as many as make about ``slice_bytes`` each, rounded up to a multiple of
    ``workers``; the others in proportion to their examples, at least one.

    Raises UsageError where a split would have more slices than examples.
    """
    total = sum(counts.values())
    train = counts["train"]
    wanted = slices or -(-total_bytes * train // (total * slice_bytes))
    train_slices = -(-wanted // workers) * workers
    if train_slices > train:
        raise UsageError(
            f"{train_slices} slices for {train} training examples; give fewer --slices (and --workers, now {workers})"
        )
    others = {
        name: min(count, max(1, round(train_slices * count / train)))
        for name, count in counts.items()
        if name != "train"
    }
    return {"train": train_slices, **others}
