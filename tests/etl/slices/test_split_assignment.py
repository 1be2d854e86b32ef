"""What becomes of images whose split is known, shared or not their own, and of those that are left out."""

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
from etl.slices import split_assignment
from etl.slices.previous import KnownKeys
from etl.slices.split_assignment import LEFT_OUT, Rules, decide, split_of_group

SHARES: dict[str, Fraction | int | None] = {
    "train": Fraction(1, 2),
    "validation": Fraction(1, 4),
    "test": Fraction(1, 4),
}
COLUMNS = pa.field("columns", pa.map_(pa.string(), pa.string()))
SCHEMA = pa.schema([COLUMNS if name == "columns" else schemas.ROWS.field(name) for name in split_assignment.COLUMNS])


def config(**more: Any) -> ShardConfig:
    return ShardConfig(**{"partition": "stratified", "split": SHARES, "slices": {}, **more})


def part(keys: Sequence[str], columns: Mapping[str, Mapping[str, str]] | None = None, **contents: bytes) -> Any:
    """The rows of a part with these keys, a class by the key's last letter; content by key unless given."""
    rows = [
        {
            "key": key,
            "sha256": hashlib.sha256(contents.get(key, key.encode())).digest(),
            "label": ord(key[-1]) % 3,
            "split": None,
            "columns": list((columns or {}).get(key, {}).items()),
        }
        for key in keys
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA), np.ones(len(rows), dtype=bool)


def known_keys(splits: Mapping[str, str]) -> KnownKeys:
    return KnownKeys([pa.table({"key": list(splits), "split": list(splits.values())})])


def split_by_key(decided: split_assignment.Decided, keys: Sequence[str]) -> dict[str, str | None]:
    numbers = np.concatenate(decided.fates).tolist()
    return {key: None if n == LEFT_OUT else SPLIT_NAMES[n] for key, n in zip(keys, numbers, strict=True)}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_known_keys_keep_their_split_and_new_ones_fill_up(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, min_size=1, max_size=80))
    known = data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(SPLIT_NAMES), min_size=1))
    cut = data.draw(st.integers(0, len(keys)))
    decided = decide(Rules(config(), 3, known_keys(known | {"gone": "test"})), [part(keys[:cut]), part(keys[cut:])])
    found = split_by_key(decided, keys)
    assert {key: found[key] for key in known} == known
    assert None not in found.values()
    assert int(decided.dealt.sum()) == len(known)
    for split, share in SHARES.items():
        had = sum(each == split for each in known.values())
        assert isinstance(share, Fraction)
        now = list(found.values()).count(split)
        assert had <= now <= max(Fraction(had), len(keys) * share) + 3  # within one for each class
    assert sum(int(counts.sum()) for counts in decided.counts()) == len(keys)


def test_what_is_removed_or_doubled_is_left_out() -> None:
    keys = ["a", "b", "c", "d", "e", "f"]
    rows, live = part(keys, d=b"same", b=b"same", f=b"same")
    live[0] = False
    rules = Rules(config(drop_duplicates=True), 3, known_keys({"d": "test"}), frozenset({"c", "nowhere", "a"}))
    decided = decide(rules, [(rows, live)])
    found = split_by_key(decided, keys)
    assert [key for key, split in found.items() if split is None] == ["a", "b", "c", "f"]
    assert found["d"] == "test"  # the known one of three stays, though it is not the first
    assert decided.left_out == {"removed_keys": 1, "duplicates": 2}
    without_known = decide(Rules(config(drop_duplicates=True), 3), [part(keys, d=b"same", b=b"same", f=b"same")])
    assert [key for key, split in split_by_key(without_known, keys).items() if split is None] == ["d", "f"]


def test_a_group_stays_together() -> None:
    keys = [f"{patient}-{number}" for patient in range(40) for number in range(5)]
    patients = {key: {"patient": key.partition("-")[0]} for key in keys}
    found = split_by_key(decide(Rules(config(group_by="patient"), 3), [part(keys, patients)]), keys)
    by_patient = {patients[key]["patient"]: split for key, split in found.items()}
    assert all(by_patient[patients[key]["patient"]] == split for key, split in found.items())
    assert set(by_patient.values()) == set(SPLIT_NAMES)
    other = split_by_key(decide(Rules(config(group_by="patient", seed=1), 3), [part(keys, patients)]), keys)
    assert other != found


def test_a_known_group_goes_on_where_it_is() -> None:
    shares = {name: share for name, share in SHARES.items() if isinstance(share, Fraction)}
    elsewhere = next(name for name in SPLIT_NAMES if name != split_of_group("x", shares, 0))
    groups = {key: {"video": "x"} for key in ("1", "2", "3")}
    rules = Rules(config(group_by="video"), 3, known_keys({"1": elsewhere}))
    assert set(split_by_key(decide(rules, [part(["1", "2", "3"], groups)]), ["1", "2", "3"]).values()) == {elsewhere}
    torn = Rules(config(group_by="video"), 3, known_keys({"1": "train", "2": "test"}))
    with pytest.raises(UsageError, match="video 'x' in several splits"):
        decide(torn, [part(["1", "2", "3"], groups)])


def test_groups_go_about_by_fraction() -> None:
    shares = {name: share for name, share in SHARES.items() if isinstance(share, Fraction)}
    splits = [split_of_group(str(number), shares, 0) for number in range(4000)]
    assert [splits.count(name) for name in SPLIT_NAMES] == pytest.approx([2000, 1000, 1000], abs=120)


def test_images_without_a_group_and_strangers_are_refused() -> None:
    grouped = Rules(config(group_by="patient"), 3)
    some = {"b": {"patient": "x"}}
    for parts in ([part(["a", "b"], some)], [part(["a"]), part(["b"], some)], [part(["b"], some), part(["a"])]):
        with pytest.raises(DataError, match="a has no value in the column 'patient'"):
            decide(grouped, parts)
    videos = {"b": {"video": "x", "age": "1"}}
    with pytest.raises(UsageError, match=r"--group-by patient: no image .* columns there are: age, video; add one"):
        decide(grouped, [part(["a"]), part(["b"], videos)])
    with pytest.raises(UsageError, match="columns there are: none"):
        decide(grouped, [part(["a"])])
    with pytest.raises(UsageError, match="none of the 1 keys of --splits-from is among these images"):
        decide(Rules(config(), 3, known_keys({"x": "train"})), [part(["a"])])
    with pytest.raises(DataError, match="1 images have no split of the source's own"):
        decide(Rules(config(split=None), 3, known_keys({"b": "train"})), [part(["a", "b"])])


def test_digests_are_found_whatever_their_bytes() -> None:
    keys = [str(number) for number in range(20_000)]
    known = known_keys(dict.fromkeys(keys[::2], "test"))
    numbers = known.find(keys)
    assert (numbers[::2] >= 0).all()
    assert (numbers[1::2] == -1).all()
    assert len(set(numbers[::2].tolist())) == 10_000
    assert known_keys({}).find(["a"]).tolist() == [-1]
