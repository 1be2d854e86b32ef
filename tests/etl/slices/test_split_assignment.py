"""The split of each image, whether known, new, in a group or a copy, and which images are left out."""

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import DataError, UsageError
from etl.formats import schemas
from etl.partition.config import SPLIT_NAMES, ShardConfig
from etl.partition.shares import split_sizes
from etl.slices.group_assignment import GroupConflict, split_of_group
from etl.slices.history import SplitHistory
from etl.slices.images import LEFT_OUT, Rules
from etl.slices.split_assignment import SplitAssignment, assign_splits

SHARES = {"train": Fraction(1, 2), "validation": Fraction(1, 4), "test": Fraction(1, 4)}
EXTRA = pa.field("columns", pa.map_(pa.string(), pa.string()))
SCHEMA = pa.schema([EXTRA if name == "columns" else schemas.ROWS.field(name) for name in schemas.IMAGE_COLUMNS])


def config(**more: Any) -> ShardConfig:
    split = {name: str(share) for name, share in SHARES.items()}
    return ShardConfig(**{"partition": "stratified", "split": split, "slices": {}, **more})


def sha256(content: str) -> bytes:
    return hashlib.sha256(content.encode()).digest()


def part(
    keys: Sequence[str], groups: Mapping[str, str] | None = None, own: Mapping[str, str] | None = None, **contents: str
) -> Any:
    """The rows of a part with these keys, a class by the key's last letter; a key is its own content unless given."""
    rows = [
        {
            "key": key,
            "sha256": sha256(contents.get(key, key)),
            "label": ord(key[-1]) % 3,
            "split": (own or {}).get(key),
            "columns": [("patient", groups[key])] if groups and key in groups else [],
        }
        for key in keys
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA), np.ones(len(rows), dtype=bool)


def history(
    keys: Mapping[str, str] | None = None,
    contents: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> SplitHistory:
    """Slices that record these splits; a key is its own content, unless contents are given."""
    known = keys or {}
    of_contents = [(name, split) for name, split in (known if contents is None else contents).items()]
    numbers = {name: SPLIT_NAMES.index(split) for name, split in (groups or {}).items()}
    return SplitHistory.of(table("key", pa.string(), [*known.items()]), content_table(of_contents), numbers)


def content_table(rows: Sequence[tuple[str, str]]) -> pa.Table:
    return table("sha256", pa.binary(32), [(sha256(content), split) for content, split in rows])


def table(name: str, kind: pa.DataType, rows: Sequence[tuple[Any, str]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: value, "split": split} for value, split in rows], pa.schema([(name, kind), ("split", pa.string())])
    )


def split_by_key(assignment: SplitAssignment, keys: Sequence[str]) -> dict[str, str | None]:
    numbers = np.concatenate(assignment.splits).tolist()
    return {key: None if n == LEFT_OUT else SPLIT_NAMES[n] for key, n in zip(keys, numbers, strict=True)}


def splits(rules: Rules, keys: Sequence[str], **more: Any) -> dict[str, str | None]:
    return split_by_key(assign_splits(rules, [part(keys, **more)]), keys)


def grouped(known: SplitHistory | None = None, *removed: str, **more: Any) -> Rules:
    """By patient, after slices that have ``known``."""
    return Rules(config(group_by="patient", **more), 3, known or SplitHistory.empty(), frozenset(removed))


