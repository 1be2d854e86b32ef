"""Checkpoints: arrays in files, what is damaged, who dies when, and which ones stay."""

import hashlib
import json
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import save

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.storage.place import Place, json_bytes, open_place, with_checksum
from tests.lib.commands import flip_bit
from tests.lib.faults import READ, Fault, FaultError, faulty
from train.checkpoints import store
from train.checkpoints.safetensors_file import Arrays, parse, pieces
from train.checkpoints.store import Checkpoint, DamagedError, kept, open_checkpoint, prune, restore, steps, write

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["float64", "float32", "float16", *INTEGERS, "bool"]


def whole(arrays: Mapping[str, np.ndarray | np.generic]) -> bytes:
    return b"".join(pieces(arrays))


def facts_of(arrays: Arrays) -> dict[str, tuple[object, ...]]:
    """Names, dtypes, shapes and bytes."""
    return {name: (each.dtype, each.shape, each.tobytes()) for name, each in arrays.items()}


arrays_of_any_kind = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5).filter(lambda name: name != "__metadata__"),
    st.builds(
        lambda array, laid: laid(array),
        npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, min_side=0, max_side=4)),
        st.sampled_from([np.asarray, np.transpose, np.flip]),  # however it lies in memory
    ),
    max_size=5,
)


@settings(max_examples=200)
@given(arrays_of_any_kind)
def test_arrays_come_back_bit_for_bit(arrays: Arrays) -> None:
    assert facts_of(parse(whole(arrays))) == facts_of(arrays)


def test_arrays_lie_where_their_type_may_be_read() -> None:
    """Each begins at a multiple of its items' size, whatever was given before it."""
    dtypes = {"a": np.uint8, "b": np.float16, "c": np.float64, "d": np.float32}
    data = whole({name: np.zeros(3, dtype) for name, dtype in dtypes.items()})
    assert struct.unpack("<Q", data[:8])[0] % 8 == 0
    places = [data.index(f'"{name}"'.encode()) for name in "cdba"]
    assert places == sorted(places)
    big_endian = np.arange(3, dtype=">f4")
    assert facts_of(parse(whole({"a": big_endian}))) == facts_of({"a": np.arange(3, dtype=np.float32)})


@pytest.mark.parametrize("array", [np.array([None]), np.zeros(2, complex)])
def test_other_types_and_the_name_of_the_format_are_refused(array: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"cannot contain the array '0001-x' of .*; it takes float64, float32"):
        whole({"0001-x": array})
    with pytest.raises(UsageError, match="cannot contain the array '__metadata__'"):
        whole({"__metadata__": np.zeros(1)})


Groups = dict[str, Arrays]


def groups_of(seed: int) -> Groups:
    """Small arrays; another seed, other values in each file."""
    generator = np.random.default_rng(seed)
    model = {"0000-kernel": generator.random((3, 4), np.float32), "0001-count": np.array(seed)}
    return {"model": model, "optimizer": {"0000-velocity": generator.random(5, np.float32)}}


def write_some(place: Place, staging: Place, *numbers: int, score: float | None = None) -> None:
    for step in numbers:
        write(place, staging, step, groups_of(step), {"score": score})


def folder_of(place: Place, step: int) -> Path:
    return Path(place.path) / "checkpoints" / f"step-{step:08d}"


def restored(place: Place, staging: Place) -> tuple[int, Groups]:
    found = restore(place, staging)
    assert found is not None
    checkpoint, groups = found
    return checkpoint.step, groups


def require_seed(groups: Groups, seed: int) -> None:
    """All arrays are those of this seed, not some of them."""
    found, expected = ({name: facts_of(each) for name, each in some.items()} for some in (groups, groups_of(seed)))
    assert found == expected


