"""Examples of slices are compared with good images, line by line, and by plain sets."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.formats import parquet_tables, schemas
from etl.storage.place import open_place
from etl.verify import findings as kinds
from etl.verify.exactly_once import GROUPS, Judge
from etl.verify.findings import Duplicates, KeyFindings
from etl.verify.lines import Line, PartOrder, bucket_of, dealt_lines, earlier_lines, gone_lines, good_lines
from etl.verify.remembered import group_faults

SPLITS = ("train", "test")
SCHEMA = pa.schema(  # of rows of good images and of dealt examples
    [
        *[("key", pa.string()), ("label", pa.int32()), ("crc32c", pa.uint32()), ("sha256", pa.binary(32))],
        *[("split", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("source", pa.string())],
        *[("sums", pa.list_(pa.int64())), ("squares", pa.list_(pa.int64()))],
    ]
)


@dataclass(frozen=True)
class Image:
    """A good image, or an example of one; ``content`` is a number that stands for its bytes."""

    key: str
    content: int
    label: int = 0
    crc32c: int = 1

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(b"%d" % self.content).digest()

    def row(self) -> dict[str, object]:
        pixels = {"width": 2, "height": 3, "sums": [self.content, 7], "squares": [1, self.label]}
        return pixels | vars(self) | {"sha256": self.sha256, "split": "test"}


def judge(
    dealt: Iterable[tuple[int, Image]],
    good: Iterable[Image],
    gone: dict[str, bool] | None = None,
    buckets: int = 1,
    *,
    dropped: bool = False,
    by_source: bool = False,
    earlier: Iterable[tuple[str, Image]] | None = None,
) -> tuple[KeyFindings, list[dict[str, object]], list[Judge]]:
    """The findings, the examples of equal content, and the judges of all buckets.

    Good images are in two parts, one after the other; slice 0 is of train, 1 and 2 of test.
    """
    lines: list[Line] = []
    for number in range(3):
        rows = [image.row() for where, image in dealt if where == number]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        lines += dealt_lines(table, SPLITS[min(number, 1)], number)
    removed = frozenset(key for key, why in (gone or {}).items() if why)
    images = list(good)
    for part, own in enumerate((images[: len(images) // 2], images[len(images) // 2 :])):
        table = pa.Table.from_pylist([image.row() for image in own], schema=SCHEMA)
        lines += good_lines(table, f"pack-{part}", PartOrder(part if dropped else None, removed))
    told = [{"key": key, "removed": why, "split": None} for key, why in (gone or {}).items()]
    lines += gone_lines(pa.Table.from_pylist(told, schema=schemas.DEPARTED))
    for split, image in earlier or ():
        lines += earlier_lines(pa.table({"key": [image.key], "split": [split], "sha256": [image.sha256]}))
    judges: list[Judge] = []
    found: list[dict[str, object]] = []
    options: dict[str, Any] = {"dropped": dropped, "by_source": by_source, "knows_earlier": earlier is not None}
    for bucket in range(buckets):
        judges.append(Judge(lambda number: f"slice-{number}", **options))
        found += judges[-1].judge(sorted(line for line in lines if bucket_of(line, buckets) == bucket))
    assert sum(each.lines for each in judges) == len(lines)
    return KeyFindings.merged(each.findings.to_json() for each in judges), found, judges


distinct = st.lists(
    st.builds(Image, st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(0, 1)),
    max_size=8,
    unique_by=lambda image: image.key,
)
dealings = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdefghi")), max_size=10)


@given(
    good=distinct,
    dealing=dealings,
    gone=st.dictionaries(st.sampled_from("abij"), st.booleans()),
    buckets=st.integers(1, 5),
)
def test_findings_are_those_of_plain_sets(
    good: list[Image], dealing: list[tuple[int, str]], gone: dict[str, bool], buckets: int
) -> None:
    by_key = {image.key: image for image in good}
    dealt = [(number, by_key.get(key, Image(key, 9))) for number, key in dealing]
    times = Counter(key for _, key in dealing)
    findings, found, judges = judge(dealt, good, gone, buckets)
    expected = Counter(
        {
            kinds.DOUBLED: sum(1 for number in times.values() if number > 1),
            kinds.UNKNOWN: len(times.keys() - by_key.keys()),
            kinds.DEPARTED: len(times.keys() & gone.keys()),
            kinds.MISSING: len([key for key in by_key.keys() - times.keys() if not gone.get(key)]),
        }
    )
    assert findings.counts == +expected
    contents: dict[bytes, set[str]] = {}
    for _, image in dealt:
        contents.setdefault(image.sha256, set()).add(image.key)
    doubles = {(sha256, key) for sha256, keys in contents.items() for key in keys if len(keys) > 1}
    assert [(row["sha256"], row["key"]) for row in found] == sorted(doubles), "in order over all buckets"
    told = sum((each.duplicates for each in judges), Duplicates())
    assert (told.contents, told.examples) == (sum(len(keys) > 1 for keys in contents.values()), len(doubles))
    assert sum(each.left_out_removed for each in judges) == len(
        [key for key in by_key.keys() - times.keys() if gone.get(key)]
    )


@given(good=distinct, gone=st.sets(st.sampled_from("abij")), buckets=st.integers(1, 3))
def test_of_equal_contents_the_first_good_image_is_to_be_dealt(good: list[Image], gone: set[str], buckets: int) -> None:
    live = [image for image in good if image.key not in gone]
    firsts = [
        image for number, image in enumerate(live) if image.content not in {each.content for each in live[:number]}
    ]
    told = dict.fromkeys(gone, True)
    dealt = [(1, image) for image in firsts]
    findings, found, judges = judge(dealt, good, told, buckets, dropped=True)
    assert (findings.counts, found) == (Counter(), [])
    assert sum(each.left_out_duplicates for each in judges) == len(live) - len(firsts)
    for number in range(len(dealt)):  # one is lost
        findings, _, _ = judge(dealt[:number] + dealt[number + 1 :], good, told, buckets, dropped=True)
        assert findings.counts == {kinds.MISSING: 1}
    for image in live:  # one too many, or another of the same content in its place
        if image not in firsts:
            first = next(each for each in firsts if each.content == image.content)
            findings, _, _ = judge([*dealt, (0, image)], good, told, buckets, dropped=True)
            assert findings.counts == {kinds.SAME_CONTENT: 1}
            others = [(1, each) for each in firsts if each is not first]
            findings, _, _ = judge([*others, (0, image)], good, told, buckets, dropped=True)
            assert findings.counts == {kinds.SAME_CONTENT: 1}


def test_each_difference_is_reported_in_a_line() -> None:
    image = Image("a/b", 1)
    other = Image("c", 2)
    cases: list[tuple[list[tuple[int, Image]], str, str]] = [
        ([(0, image), (1, image)], kinds.DOUBLED, "a/b is in 2 splits: in slice-1 and in slice-0"),
        ([(1, image), (2, image)], kinds.DOUBLED, "a/b is dealt 2 times: in slice-1 and in slice-2"),
        ([(0, image), (0, other)], kinds.UNKNOWN, "c is in slice-0, and is no good image"),
        ([], kinds.MISSING, "a/b of pack-1 is good, and in no slice"),
        ([(0, replace(image, label=1))], kinds.DIFFERENT, "a/b has label 1 in slice-0, 0 in pack-1"),
        ([(0, replace(image, crc32c=5))], kinds.DIFFERENT, "a/b has other bytes in slice-0 than in pack-1"),
        (
            [(0, replace(image, content=5))],
            kinds.DIFFERENT,
            "a/b has another sha256 in examples.parquet than in pack-1",
        ),
    ]
    assert judge([(0, image)], [image])[0].counts == {}
    results = [(judge(dealt, [image]), kind, line) for dealt, kind, line in cases]
    by_source = judge([(0, image)], [image], by_source=True)
    results += [
        (by_source, kinds.DIFFERENT, "a/b is in train, the source has it in test"),
        (judge([(0, image)], [image], {"a/b": True}), kinds.DEPARTED, "a/b was removed by a list, and is in slice-0"),
        (judge([(0, image)], [image] * 2), kinds.DOUBLED, "a/b is 2 good images: in pack-0 and in pack-1"),
    ]
    for (findings, *_), kind, line in results:
        assert findings.counts == {kind: 1}
        assert findings.named[kind][0][1] == line
    assert judge([(1, image)], [image], by_source=True)[0].counts == {}


@pytest.mark.parametrize(
    ("earlier", "dealt", "expected"),
    [
        (["a1 train"], ["a1 train"], []),
        (["a1 train"], ["a1 test"], [kinds.MOVED, kinds.CONTENT_MOVED]),
        (["a1 train"], ["b1 test"], [kinds.CONTENT_MOVED]),
        (["a1 train", "b1 test"], ["a1 train", "b1 test", "c1 train"], []),
        (["a1 train", "b1 test"], ["a1 test", "b1 test"], [kinds.MOVED]),
        (["a1 train", "b2 test"], ["a2 test", "b2 test"], []),
        (["a1 train", "b2 test"], ["a2 train", "b2 test"], [kinds.CONTENT_MOVED]),
        (["a1 train"], [], []),
    ],
)
def test_a_key_and_a_content_keep_their_split(earlier: list[str], dealt: list[str], expected: list[str]) -> None:
    """An image is a letter, its key, and a number, its content."""
    images = {each[:2]: Image(each[0], int(each[1])) for each in (*dealt, *earlier)}
    there = [(SPLITS.index(each[3:]), images[each[:2]]) for each in dealt]
    before = [(each[3:], images[each[:2]]) for each in earlier]
    findings, *_ = judge(there, [image for _, image in there], earlier=before)
    assert findings.counts.keys() - {kinds.FORGOTTEN} == {*expected}
    gone = {image.key for _, image in before} - {image.key for _, image in there}
    assert findings.counts.get(kinds.FORGOTTEN, 0) == len(gone)


def test_departed_keys_are_remembered_as_they_were() -> None:
    departed = pa.table({"key": ["a"], "split": ["test"], "removed": [False]})

    def told(split: str | None, removed: bool, lists_removed: bool = False) -> dict[str, int]:
        lines = [*gone_lines(pa.table({"key": ["a"], "split": [split], "removed": [removed]}))]
        judge = Judge(str, knows_earlier=True, lists_removed=lists_removed)
        assert list(judge.judge(sorted([*lines, *earlier_lines(departed)]))) == []
        return dict(judge.findings.counts)

    assert told("test", False) == {}
    assert told("train", False) == told(None, False) == told("test", True) == {kinds.FORGOTTEN: 1}
    assert told("test", True, lists_removed=True) == {}
    alone = Judge(str, knows_earlier=True)
    assert list(alone.judge(gone_lines(departed))) == []
    assert alone.findings.counts == {kinds.FORGOTTEN: 1}, "no earlier slices had it"


def test_the_pixels_of_the_training_split_are_summed_exactly() -> None:
    dealt = [(0, Image("a", 2**60)), (1, Image("b", 5)), (0, Image("c", 2**60, label=1))]
    _, _, judges = judge(dealt, [image for _, image in dealt])
    assert judges[0].pixels.total == [12, 2**61, 14, 2, 1]


def test_leakage_is_counted_across_splits_and_classes() -> None:
    a, b, c = Image("a", 1), Image("b", 1, label=1), Image("c", 1)
    for dealt, expected in (
        ([(0, a), (0, c)], Duplicates(1, 2, 0, 0)),
        ([(0, a), (1, c)], Duplicates(1, 2, 1, 0)),
        ([(1, a), (2, b)], Duplicates(1, 2, 0, 1)),
        ([(0, a), (1, b), (2, c)], Duplicates(1, 3, 1, 1)),
    ):
        _, found, judges = judge(dealt, [image for _, image in dealt])
        assert judges[0].duplicates == expected
        assert {(row["key"], row["number"]) for row in found} == {(image.key, number) for number, image in dealt}


def test_all_are_counted_and_the_first_named() -> None:
    many = [Image(f"{number:04d}", number) for number in range(500)]
    findings, _, _ = judge([], many)
    assert findings.counts == {kinds.MISSING: 500}
    assert [key for key, _ in findings.named[kinds.MISSING]] == [image.key for image in many[: kinds.MOST_KEYS]]


def test_a_group_is_in_one_split_over_all_buckets(tmp_path: Path) -> None:
    buckets: list[dict[str, int]] = [{"a": 1, "b": 1, "d": 5}, {"a": 1, "b": 4, "c": 2}]  # bits of splits
    tables = []
    for number, own in enumerate(buckets):
        table = parquet_tables.table_of(GROUPS, [{"group": name, "splits": bits} for name, bits in own.items()])
        (tmp_path / f"{number}.parquet").write_bytes(parquet_tables.table_bytes(table))
        tables.append(open_place(str(tmp_path / f"{number}.parquet")))
    keys = KeyFindings()
    group_faults(tables, "patient", keys)
    assert [name for name, _ in keys.named[kinds.TORN]] == ["b", "d"]
    assert keys.named[kinds.TORN][0][1] == "the images of patient 'b' are in train and test"