@settings(max_examples=60)
@given(data=st.data())
def test_known_keys_keep_their_split_and_new_ones_fill_up(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, min_size=1, max_size=80))
    known = data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(SPLIT_NAMES), min_size=1))
    cut = data.draw(st.integers(0, len(keys)))
    assignment = assign_splits(
        Rules(config(), 3, history(known | {"gone": "test"})), [part(keys[:cut]), part(keys[cut:])]
    )
    found = split_by_key(assignment, keys)
    assert {key: found[key] for key in known} == known
    assert None not in found.values()
    assert [assignment.retired[name].num_rows for name in ("departed", "contents")] == [1, 1]  # "gone"
    new = len(keys) - len(known)
    assert assignment.known == {"kept": len(known), "moved": 0, "changed": 0, "new": new, "disagreeing": 0}
    for split, share in SHARES.items():
        had = sum(each == split for each in known.values())
        now = list(found.values()).count(split)
        assert had <= now <= max(Fraction(had), len(keys) * share) + 3  # within one for each class
    assert sum(int(counts.sum()) for counts in assignment.counts()) == len(keys)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    drop=st.booleans(),
    partition=st.sampled_from(["stratified", "uniform"]),
)
def test_images_of_a_content_go_to_one_split_and_shares_still_hold(
    sizes: list[int], drop: bool, partition: str
) -> None:
    content_of = {f"{copy}-{number}": str(number) for number, size in enumerate(sizes) for copy in range(size)}
    found = splits(Rules(config(drop_duplicates=drop, partition=partition), 3), sorted(content_of), **content_of)
    by_content: dict[str, set[str | None]] = {}
    for key, split in found.items():
        by_content.setdefault(content_of[key], set()).add(split)
    assert all(len(each - {None}) == 1 for each in by_content.values())
    dealt = [split for split in found.values() if split is not None]
    assert len(dealt) == (len(sizes) if drop else sum(sizes))
    whole = 1 if drop else max(sizes)  # what is dealt at once
    strata = 1 if partition == "uniform" else 3
    for split, share in SHARES.items():
        assert abs(dealt.count(split) - share * len(dealt)) <= strata * (1 + whole)


def test_a_known_content_keeps_its_split_under_any_key() -> None:
    """And if an image is another content by now, that content decides."""
    known = history({"a": "test", "b": "train"})
    assignment = assign_splits(Rules(config(), 3, known), [part(["c", "d"], c="a", d="b")])
    assert split_by_key(assignment, ["c", "d"]) == {"c": "test", "d": "train"}
    assert (assignment.known["kept"], assignment.known["moved"]) == (2, 2)
    assert assignment.retired["departed"]["key"].to_pylist() == ["a", "b"]  # though their contents did not
    assert not assignment.retired["contents"].num_rows
    assignment = assign_splits(Rules(config(), 3, known), [part(["a", "b"], a="another", b="a")])
    assert split_by_key(assignment, ["a", "b"]) == {"a": "test", "b": "test"}
    assert assignment.known == {"kept": 1, "moved": 0, "changed": 1, "new": 0, "disagreeing": 1}
    assert assignment.retired["contents"].num_rows


def test_copies_of_a_new_content_follow_the_known_keys_among_them() -> None:
    known = history({"a": "test", "b": "train", "c": "test"})
    found = splits(Rules(config(), 3, known), ["a", "b", "c", "d"], a="x", b="x", c="x", d="x")
    assert set(found.values()) == {"test"}  # two keys of three


def test_a_content_that_the_source_put_into_several_splits_stays_in_them() -> None:
    """One that is not known by its key goes to the source's own split if that is one of them, else to the first."""
    keys_before = pa.table({"key": ["a", "b"], "split": ["test", "validation"]})
    known = SplitHistory.of(keys_before, content_table([("x", "test"), ("x", "validation")]), {})
    keys = ["a", "b", "c", "d"]
    own = {"a": "train", "b": "train", "c": "test", "d": "train"}
    found = splits(Rules(config(split="source"), 3, known), keys, own=own, **dict.fromkeys(keys, "x"))
    assert found == {"a": "test", "b": "validation", "c": "test", "d": "validation"}


def test_what_is_removed_or_doubled_is_left_out() -> None:
    keys = ["a", "b", "c", "d", "e", "f"]
    rows, live = part(keys, d="same", b="same", f="same")
    live[0] = False
    known = history({"d": "test"}, contents={})
    assignment = assign_splits(
        Rules(config(drop_duplicates=True), 3, known, frozenset({"c", "nowhere", "a"})), [(rows, live)]
    )
    found = split_by_key(assignment, keys)
    assert [key for key, split in found.items() if split is None] == ["a", "b", "c", "f"]
    assert found["d"] == "test"  # the known one of three stays, though it is not the first
    assert assignment.left_out == {"removed_keys": 1, "duplicates": 2}
    assert assignment.removed == {"c"}
    without = splits(Rules(config(drop_duplicates=True), 3), keys, d="same", b="same", f="same")
    assert [key for key, split in without.items() if split is None] == ["d", "f"]


def elsewhere(group: str) -> str:
    """A split that a group would not go to by itself."""
    return next(name for name in SPLIT_NAMES if name != split_of_group(group, SHARES, 0))


