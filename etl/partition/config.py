"""How examples are shared among splits and slices: the configuration of the stage `shard`."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from etl.errors import DataError, UsageError

SPLIT_NAMES = ("train", "validation", "test")

DEFAULT_SPLIT = "train=0.8,validation=0.1,test=0.1"
SOURCE_SPLIT = "source"
REST = "rest"
EXPONENT_CHARACTERS = 4  # of a fraction such as 1e-3: with more it has ten thousand digits and takes long to compute

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
                f"{text!r} is not a split; give e.g. {DEFAULT_SPLIT}, or train=rest,test=1000"
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
    try:
        if counted and value.isascii() and value.isdecimal():
            return int(value)
        too_long = len(value.lower().partition("e")[2]) > EXPONENT_CHARACTERS
        share = None if too_long else Fraction(value)
    except (ValueError, ZeroDivisionError):
        share = None
    if share is None or not 0 <= share <= 1:
        raise ValueError(
            f"{value!r} is not a fraction from 0 to 1 for the split {name!r}; give one such as 0.1 or 1/3,"
            " or whole numbers of images beside one 'rest'"
        )
    return share


def _check_request(text: str, request: SplitRequest) -> None:
    fractions = [share for share in request.values() if isinstance(share, Fraction)]
    rests = list(request.values()).count(None)
    total = sum(fractions)
    if rests > 1:
        raise ValueError(f"{text!r} gives the rest to more than one split")
    is_wrong = total > 1 if rests else total != 1
    if is_wrong:
        raise ValueError(f"the fractions of {text!r} are not parts of 1; their sum is {float(total):.9g}")
    if request.get("train", 0) == 0:
        raise ValueError(f"{text!r} leaves nothing to train on; give train a share above 0")


# fields of a `ShardConfig` that have the names of their options
OPTIONS = ("partition", "workers", "groups", "seed", "group_by", "drop_duplicates")


@dataclass(frozen=True)
class ShardConfig:
    """How examples go to splits and slices.

    ``split`` is None if the source gave the splits; ``splits_from`` the SHA-256 of the manifest whose splits are
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
        if self.workers % self.groups:
            raise UsageError(
                f"--workers {self.workers} cannot be cut into --groups {self.groups}; give a multiple of the groups"
            )
        if self.group_by is not None and self.split is None:
            raise UsageError(f"--group-by {self.group_by} and --split source contradict each other; give one of them")

    @property
    def is_stratified(self) -> bool:
        """True if the slices have equal shares of each class."""
        return self.partition == "stratified"

    def fractions(self, total: int) -> Fractions:
        """The fractions of ``total`` examples that ``split``, which is not None, asks for; they add up to 1.

        Raises DataError if there are not as many examples as it counts.
        """
        assert self.split is not None
        fractions = {
            name: share if isinstance(share, Fraction) else Fraction(share, max(total, 1))
            for name, share in self.split.items()
            if share is not None
        }
        left = 1 - sum(fractions.values(), Fraction(0))
        if left < 0:
            raise DataError(f"--split asks for more examples than there are ({total}); give smaller numbers")
        return {name: fractions.get(name, left) for name in self.split}

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it: fractions as exact text, or 'source'."""
        if self.split is None:
            return {**vars(self), "split": SOURCE_SPLIT}
        shares = {name: REST if share is None else share for name, share in self.split.items()}
        split = {name: str(share) if isinstance(share, Fraction) else share for name, share in shares.items()}
        return {**vars(self), "split": split}

    def option_values(self) -> dict[str, Any]:
        """The option values that give this configuration, without --splits-from and --remove."""
        split = SOURCE_SPLIT if self.split is None else self.split
        return {name: getattr(self, name) for name in OPTIONS} | {"split": split, "slices": self.slices["train"]}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
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

    Raises UsageError if a split would have more slices than examples.
    """
    total = sum(counts.values())
    train = counts["train"]
    wanted = slices or -(-total_bytes * train // (total * slice_bytes))
    train_slices = -(-wanted // workers) * workers
    if train_slices > train:
        raise UsageError(
            f"{train_slices} slices for {train} training examples; give"
            f" {'fewer --slices' if slices else 'a larger --slice-size'} (or fewer --workers, now {workers})"
        )
    others = {
        name: min(count, max(1, round(train_slices * count / train)))
        for name, count in counts.items()
        if name != "train"
    }
    return {"train": train_slices, **others}
