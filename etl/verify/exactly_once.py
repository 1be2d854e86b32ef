"""Whether every good image is dealt exactly once: what is sent about each example, and how a sorted run is judged.

Every example of the slices and every row of the parts is sent under its key, and the examples under their content (the
SHA-256 of the source image) too. Sorted, all that is known of one key, or of one content, comes together, and is judged
while it streams by: memory does not grow with the examples.

A line is a tuple of texts: what it is about (`ABOUT_KEY`, `ABOUT_CONTENT`), the key or content, who says it (`DEALT`,
`GOOD`, `GONE`), and what is said.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby

import pyarrow as pa

from etl.verify.findings import DEPARTED, DIFFERENT, DOUBLED, MISSING, SAME_CONTENT, UNKNOWN, Duplicates, KeyFindings

Line = tuple[str, ...]

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

ABOUT_CONTENT, ABOUT_KEY = "c", "k"
DEALT, GOOD, GONE = "d", "g", "x"


def bucket_of(line: Line, buckets: int) -> int:
    """The bucket of a line: keys by a hash, contents by their leading digits, so that buckets in order are sorted."""
    about, name = line[:2]
    if about == ABOUT_CONTENT:
        return (int(name[:8], 16) * buckets) >> 32
    return zlib.crc32(name.encode()) % buckets


def dealt_lines(dealt: pa.Table, split: str, slice_number: int) -> Iterator[Line]:
    """What is sent about the examples of a slice (see `SliceCheck.dealt`): 2 lines each, 1 without a content."""
    where = (split, f"{slice_number:08d}")
    keys, labels, crcs = (dealt[name].to_pylist() for name in ("key", "label", "crc32c"))
    contents = dealt["sha256"].to_pylist() if "sha256" in dealt.column_names else [None] * len(keys)
    for key, label, crc, content in zip(keys, labels, crcs, contents, strict=True):
        told = content.hex() if content is not None else ""
        yield ABOUT_KEY, key, DEALT, *where, str(label), str(crc), told
        if told:
            yield ABOUT_CONTENT, told, DEALT, key, *where, str(label)


def good_lines(rows: pa.Table, part: str, number: int | None, removed: frozenset[str] = frozenset()) -> Iterator[Line]:
    """What is sent about the live rows of a part: 1 line each.

    Where duplicates were left out another one tells the content, but for ``removed`` keys: ``number`` is then the
    part's, by which the first of equal contents is known.
    """
    columns = ("key", "label", "crc32c", "sha256", "split", "width", "height", "sums", "squares")
    values = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    for row, (key, label, crc, sha256, split, width, height, sums, squares) in enumerate(values):
        content = sha256.hex()
        pixels = " ".join(map(str, (width * height, *sums, *squares)))
        yield ABOUT_KEY, key, GOOD, part, str(label), str(crc), content, split or "", pixels
        if number is not None and key not in removed:
            yield ABOUT_CONTENT, content, GOOD, f"{number:08d}", f"{row:08d}", key


def gone_lines(departed: pa.Table) -> Iterator[Line]:
    """What is sent about keys that earlier slices had: 1 line each."""
    for key, removed in zip(departed["key"].to_pylist(), departed["removed"].to_pylist(), strict=True):
        yield ABOUT_KEY, key, GONE, "1" if removed else "0"


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


@dataclass
class Judge:
    """Judges sorted lines. ``name_slice`` gives the name of a slice by its number, and is only asked where one is told.

    ``dropped``: duplicates were left out, but for the first of each content; with ``any_of_equals`` but for one of them
    (where splits were kept, one that was known comes before the first). ``by_source``: an example's split is the one
    that its source gave.
    """

    name_slice: Callable[[int], str]
    dropped: bool = False
    any_of_equals: bool = False
    by_source: bool = False
    findings: KeyFindings = field(default_factory=KeyFindings)
    duplicates: Duplicates = field(default_factory=Duplicates)
    pixels: Pixels = field(default_factory=Pixels)
    lines: int = 0
    left_out_removed: int = 0
    left_out_duplicates: int = 0

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

    def _counted(self, lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            self.lines += 1
            yield line

    def _judge_key(self, key: str, lines: Iterable[Line]) -> None:
        dealt, good, gone = list[Line](), list[Line](), list[Line]()
        kept = {DEALT: dealt, GOOD: good, GONE: gone}
        number = dict.fromkeys(kept, 0)
        for line in lines:
            number[line[2]] += 1
            kept[line[2]][1:] = [line[3:]]  # the first and the last: a key that comes a million times takes no more
        if len(dealt) > 1:
            self._tell_doubled(key, dealt, number[DEALT])
        if len(good) > 1:
            self._tell(DOUBLED, key, f"{key} is {number[GOOD]} good images: in {good[0][0]} and in {good[1][0]}")
        removed = any(told == ("1",) for told in gone)
        if dealt and gone:
            why = "was removed by a list" if removed else "is told to have departed"
            self._tell(DEPARTED, key, f"{key} {why}, and is in {self._place(dealt[0])}")
        if dealt and not good:
            self._tell(UNKNOWN, key, f"{key} is in {self._place(dealt[0])}, and is no good image")
        elif dealt:
            self._compare(key, dealt[0], good[0])
        elif good and removed:
            self.left_out_removed += 1
        elif good and not self.dropped:
            self._tell(MISSING, key, f"{key} of {good[0][0]} is good, and in no slice")

    def _tell_doubled(self, key: str, dealt: list[Line], number: int) -> None:
        splits = sorted({line[0] for line in dealt})
        where = " and in ".join(self._place(line) for line in dealt)
        what = f"in {len(splits)} splits" if len(splits) > 1 else f"dealt {number} times"
        self._tell(DOUBLED, key, f"{key} is {what}: in {where}")

    def _compare(self, key: str, dealt: Line, good: Line) -> None:
        split, _, label, crc, content = dealt
        part, its_label, its_crc, its_content, its_split, pixels = good
        if label != its_label:
            self._tell(DIFFERENT, key, f"{key} has label {label} in {self._place(dealt)}, {its_label} in {part}")
        elif crc != its_crc:
            self._tell(DIFFERENT, key, f"{key} has other bytes in {self._place(dealt)} than in {part}")
        elif content and content != its_content:
            self._tell(DIFFERENT, key, f"{key} has another sha256 in examples.parquet than in {part}")
        elif self.by_source and split != its_split:
            self._tell(DIFFERENT, key, f"{key} is in {split}, the source has it in {its_split or 'no split'}")
        if split == "train":
            self.pixels.add(pixels)

    def _judge_content(self, content: str, lines: Iterable[Line]) -> Iterator[dict[str, object]]:
        """DEALT lines come first, by key; then GOOD ones, by part and row."""
        before: Line | None = None
        keys, splits, labels = 0, set[str](), set[str]()
        first_good: Line | None = None
        goods = 0
        for line in lines:
            if line[2] == GOOD:
                first_good = first_good or line[3:]
                goods += 1
                continue
            key, split, _, label = told = line[3:]
            if before is not None and before[0] == key:  # one key twice is told where keys are judged
                continue
            keys += 1
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