def test_a_checkpoint_comes_back(place: Place, staging: Place) -> None:
    assert (store.newest(place), steps(place), restore(place, staging)) == (None, [], None)
    facts = {"reader": {"left": ((0, 7), (9, 12))}, "by_rank": {10: "b", 9: "a"}, "loss": 1e300, "score": 0.5}
    made = write(place, staging, 150, {**groups_of(1), "empty": {}}, facts)
    assert (made.step, made.name, made.groups) == (150, "step-00000150", ["model", "optimizer", "empty"])
    assert store.newest(place) == made == open_checkpoint(place, 150)
    written = facts | {"reader": {"left": [[0, 7], [9, 12]]}, "by_rank": {"10": "b", "9": "a"}}
    assert {name: value for name, value in made.marker.items() if name not in store.OWN_FACTS} == written
    step, groups = restored(place, staging)
    assert (step, groups.pop("empty")) == (150, {})
    require_seed(groups, 1)
    assert facts_of(made.read("model")) == facts_of(groups_of(1)["model"])
    assert staging.children() == []
    with pytest.raises(UsageError, match="step-00000150 has no 'weights', it has model, optimizer, empty"):
        made.read("weights")


def test_steps_go_by_number(place: Place, staging: Place) -> None:
    numbers = [0, 9, 10, 99_999_999, 100_000_000]
    write_some(place, staging, *reversed(numbers))
    for other in ("step-7", "step-0000000x", "step--0000001", "notes", "step-00000005"):  # the last has no marker
        (Path(place.path) / "checkpoints" / other).mkdir()
    assert steps(place) == numbers
    assert restored(place, staging)[0] == 100_000_000


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors"])
def test_flipped_bytes_and_truncations_are_found(name: str, place: Place, staging: Place) -> None:
    write(place, staging, 3, groups_of(3), {"text": 'a "b" c', "numbers": [1, 2.5, None], "score": 0.25})
    path = folder_of(place, 3) / name
    sound, generator = path.read_bytes(), random.Random(name)
    places = range(0, len(sound), 1 if name == "checkpoint.json" else 50)
    flipped = [sound[:at] + bytes([sound[at] ^ 1 << generator.randrange(8)]) + sound[at + 1 :] for at in places]
    for data in [*flipped, *(sound[:size] for size in places), sound + b"\n", sound + b"\0", sound * 2]:
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=f"step-00000003/{name} is damaged"):
            read_all(open_checkpoint(place, 3))
    path.unlink()
    with pytest.raises(DamagedError, match=f"{name} is missing"):
        read_all(open_checkpoint(place, 3))
    path.write_bytes(sound)
    read_all(open_checkpoint(place, 3))


def read_all(checkpoint: Checkpoint) -> Groups:
    return {group: checkpoint.read(group) for group in checkpoint.groups}


def marker_of(place: Place, step: int) -> Path:
    return folder_of(place, step) / "checkpoint.json"