def test_a_new_group_goes_where_its_known_images_are() -> None:
    split = elsewhere("x")
    for known in (history({"1": split}, contents={}), history({"0": split}, contents={"1": split})):
        assert splits(grouped(known), ["1", "2", "3"], groups=dict.fromkeys("123", "x")) == dict.fromkeys("123", split)


def test_of_copies_in_groups_of_two_splits_one_is_dealt_where_duplicates_are_dropped() -> None:
    known = history({"z": "train"}, groups={"x": "train", "y": "test"})
    keys, groups = ["a", "b", "z"], {"a": "x", "b": "y", "z": "x"}
    found = splits(grouped(known, drop_duplicates=True), keys, groups=groups, a="1", b="1")
    assert found == {"a": "train", "b": None, "z": "train"}
    with pytest.raises(GroupConflict, match=r"b \(train, patient 'y' in test\)"):
        splits(grouped(known), keys, groups=groups, a="1", b="1")


@settings(max_examples=100)
@given(data=st.data())
def test_groups_and_contents_are_in_one_split_whatever_they_share(data: st.DataObject) -> None:
    names = st.sampled_from("uvwxyz")
    rows = data.draw(st.lists(st.tuples(names, st.sampled_from("12345678")), min_size=1, max_size=30))
    groups = {str(number): group for number, (group, _) in enumerate(rows)}
    contents: dict[str, Any] = {str(number): f"c{content}" for number, (_, content) in enumerate(rows)}
    in_splits = st.sampled_from(SPLIT_NAMES)
    known_groups = data.draw(st.dictionaries(names, in_splits))
    known_contents = data.draw(st.dictionaries(st.sampled_from([f"c{n}" for n in range(1, 9)]), in_splits))
    remembered = history({"0": "train"}, contents=known_contents, groups=known_groups)
    is_dropping, rows_of_part = data.draw(st.booleans()), part(list(groups), groups, **contents)
    try:
        assignment = assign_splits(grouped(remembered, drop_duplicates=is_dropping), [rows_of_part])
    except GroupConflict as conflict:  # as a user would: leave out what is named
        rules = grouped(remembered, *conflict.keys, drop_duplicates=is_dropping)
        assignment = assign_splits(rules, [rows_of_part])
    found = {key: split for key, split in split_by_key(assignment, list(groups)).items() if split is not None}
    groups_now = {row["group"]: row["split"] for row in assignment.retired["groups"].to_pylist()}
    assert known_groups.items() <= groups_now.items()
    of_group, of_content = dict(known_groups), dict(known_contents)
    for key, split in found.items():
        assert of_group.setdefault(groups[key], split) == split
        assert of_content.setdefault(contents[key], split) == split


def test_groups_go_about_by_fraction() -> None:
    dealt = [split_of_group(str(number), SHARES, 0) for number in range(4000)]
    assert [dealt.count(name) for name in SPLIT_NAMES] == pytest.approx([2000, 1000, 1000], abs=120)


def test_images_without_a_group_and_strangers_are_refused() -> None:
    some = {"b": "x"}
    for parts in ([part(["a", "b"], some)], [part(["a"]), part(["b"], some)]):
        with pytest.raises(DataError, match="a has no value in the column 'patient'"):
            assign_splits(grouped(), parts)
    with pytest.raises(UsageError, match=r"--group-by video: no image .* columns there are: patient; add one"):
        assign_splits(Rules(config(group_by="video"), 3), [part(["a"]), part(["b"], some)])
    with pytest.raises(UsageError, match="columns there are: none"):
        assign_splits(grouped(), [part(["a"])])
    with pytest.raises(UsageError, match="none of the 1 keys of --splits-from is among these images, nor any of their"):
        assign_splits(Rules(config(), 3, history({"x": "train"})), [part(["a"])])
    assigned = assign_splits(Rules(config(split="source"), 3, history({"b": "train"})), [part(["a", "b"])])
    with pytest.raises(DataError, match="1 images have no split of the source's own"):
        split_sizes(*assigned.counts())


def test_a_placeholder_image_in_every_group_takes_no_quadratic_time() -> None:
    keys = [f"{number}" for number in range(50_000)]
    contents: dict[str, Any] = dict.fromkeys(keys, "placeholder")
    assigned = assign_splits(grouped(), [part(keys, {key: f"p{key}" for key in keys}, **contents)])
    groups = assigned.retired["groups"]
    assert groups.num_rows == len(keys)
    assert len(set(groups["split"].to_pylist())) == len(set(assigned.splits[0].tolist())) == 1
