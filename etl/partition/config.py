"""How examples are shared among splits and slices: the configuration of the stage `shard`."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from etl.errors import DataError, UsageError

SPLIT_NAMES = ("train", "validation", "test")

DEFAULT_SPLIT = "train=0.8,validation=0.1,test=0.1"
SOURCE_SPLIT = "source"
REST = "rest"
EXPONENT_CHARACTERS = 4  # of a fraction such as 1e-3: with more it has ten thousand digits and takes long to compute

Fractions = dict[str, Fraction]

# What is asked of each split: a fraction of the examples as exact text, a number of them, or REST, what the others
# leave; or SOURCE_SPLIT, if the source gave the splits.
SplitRequest = dict[str, str | int] | str


def parse_split(text: str) -> SplitRequest:
    """``'train=0.8,test=0.2'``, ``'train=rest,test=1000'`` or ``'source'``. Raises ValueError."""
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
    shares = {name: _parse_share(name, value, counted) for name, value in words.items()}
    _check_shares(text, shares)
    in_order = {name: shares[name] for name in SPLIT_NAMES if name in shares and shares[name] != 0}
    return {name: str(share) if isinstance(share, Fraction) else share for name, share in in_order.items()}


def _parse_share(name: str, value: str, counted: bool) -> Fraction | int | str:
    if value == REST:
        return REST
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


def _check_shares(text: str, shares: Mapping[str, Fraction | int | str]) -> None:
    fractions = [share for share in shares.values() if isinstance(share, Fraction)]
    rests = list(shares.values()).count(REST)
    total = sum(fractions)
    if rests > 1:
        raise ValueError(f"{text!r} gives the rest to more than one split")
    is_wrong = total > 1 if rests else total != 1
    if is_wrong:
        raise ValueError(f"the fractions of {text!r} are not parts of 1; their sum is {float(total):.9g}")
    if shares.get("train", 0) == 0:
        raise ValueError(f"{text!r} leaves nothing to train on; give train a share above 0")


def _is_exact(text: str) -> bool:
    """True if a text, perhaps of a manifest that was edited, is a fraction in lowest terms."""
    try:
        return str(Fraction(text)) == text
    except (ValueError, ZeroDivisionError):
        return False


# fields of a `ShardConfig` that have the names of their options
OPTIONS = ("partition", "workers", "groups", "seed", "group_by", "drop_duplicates", "split")


@dataclass(frozen=True)
class ShardConfig:
    """How examples go to splits and slices, as the manifest has it.

    ``splits_from`` is the SHA-256 of the manifest whose splits are kept, ``removed_keys`` that of the list of keys to
    leave out. Raises UsageError if values contradict each other, DataError for an inexact share.
    """

    partition: str
    split: SplitRequest
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
        if self.group_by is not None and self.split == SOURCE_SPLIT:
            raise UsageError(f"--group-by {self.group_by} and --split source contradict each other; give one of them")
        for share in () if isinstance(self.split, str) else self.split.values():
            if isinstance(share, str) and share != REST and not _is_exact(share):
                raise DataError(f"the share {share!r} of a split is not one that shard writes")

    @property
    def is_stratified(self) -> bool:
        """True if the slices have equal shares of each class."""
        return self.partition == "stratified"

    def fractions(self, total: int) -> Fractions:
        """The fractions of ``total`` examples that ``split``, which is not the source's, asks for; they add up to 1.

        Raises DataError if there are not as many examples as it counts.
        """
        assert not isinstance(self.split, str)
        fractions = {
            name: Fraction(share) if isinstance(share, str) else Fraction(share, max(total, 1))
            for name, share in self.split.items()
            if share != REST
        }
        left = 1 - sum(fractions.values(), Fraction(0))
        if left < 0:
            raise DataError(f"--split asks for more examples than there are ({total}); give smaller numbers")
        return {name: fractions.get(name, left) for name in self.split}

    def option_values(self) -> dict[str, Any]:
        """The option values that give this configuration, without --splits-from and --remove."""
        return {name: getattr(self, name) for name in OPTIONS} | {"slices": self.slices["train"]}


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