def sign_again(place: Place, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the marker of step 2 and make its checksum right."""
    marker = json.loads(marker_of(place, 2).read_bytes())
    del marker["checksum"]
    change(marker)
    marker_of(place, 2).write_bytes(json_bytes(with_checksum(marker)))


@pytest.mark.parametrize(
    "data",
    [
        save({"a": np.zeros(2, np.uint16)}).replace(b'"U16"', b'"BF16"').replace(b"}} ", b"}}"),  # an unknown type
        whole({"a": np.zeros(3)})[:-1],  # a part of the array
    ],
)
def test_a_file_of_no_arrays_is_damaged_though_its_hash_is_recorded(data: bytes, place: Place, staging: Place) -> None:
    write_some(place, staging, 2)
    (folder_of(place, 2) / "model.safetensors").write_bytes(data)
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    sign_again(place, lambda marker: marker["files"].update({"model.safetensors": facts}))
    with pytest.raises(DamagedError, match="contains no arrays"):
        read_all(open_checkpoint(place, 2))


OTHER_MARKER = "the marker of something else"


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda place: marker_of(place, 2).write_bytes(b"[]\n"), "checkpoint.json is damaged"),
        (lambda place: marker_of(place, 2).write_bytes(b"[" * 100_000), "checkpoint.json is damaged"),
        (lambda place: marker_of(place, 2).write_bytes(marker_of(place, 1).read_bytes()), OTHER_MARKER),
        (lambda place: sign_again(place, lambda marker: marker.pop("files")), OTHER_MARKER),
        (lambda place: sign_again(place, lambda marker: marker["files"].update({"../../x": {}})), OTHER_MARKER),
    ],
    ids=["list", "deep list", "of another step", "no files", "a path"],
)
@pytest.mark.usefixtures("no_collection")
def test_anything_else_in_its_place_is_damaged(
    harm: Callable[[Place], object], line: str, place: Place, staging: Place
) -> None:
    write_some(place, staging, 1, 2)
    harm(place)
    with pytest.raises(DamagedError, match=line):
        read_all(open_checkpoint(place, 2))
    found = store.newest(place)
    assert found is not None
    assert found.step == 1


def test_another_format_is_reported_and_left_alone(place: Place, staging: Place) -> None:
    write_some(place, staging, 1, 2)
    sign_again(place, lambda marker: marker.update(format="ringslice.checkpoint/5"))
    message = r"format 'ringslice.checkpoint/5', this version reads 'ringslice.checkpoint/4'"
    for call in (store.newest, lambda run: restore(run, staging), lambda run: prune(run, staging, 1)):
        with pytest.raises(UsageError, match=message):
            call(place)
    assert steps(place) == [1, 2]
    (Path(place.path) / "checkpoints" / "epoch-0001.json").write_text("{}")
    with pytest.raises(UsageError, match=r"epoch-0001.json is of an earlier version of ringslice; give another --run"):
        restore(place, staging)


@pytest.mark.parametrize("bad", [[30], [30, 20]])
def test_the_one_before_a_damaged_one_is_taken(
    bad: list[int], place: Place, staging: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write_some(place, staging, 10, 20, 30)
    for step, name in zip(bad, ("model.safetensors", "checkpoint.json"), strict=False):
        flip_bit(folder_of(place, step) / name, -9)
    sound = [step for step in (10, 20, 30) if step not in bad]
    step, groups = restored(place, staging)
    assert step == sound[-1]
    require_seed(groups, step)
    for line, each in zip(capsys.readouterr().err.splitlines(), bad, strict=True):
        assert line.startswith(f"ringslice train: {folder_of(place, each)}/")
        assert line.endswith(f"; step-{each:08d} is removed, step-{step:08d} is taken instead")
    assert steps(place) == sound
    assert restored(place, staging)[0] == sound[-1]
    assert capsys.readouterr().err == ""
    write_some(place, staging, 30)
    assert restored(place, staging)[0] == 30


def test_where_all_are_damaged_nothing_is_removed(place: Place, staging: Place) -> None:
    write_some(place, staging, 10, 20)
    for step in (10, 20):
        flip_bit(folder_of(place, step) / "model.safetensors", -9)
    with pytest.raises(DataError, match=r"step-00000020/model.safetensors is damaged.*no other checkpoint of"):
        restore(place, staging)
    assert steps(place) == [10, 20]


def test_one_that_is_removed_meanwhile_is_not_damaged(
    place: Place, staging: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write_some(place, staging, 10, 20)

    def go_on() -> None:
        if steps(place) == [10, 20]:
            write_some(place, staging, 30)
            prune(place, staging, 1)

    found = restore(place, staging, go_on)
    assert found is not None
    assert found[0].step == 30
    require_seed(found[1], 30)
    assert capsys.readouterr().err == ""


def test_storage_that_fails_is_no_damage(place: Place, staging: Place) -> None:
    write_some(place, staging, 10, 20)
    counted = Fault()
    restore(faulty(place, counted), faulty(staging, counted))
    assert counted.calls.count(READ) == 3
    for number in range(1, len(counted.calls) + 1):
        fault = Fault(number)
        with pytest.raises(FaultError):
            restore(faulty(place, fault), faulty(staging, fault))
        assert steps(place) == [10, 20]


CHANGES: dict[str, Callable[[Place, Place], object]] = {
    "new step": lambda run, staging: write(run, staging, 40, groups_of(1), {"score": None}),
    "same step": lambda run, staging: write(run, staging, 30, groups_of(1), {"score": None}),
    "amend": lambda run, staging: store.amend(run, staging, 30, {"score": 0.75}),
    "prune": lambda run, staging: prune(run, staging, 1),
}
BEGIN = (30, 30, None)  # the step of the newest checkpoint that is whole, the seed of its arrays, and its score
ENDS = {"new step": (40, 1, None), "same step": (30, 1, None), "amend": (30, 30, 0.75), "prune": BEGIN}


@pytest.mark.witness
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_whenever_a_change_is_killed_what_is_there_is_whole(name: str, after: bool, dies: bool, tmp_path: Path) -> None:
    """The checkpoint of before, or the new one; while one of the same step is replaced, the one before it."""
    found, fault = set(), Fault()
    while not fault.number or fault.hit:
        fault = Fault(fault.number + 1, after, dies)
        folder = tmp_path / str(fault.number)
        place, dead, staging = (open_place(str(folder / each)).make_folder() for each in ("run", "dead", "next"))
        write_some(place, dead, 10, 20, score=0.5)
        write_some(place, dead, 30)
        try:
            CHANGES[name](faulty(place, fault), faulty(dead, fault))
        except (FaultError, EnvironmentFailure):
            assert fault.hit
        dead.delete()  # as the next one to hold the run does
        for step in steps(place):
            read_all(open_checkpoint(place, step))
        found.add(newest_of(place, staging))
        CHANGES[name](place, staging)
        assert newest_of(place, staging) == ENDS[name]
        assert staging.children() == []
    between = {(20, 20, 0.5)} if name == "same step" else {BEGIN}
    # the first call takes the marker of the same step away; the last one gives the new one its name
    assert found == between | {ENDS[name]} | (set() if after else {BEGIN})
    assert "rename" in fault.calls


def newest_of(place: Place, staging: Place) -> tuple[int, int, float | None]:
    step, groups = restored(place, staging)
    seed = int(groups["model"]["0001-count"])
    require_seed(groups, seed)
    return step, seed, open_checkpoint(place, step).marker["score"]


scores_by_step = st.dictionaries(
    st.integers(0, 1000), st.none() | st.floats(allow_nan=True) | st.sampled_from([0.1, 0.2]), max_size=12
)


@given(scores_by_step, st.integers(1, 14))
def test_the_newest_and_the_best_stay(scores: dict[int, float | None], keep: int) -> None:
    known = [(score, -step) for step, score in scores.items() if score is not None and score == score]
    best = [-max(known)[1]] if known else []
    assert kept(scores, keep) == {*sorted(scores)[-keep:], *best}


def test_old_ones_go_and_the_best_stays(place: Place, staging: Place) -> None:
    for step, score in ((10, 0.5), (20, 0.9), (30, 0.9), (40, None), (50, None), (60, 0.1)):
        write_some(place, staging, step, score=score)
    write(place, staging, 70, groups_of(70), {})
    flip_bit(folder_of(place, 30) / "checkpoint.json", -9)
    for killed in (5, 80):
        folder_of(place, killed).mkdir()
        (folder_of(place, killed) / "model.safetensors").write_bytes(b"half")
    prune(place, staging, keep=2)
    assert steps(place) == [20, 60, 70]
    assert sorted(path.name for path in folder_of(place, 0).parent.iterdir()) == [
        f"step-{n:08d}" for n in (20, 60, 70, 80)
    ]
    assert staging.children() == []
    prune(place, staging, keep=9)
    assert steps(place) == [20, 60, 70]
