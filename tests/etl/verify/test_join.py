"""Examples of slices are compared with good images, bucket by bucket, and by plain sets."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import EnvironmentFailure
from etl.storage.place import open_place
from etl.verify.collect import CheckResults
from etl.verify.findings import MAX_KEYS, Finding, KeyFault, What
from etl.verify.join import (
    FOUND,
    GOOD,
    RETIRED_KEYS,
    LineResult,
    Reconciler,
    content_buckets,
    key_buckets,
    read_rows,
    table_place,
    write_buckets,
)
from etl.verify.target import Target

SPLITS = ("train", "test", "test")  # of the slices 0, 1, 2


def sha256(content: int) -> bytes:
    return hashlib.sha256(b"%d" % content).digest()


@dataclass(frozen=True)
class Image:
    """A good image, or an example of one; ``content`` is a number that stands for its bytes."""

    key: str
    content: int
    label: int = 0
    crc32c: int = 1
    group: str | None = None

    def row(self, **more: object) -> dict[str, object]:
        pixels = {"width": 2, "height": 3, "sums": [self.content, 7], "squares": [1, self.label]}
        return {"split": "test", "source": "part", "part": "part", "planned": None, **vars(self), **pixels} | {
            "sha256": sha256(self.content),
            **more,
        }


Dealt = Iterable[tuple[int, Image]]


def reconcile(
    dealt: Dealt, good: Iterable[Image], gone: Mapping[str, bool] | None = None, buckets: int = 1, **rules: bool
) -> tuple[Reconciler, list[dict[str, Any]]]:
    """What all buckets give, and the rows of duplicates."""
    found = table(FOUND, [image.row(split=SPLITS[number], number=number) for number, image in dealt])
    images = table(GOOD, [image.row() for image in good])
    departed = table(RETIRED_KEYS, [{"key": key, "removed": removed} for key, removed in (gone or {}).items()])
    reconciler, duplicates = Reconciler(["slice-0", "slice-1", "slice-2"], **rules), list[dict[str, Any]]()
    for bucket in range(buckets):
        reconciler.check_keys(
            *(each.filter(key_buckets(each, buckets) == bucket) for each in (found, images, departed))
        )
    for bucket in range(buckets):
        rows = found.filter(content_buckets(found, buckets) == bucket)
        duplicates += reconciler.check_contents(rows).to_pylist()
    reconciler.check_groups("patient")
    return reconciler, duplicates


def table(schema: pa.Schema, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)


distinct = st.lists(
    st.builds(Image, st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(0, 1)),
    max_size=8,
    unique_by=lambda image: image.key,
)


@settings(deadline=None)
@given(
    good=distinct,
    dealing=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdefghi")), max_size=10),
    gone=st.dictionaries(st.sampled_from("abij"), st.booleans()),
    buckets=st.integers(1, 5),
)
def test_findings_are_those_of_plain_sets(
    good: list[Image], dealing: list[tuple[int, str]], gone: dict[str, bool], buckets: int
) -> None:
    by_key = {image.key: image for image in good}
    dealt = [(number, by_key.get(key, Image(key, 9))) for number, key in dealing]
    times = Counter(key for _, key in dealing)
    result, duplicates = reconcile(dealt, good, gone, buckets)
    expected = {
        KeyFault.DOUBLED: sum(number > 1 for number in times.values()),
        KeyFault.UNKNOWN: sum(times[key] for key in times.keys() - by_key.keys()),
        KeyFault.RETIRED: sum(times[key] for key in times.keys() & gone.keys()),
        KeyFault.MISSING: sum(not gone.get(key) for key in by_key.keys() - times.keys()),
    }
    assert result.findings.counts == +Counter(expected)
    assert result.left_out["removed_keys"] == sum(gone.get(key, False) for key in by_key.keys() - times.keys())
    contents: dict[bytes, set[str]] = {}
    for _, image in dealt:
        contents.setdefault(sha256(image.content), set()).add(image.key)
    expected_rows = sorted((content, key) for content, keys in contents.items() for key in keys if len(keys) > 1)
    assert [(row["sha256"], row["key"]) for row in duplicates] == expected_rows, "in order over all buckets"
    several = sum(len(keys) > 1 for keys in contents.values())
    assert (result.duplicates["contents"], result.duplicates["examples"]) == (several, len(expected_rows))


def test_each_difference_is_reported_in_a_line() -> None:
    image, other = Image("a/b", 1), Image("c", 2)
    cases: list[tuple[list[tuple[int, Image]], dict[str, bool], str, str]] = [
        ([(0, image)], {}, "", ""),  # the negative control
        ([(0, image), (1, image)], {}, KeyFault.DOUBLED, "a/b is in slices 2 times: in slice-0 and in slice-1"),
        ([(1, image), (2, image)], {}, KeyFault.DOUBLED, "a/b is in slices 2 times: in slice-1 and in slice-2"),
        ([(0, image), (0, other)], {}, KeyFault.UNKNOWN, "c is in slice-0, and is not a good image"),
        ([], {}, KeyFault.MISSING, "a/b of part is good, and in no slice"),
        ([(0, replace(image, label=1))], {}, KeyFault.DIFFERENT, "a/b of part: label is 1, not 0"),
        ([(0, replace(image, crc32c=5))], {}, KeyFault.DIFFERENT, "a/b of part: crc32c is 5, not 1"),
        (
            [(0, replace(image, content=5))],
            {},
            KeyFault.DIFFERENT,
            f"a/b of part: sha256 is {sha256(5).hex()}, not {sha256(1).hex()}",
        ),
        ([(0, image)], {"by_source": True}, KeyFault.DIFFERENT, "a/b of part: split is train, not test"),
        ([(0, image)], {"grouped": True}, KeyFault.DIFFERENT, "a/b is in slice-0, and has no group"),
    ]
    for dealt, rules, kind, line in cases:
        result, _ = reconcile(dealt, [image], {}, 1, **rules)
        assert [each.line for each in result.findings.named.get(kind, [])] == [line] * bool(kind)
        assert result.findings.counts.keys() == {kind} - {""}
    gone, _ = reconcile([(0, image)], [image], {"a/b": True})
    assert gone.findings.named[KeyFault.RETIRED] == [
        Finding(What.KEY, "a/b", "a/b is in slice-0, and in departed.parquet")
    ]


def test_an_example_is_in_the_slice_of_the_plan() -> None:
    rows = [Image("a", 1).row(planned=1), Image("b", 2).row(planned=-1), Image("c", 3).row(planned=2)]
    found = table(FOUND, [row | {"number": 0, "split": "train"} for row in rows[:2]])
    result = Reconciler(["slice-0", "slice-1", "slice-2"])
    result.check_keys(found, table(GOOD, rows), RETIRED_KEYS.empty_table())
    assert [each.line for each in result.findings.named[KeyFault.DIFFERENT]] == [
        "a of part: slice is slice-0, not slice-1",
        "b of part: slice is slice-0, not none",
    ]
    assert [each.name for each in result.findings.named[KeyFault.MISSING]] == ["c"]


def test_the_pixels_of_the_training_split_are_summed_exactly() -> None:
    dealt = [(0, Image("a", 2**60)), (1, Image("b", 5)), (0, Image("c", 2**60, label=1))]
    result, _ = reconcile(dealt, [image for _, image in dealt], buckets=3)
    assert vars(result.pixels) == {"pixels": 12, "sums": [2**61, 14], "squares": [2, 1]}


def test_copies_and_groups_across_splits() -> None:
    a, b, c = Image("a", 1, group="p"), Image("b", 1, label=1, group="q"), Image("c", 1, group="p")
    for dealt, expected, split_groups in (
        ([(0, a), (0, c)], (1, 2, 0, 0), 0),
        ([(0, a), (1, c)], (1, 2, 1, 0), 1),
        ([(1, a), (2, b)], (1, 2, 0, 1), 0),
        ([(0, a), (1, b), (2, c)], (1, 3, 1, 1), 1),
    ):
        for buckets in (1, 4):
            images = [image for _, image in dealt]
            result, found = reconcile(dealt, images, buckets=buckets, grouped=True, dropped=True)
            assert tuple(result.duplicates.values()) == expected
            assert result.findings.counts == +Counter({KeyFault.SPLIT_GROUP: split_groups, KeyFault.SAME_CONTENT: 1})
            assert {row["key"]: row["slice"] for row in found} == {
                image.key: f"slice-{number}" for number, image in dealt
            }


def test_all_are_counted_and_the_first_named() -> None:
    result, _ = reconcile([], [Image(f"{number:04d}", number) for number in range(500)])
    assert result.findings.counts == {KeyFault.MISSING: 500}
    assert [each.name for each in result.findings.named[KeyFault.MISSING]] == [f"{n:04d}" for n in range(MAX_KEYS)]


def test_rows_come_back_by_bucket(tmp_path: Path) -> None:
    staging = open_place(str(tmp_path)).make_folder()
    whole = pa.Table.from_pylist([{"key": key} for key in "abcdefgh"], schema=FOUND)
    numbers = key_buckets(whole, 5)
    bounds = write_buckets(table_place(staging, "found", 1), staging, whole, numbers, 5)
    results = {0: LineResult(), 1: LineResult(bounds={"found": bounds})}
    for bucket in range(5):
        assert read_rows(staging, results, "found", bucket).equals(whole.filter(numbers == bucket))


def test_a_result_that_is_missing_is_an_error(tmp_path: Path) -> None:
    results = open_place(str(tmp_path))
    LineResult().publish(results, results, 0, buckets=1)
    with pytest.raises(EnvironmentFailure, match=r"line-000001.json is missing though the job ended"):
        CheckResults.read(cast(Target, None), [{"line": 0}, {"line": 1}], results)
