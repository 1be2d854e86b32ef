"""Whether every good image is dealt exactly once: how a sorted run of lines is judged.

Every example of the slices and every row of the parts is sent under its key, and the examples under their content (the
SHA-256 of the source image) too. Sorted, all that is known of one key, or of one content, comes together, and is judged
while it streams by: memory does not grow with the examples.

The slices whose splits were kept are sent too, where they are there: no key and no content may have changed its split.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby

import pyarrow as pa

from etl.partition.config import SPLIT_NAMES
from etl.partition.pixel_statistics import PixelSums
from etl.verify.findings import (
    CONTENT_MOVED,
    DEPARTED,
    DIFFERENT,
    DOUBLED,
    FORGOTTEN,
    MISSING,
    MOVED,
    SAME_CONTENT,
    UNKNOWN,
    Duplicates,
    KeyFindings,
)
from etl.verify.lines import ABOUT_KEY, DEALT, EARLIER, GONE, GOOD, Line

# One row per example whose content another key has too, as a judge finds it; ``number`` is its slice's.
FOUND = pa.schema(
    [
        ("sha256", pa.binary(32)),
        ("key", pa.string()),
        ("label", pa.int32()),
        ("split", pa.string()),
        ("number", pa.int64()),
    ]
)

# One row per group of images (see --group-by) that a bucket has images of, by name; ``splits`` has a bit for each of
# SPLIT_NAMES.
GROUPS = pa.schema([("group", pa.string()), ("splits", pa.int8())])


@dataclass
class Pixels:
    """Exact sums over training images: pixels of a channel, then sums and sums of squares by channel."""

    total: list[int] = field(default_factory=list)

    def add(self, told: str) -> None:
        """Add what one image, or a bucket of them, tells; empty where that is nothing."""
        if not told:
            return
        more = list(map(int, told.split()))
        self.total = [have + new for have, new in zip(self.total or [0] * len(more), more, strict=True)]

    def sums(self) -> PixelSums:
        channels = (len(self.total) - 1) // 2
        if not self.total:
            return PixelSums()
        return PixelSums(self.total[0], self.total[1 : channels + 1], self.total[channels + 1 :])


@dataclass
class Judge:
    """Judges sorted lines. ``name_slice`` gives the name of a slice by its number, and is only asked where one is told.

    ``dropped``: duplicates were left out, but for the first of each content; with ``any_of_equals`` but for one of them
    (where splits were kept, one that was known comes before the first). ``by_source``: an example's split is the one
    that its source gave. ``grouped``: each image has a group. ``knows_earlier``: what earlier slices had is told of
    (where no splits were kept: there was nothing). ``lists_removed``: a list removed keys this time.
    """

    name_slice: Callable[[int], str]
    dropped: bool = False
    any_of_equals: bool = False
    by_source: bool = False
    grouped: bool = False
    knows_earlier: bool = False
    lists_removed: bool = True
    findings: KeyFindings = field(default_factory=KeyFindings)
    duplicates: Duplicates = field(default_factory=Duplicates)
    pixels: Pixels = field(default_factory=Pixels)
    lines: int = 0
    left_out_removed: int = 0
    left_out_duplicates: int = 0
    _groups: dict[str, int] = field(default_factory=dict)

    def judge(self, lines: Iterable[Line]) -> Iterator[dict[str, object]]:
        """Judge all lines of a bucket, sorted; gives the examples of contents that several keys have, rows of `FOUND`.

        What else is found stands in the attributes once all rows were taken.
        """
        for (about, name), group in groupby(self._counted(lines), key=lambda line: line[:2]):
            if about == ABOUT_KEY:
                self._judge_key(name, group)
            else:
                yield from self._judge_content(name, group)

    def to_json(self) -> dict[str, object]:
        """What was found, once all lines are judged."""
        return {
            "lines": self.lines,
            "keys": self.findings.to_json(),
            "duplicates": asdict(self.duplicates),
            "pixels": " ".join(map(str, self.pixels.total)),
            "left_out": {"removed_keys": self.left_out_removed, "duplicates": self.left_out_duplicates},
        }

    def groups(self) -> Iterator[dict[str, object]]:
        """Rows of `GROUPS`, once all lines are judged."""
        return ({"group": group, "splits": splits} for group, splits in sorted(self._groups.items()))

    def _counted(self, lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            self.lines += 1
            yield line

    def _judge_key(self, key: str, lines: Iterable[Line]) -> None:
        dealt, good, gone, earlier = list[Line](), list[Line](), list[Line](), list[Line]()
        kept = {DEALT: dealt, GOOD: good, GONE: gone, EARLIER: earlier}
        number = dict.fromkeys(kept, 0)
        for line in lines:
            number[line[2]] += 1
            kept[line[2]][1:] = [line[3:]]  # the first and the last: a key that comes a million times takes no more
        if len(dealt) > 1:
            self._tell_doubled(key, dealt, number[DEALT])
        if len(good) > 1:
            self._tell(DOUBLED, key, f"{key} is {number[GOOD]} good images: in {good[0][0]} and in {good[1][0]}")
        removed = any(told[0] == "1" for told in gone)
        if dealt and gone:
            why = "was removed by a list" if removed else "is told to have departed"
            self._tell(DEPARTED, key, f"{key} {why}, and is in {self._place(dealt[0])}")
        if self.knows_earlier and not number[DEALT] > 1:
            self._compare_earlier(key, dealt, gone, earlier)
        if dealt and not good:
            self._tell(UNKNOWN, key, f"{key} is in {self._place(dealt[0])}, and is no good image")
        elif dealt:
            self._compare(key, dealt[0], good[0])
        elif good and removed:
            self.left_out_removed += 1
        elif good and (int(good[0][6]) >= 0 if good[0][6] else not self.dropped):
            self._tell(MISSING, key, f"{key} of {good[0][0]} is good, and in no slice")

    def _tell_doubled(self, key: str, dealt: list[Line], number: int) -> None:
        splits = sorted({line[0] for line in dealt})
        where = " and in ".join(self._place(line) for line in dealt)
        what = f"in {len(splits)} splits" if len(splits) > 1 else f"dealt {number} times"
        self._tell(DOUBLED, key, f"{key} is {what}: in {where}")

    def _compare(self, key: str, dealt: Line, good: Line) -> None:
        split, number, label, record, content, source = dealt
        part, its_label, its_record, its_content, its_split, pixels, planned, group = good
        if label != its_label:
            self._tell(DIFFERENT, key, f"{key} has label {label} in {self._place(dealt)}, {its_label} in {part}")
        elif record != its_record:
            self._tell(DIFFERENT, key, f"{key} has other bytes in {self._place(dealt)} than in {part}")
        elif content and content != its_content:
            self._tell(DIFFERENT, key, f"{key} has another sha256 in examples.parquet than in {part}")
        elif source and source != part:
            self._tell(DIFFERENT, key, f"{key} is said to come from {source} in examples.parquet, and is in {part}")
        elif self.by_source and split != its_split:
            self._tell(DIFFERENT, key, f"{key} is in {split}, the source has it in {its_split or 'no split'}")
        elif planned and int(planned) != int(number):
            due = f"belongs to {self.name_slice(int(planned))}" if int(planned) >= 0 else "is left out"
            self._tell(DIFFERENT, key, f"{key} is in {self._place(dealt)}, by the configuration it {due}")
        elif self.grouped and not group:
            self._tell(DIFFERENT, key, f"{key} is in {self._place(dealt)}, and has no group")
        if split == "train":
            self.pixels.add(pixels)
        if group:
            self._groups[group[1:]] = self._groups.get(group[1:], 0) | 1 << SPLIT_NAMES.index(split)

    def _compare_earlier(self, key: str, dealt: list[Line], gone: list[Line], earlier: list[Line]) -> None:
        """Whether a key has the split that it had, or is remembered with it: `dealt` has one line at most."""
        before, content, removed = earlier[-1] if earlier else ("", "", "0")
        if dealt:
            split, its_content = dealt[0][0], dealt[0][4]
            if removed == "1":
                self._tell(FORGOTTEN, key, f"{key} was removed by a list earlier, and is in {self._place(dealt[0])}")
            elif before and split != before and content and content == its_content:
                self._tell(MOVED, key, f"{key} is in {self._place(dealt[0])}, and was in {before} before")
        elif earlier and not gone:
            self._tell(
                FORGOTTEN, key, f"{key} was in {before or 'no split'}; neither slices nor departed.parquet have it"
            )
        elif gone and (len(gone) > 1 or gone[0][1] != before):
            line = f"departed.parquet has {key} in {gone[-1][1] or 'no split'}, it was in {before or 'none'}"
            self._tell(FORGOTTEN, key, line)
        elif gone and (gone[0][0] < removed or (gone[0][0] != removed and not self.lists_removed)):
            self._tell(FORGOTTEN, key, f"{key} is not told to have been removed by a list as it was")
        elif gone and not earlier and gone[0][0] == "0":
            self._tell(FORGOTTEN, key, f"departed.parquet has {key}, which no earlier slices had")

    def _judge_content(self, content: str, lines: Iterable[Line]) -> Iterator[dict[str, object]]:
        """EARLIER lines come first; then DEALT ones, by key; then GOOD ones, by part and row."""
        before: Line | None = None
        earlier = set[str]()
        keys, splits, labels = 0, set[str](), set[str]()
        first_good: Line | None = None
        goods = 0
        for line in lines:
            if line[2] == GOOD:
                first_good = first_good or line[3:]
                goods += 1
                continue
            if line[2] == EARLIER:
                earlier.add(line[3])
                continue
            key, split, _, label = told = line[3:]
            if before is not None and before[0] == key:  # one key twice is told where keys are judged
                continue
            keys += 1
            if len(earlier) == 1 and split not in earlier:
                known = next(iter(earlier))
                line_told = f"{key} is in {self._place(told[1:])}; images of this content were in {known} before"
                self._tell(CONTENT_MOVED, key, line_told)
            splits.add(split)
            labels.add(label)
            if before is not None:
                yield from (_found(content, each) for each in ([before, told] if keys == 2 else [told]))
            before = told
        if keys > 1:
            self.duplicates += Duplicates(1, keys, len(splits) > 1, len(labels) > 1)
        if self.dropped:
            self._judge_first(before, keys, first_good, goods)

    def _judge_first(self, dealt: Line | None, keys: int, first_good: Line | None, goods: int) -> None:
        """Where duplicates were left out, of each content one good image is dealt, the first, and no other."""
        if first_good is None:  # what is dealt is no good image: told where keys are judged
            return
        self.left_out_duplicates += goods - 1
        first = first_good[2]
        if dealt is None:
            self._tell(MISSING, first, f"{first} is good, the first of its content, and in no slice")
        elif keys > 1 or (dealt[0] != first and not self.any_of_equals):
            line = f"{dealt[0]} is in {self._place(dealt[1:])}, though {first} has the same content and comes first"
            self._tell(SAME_CONTENT, dealt[0], line)

    def _place(self, told: Line) -> str:
        return self.name_slice(int(told[1]))

    def _tell(self, kind: str, key: str, line: str) -> None:
        self.findings.add(kind, key, line)


def _found(content: str, dealt: Line) -> dict[str, object]:
    key, split, number, label = dealt
    return {
        "sha256": bytes.fromhex(content),
        "key": key,
        "label": int(label),
        "split": split,
        "number": int(number),
    }
