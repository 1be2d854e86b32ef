"""Checkpoints: what comes back, what is damaged, who dies when, and which ones stay."""

import hashlib
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.storage.json_files import json_bytes, with_checksum
from etl.storage.place import Place, open_place
from tests.lib.commands import flip_bit
from tests.lib.faults import READ, Fault, FaultError, faulty
from tests.train.checkpoints.test_safetensors_file import same
from train.checkpoints import store
from train.checkpoints.safetensors_file import PIECE_BYTES, Arrays
from train.checkpoints.store import (
    READ_BYTES,
    Checkpoint,
    DamagedError,
    open_checkpoint,
    outdated,
    prune,
    restore,
    steps,
    write,
)

Groups = dict[str, Arrays]


def groups_of(seed: int) -> Groups:
    """Small arrays; another seed, other values in each file."""
    generator = np.random.default_rng(seed)
    model = {"0000-kernel": generator.random((3, 4), np.float32), "0001-count": np.array(seed)}
    return {"model": model, "optimizer": {"0000-velocity": generator.random(5, np.float32)}}


def write_some(place: Place, attempts: Place, *numbers: int, score: float | None = None) -> None:
    for step in numbers:
        write(place, attempts, step, groups_of(step), {"score": score})


def folder_of(place: Place, step: int) -> Path:
    return Path(place.path) / "checkpoints" / f"step-{step:08d}"


def damage(place: Place, step: int, name: str = "model.safetensors") -> None:
    flip_bit(folder_of(place, step) / name, -9)


def restored(place: Place, attempts: Place | None = None) -> tuple[int, Groups]:
    found = restore(place, attempts)
    assert found is not None
    checkpoint, groups = found
    return checkpoint.step, groups


def require_seed(groups: Groups, seed: int) -> None:
    """All arrays are those of this seed, not some of them."""
    assert groups.keys() == groups_of(seed).keys()
    assert all(same(groups[group], arrays) for group, arrays in groups_of(seed).items())


def test_a_checkpoint_comes_back(place: Place, attempts: Place) -> None:
    assert (store.newest(place), steps(place), restore(place)) == (None, [], None)
    facts = {"reader": {"left": ((0, 7), (9, 12))}, "by_rank": {10: "b", 9: "a"}, "loss": 1e300, "score": 0.5}
    made = write(place, attempts, 150, {**groups_of(1), "empty": {}}, facts)
    assert (made.step, made.name, made.groups) == (150, "step-00000150", ["model", "optimizer", "empty"])
    assert store.newest(place) == made == open_checkpoint(place, 150)
    written = facts | {"reader": {"left": [[0, 7], [9, 12]]}, "by_rank": {"10": "b", "9": "a"}}
    assert {name: value for name, value in made.marker.items() if name not in store.OWN_FACTS} == written
    step, groups = restored(place)
    assert (step, groups.pop("empty")) == (150, {})
    require_seed(groups, 1)
    assert same(made.read("model"), groups_of(1)["model"])
    assert attempts.children() == []
    with pytest.raises(UsageError, match="step-00000150 has no 'weights', it has model, optimizer, empty"):
        made.read("weights")


def test_steps_go_by_number(place: Place, attempts: Place) -> None:
    numbers = [0, 9, 10, 99_999_999, 100_000_000]
    write_some(place, attempts, *reversed(numbers))
    for other in ("step-7", "step-0000000x", "step--0000001", "notes", "step-00000005"):  # the last has no marker
        (Path(place.path) / "checkpoints" / other).mkdir()
    assert steps(place) == numbers
    assert restored(place)[0] == 100_000_000


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors"])
def test_flipped_bytes_and_truncations_are_found(name: str, place: Place, attempts: Place) -> None:
    write(place, attempts, 3, groups_of(3), {"text": 'a "b" c', "numbers": [1, 2.5, None], "score": 0.25})
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


def pickle_arrays(place: Place) -> None:
    """A pickle in place of arrays, and a marker that fits it."""
    data = pickle.dumps({})
    (folder_of(place, 2) / "model.safetensors").write_bytes(data)
    facts = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    sign_again(place, lambda marker: marker["files"].update({"model.safetensors": facts}))


OUTSIDE: dict[str, dict[str, object]] = {"../../secret.safetensors": {}}
HARMS: dict[str, tuple[Callable[[Place], object], str]] = {
    "list": (lambda place: marker_of(place, 2).write_bytes(b"[]\n"), "checkpoint.json is damaged"),
    "deep list": (lambda place: marker_of(place, 2).write_bytes(b"[" * 100_000), "checkpoint.json is damaged"),
    "pickle": (lambda place: marker_of(place, 2).write_bytes(pickle.dumps({})), "checkpoint.json is damaged"),
    "of another step": (
        lambda place: marker_of(place, 2).write_bytes(marker_of(place, 1).read_bytes()),
        "the marker of something else",
    ),
    "no files": (lambda place: sign_again(place, lambda marker: marker.pop("files")), "the marker of something else"),
    "a path": (
        lambda place: sign_again(place, lambda marker: marker["files"].update(OUTSIDE)),
        "the marker of something else",
    ),
    "arrays": (pickle_arrays, "contains no arrays"),
}


@pytest.mark.parametrize("name", HARMS)
@pytest.mark.usefixtures("no_collection")
def test_anything_else_in_its_place_is_damaged(name: str, place: Place, attempts: Place) -> None:
    harm, line = HARMS[name]
    write_some(place, attempts, 1, 2)
    harm(place)
    with pytest.raises(DamagedError, match=line):
        read_all(open_checkpoint(place, 2))
    found = store.newest(place)
    assert found is not None
    assert found.step == (2 if name == "arrays" else 1)


def test_another_format_is_reported_and_left_alone(place: Place, attempts: Place) -> None:
    write_some(place, attempts, 1, 2)
    sign_again(place, lambda marker: marker.update(format="ringslice.checkpoint/5"))
    message = r"format 'ringslice.checkpoint/5', this version reads 'ringslice.checkpoint/4'"
    for call in (store.newest, lambda run: restore(run, attempts), lambda run: prune(run, attempts, 1)):
        with pytest.raises(UsageError, match=message):
            call(place)
    assert steps(place) == [1, 2]
    (Path(place.path) / "checkpoints" / "epoch-0001.json").write_text("{}")
    with pytest.raises(UsageError, match=r"epoch-0001.json is of an earlier version of ringslice; give another --run"):
        restore(place, attempts)


@pytest.mark.parametrize("bad", [[30], [30, 20]])
def test_a_damaged_one_is_reported_and_the_one_before_is_taken(
    bad: list[int], place: Place, attempts: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write_some(place, attempts, 10, 20, 30)
    for step, name in zip(bad, ("model.safetensors", "checkpoint.json"), strict=False):
        damage(place, step, name)
    sound = [step for step in (10, 20, 30) if step not in bad]
    for holder, what in ((None, "is passed over"), (attempts, "is removed")):
        step, groups = restored(place, holder)
        assert step == sound[-1]
        require_seed(groups, step)
        for line, each in zip(capsys.readouterr().err.splitlines(), bad, strict=True):
            assert line.startswith(f"ringslice train: {folder_of(place, each)}/")
            assert line.endswith(f"; step-{each:08d} {what}, step-{step:08d} is taken instead")
        assert steps(place) == ([10, 20, 30] if holder is None else sound)
    assert restored(place, attempts)[0] == sound[-1]
    assert capsys.readouterr().err == ""
    write_some(place, attempts, 30)
    assert restored(place)[0] == 30


def test_where_all_are_damaged_nothing_is_removed(place: Place, attempts: Place) -> None:
    write_some(place, attempts, 10, 20)
    for step in (10, 20):
        damage(place, step)
    with pytest.raises(DataError, match=r"step-00000020/model.safetensors is damaged.*no other checkpoint of"):
        restore(place, attempts)
    assert steps(place) == [10, 20]


def test_one_that_its_trainer_removes_meanwhile_is_not_damaged(
    place: Place, attempts: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    write_some(place, attempts, 10, 20)

    def go_on() -> None:
        if steps(place) == [10, 20]:
            write_some(place, attempts, 30)
            prune(place, attempts, 1)

    found = restore(place, tick=go_on)
    assert found is not None
    assert found[0].step == 30
    require_seed(found[1], 30)
    assert capsys.readouterr().err == ""


def test_storage_that_fails_is_no_damage(place: Place, attempts: Place) -> None:
    write_some(place, attempts, 10, 20)
    counted = Fault()
    restore(faulty(place, counted), faulty(attempts, counted))
    assert counted.calls.count(READ) == 3
    for number in range(1, len(counted.calls) + 1):
        fault = Fault(number)
        with pytest.raises(FaultError):
            restore(faulty(place, fault), faulty(attempts, fault))
        assert steps(place) == [10, 20]


@pytest.mark.witness
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("seed_before", [None, 5], ids=["new step", "same step"])
def test_whenever_it_is_killed_one_is_whole(tmp_path: Path, seed_before: int | None, after: bool, dies: bool) -> None:
    """The one before, or the new one; where there was another of the same step, that one too."""
    counted = Fault()
    kill_and_go_on(tmp_path / "counted", counted, seed_before)
    assert {"create", "write", "close", "rename"} <= set(counted.calls)
    faults = [Fault(number, after, dies) for number in range(1, len(counted.calls) + 1)]
    taken = {kill_and_go_on(tmp_path / str(fault.number), fault, seed_before) for fault in faults}
    # the first call takes the marker before away, the last one gives the new one its name
    at_an_end = [(20, 1)] if after else [(20, seed_before)] if seed_before else []
    assert taken == {(10, 10), *at_an_end}


def kill_and_go_on(folder: Path, fault: Fault, seed_before: int | None) -> tuple[int, int]:
    """Write step 20 with a fault; returns the step that is restored then, and the seed of its arrays."""
    place, dead, attempts = (open_place(str(folder / name)).make_folder() for name in ("run", "dead", "next"))
    write_some(place, dead, 10)
    if seed_before is not None:
        write(place, dead, 20, groups_of(seed_before), {})
    try:
        write(faulty(place, fault), faulty(dead, fault), 20, groups_of(1), {})
    except (FaultError, EnvironmentFailure):
        assert fault.hit
    dead.delete()  # as the next one to hold the run does
    for finished in steps(place):
        read_all(open_checkpoint(place, finished))
    step, groups = restored(place, attempts)
    seed = int(groups["model"]["0001-count"])
    require_seed(groups, seed)
    assert (step, seed) in {(10, 10), (20, 1), (20, seed_before)}
    write(place, attempts, 20, groups_of(2), {})
    require_seed(restored(place)[1], 2)
    assert attempts.children() == []
    return step, seed


CHANGES: dict[str, Callable[[Place, Place], object]] = {
    "amend": lambda run, attempts: store.amend(run, attempts, 30, {"score": 0.75}),
    "prune": lambda run, attempts: prune(run, attempts, 1),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_whenever_a_change_is_killed_checkpoints_are_whole(name: str, after: bool, tmp_path: Path) -> None:
    """And their facts are those of before or the new ones."""
    scores, fault = set(), Fault(0, after, dies=True)
    while not fault.number or fault.hit:
        fault = Fault(fault.number + 1, after, dies=True)
        folder = tmp_path / str(fault.number)
        place, dead, attempts = (open_place(str(folder / each)).make_folder() for each in ("run", "dead", "next"))
        write_some(place, dead, 10, 20, score=0.5)
        write_some(place, dead, 30)
        try:
            CHANGES[name](faulty(place, fault), faulty(dead, fault))
        except (FaultError, EnvironmentFailure):
            assert fault.hit
        dead.delete()
        for step in steps(place):
            require_seed(read_all(open_checkpoint(place, step)), step)
        scores.add(open_checkpoint(place, 30).marker["score"])
        CHANGES[name](place, attempts)
        assert steps(place) == ([10, 20, 30] if name == "amend" else [10, 30])
    assert scores == ({None, 0.75} if name == "amend" else {None})


def test_what_is_amended_must_be_there(place: Place, attempts: Place) -> None:
    write_some(place, attempts, 10)
    with pytest.raises(DamagedError, match=r"step-00000020/checkpoint.json is missing"):
        store.amend(place, attempts, 20, {})
    with pytest.raises(ValueError, match="records its step itself"):
        store.amend(place, attempts, 10, {"step": 20})


def test_who_was_replaced_changes_nothing(place: Place, attempts: Place, tmp_path: Path) -> None:
    gone = open_place(str(tmp_path / "gone"))
    write_some(place, attempts, 10, 20, 30)
    for call in (
        lambda: write_some(place, gone, 20),
        lambda: write_some(place, gone, 40),
        lambda: prune(place, gone, 1),
    ):
        with pytest.raises(EnvironmentFailure, match="another run has taken this stage over"):
            call()
        for step in (10, 20, 30):
            require_seed(read_all(open_checkpoint(place, step)), step)
    assert steps(place) == [10, 20, 30]


def test_ticks_come_while_bytes_go_and_come(place: Place, attempts: Place) -> None:
    ticks: list[int] = []
    groups = {"model": {"a": np.zeros(3 * READ_BYTES, np.uint8)}}
    made = write(place, attempts, 1, groups, {}, tick=lambda: ticks.append(0))
    written = 1 + 3 * READ_BYTES // PIECE_BYTES
    assert len(ticks) == written
    made.read("model", lambda: ticks.append(0))
    assert len(ticks) == written + 4
    restore(place, attempts, lambda: ticks.append(0))
    assert len(ticks) == written + 4 + 4


@pytest.mark.parametrize("name", ["", "../model"])
def test_a_group_has_a_plain_name(name: str, place: Place, attempts: Place) -> None:
    with pytest.raises(ValueError, match="is not a name of a group"):
        write(place, attempts, 1, {name: {}}, {})
    with pytest.raises(ValueError, match="records its files itself"):
        write(place, attempts, 1, {}, {"files": {}})
    assert steps(place) == []


scores_by_step = st.dictionaries(
    st.integers(0, 1000), st.none() | st.floats(allow_nan=True) | st.sampled_from([0.1, 0.2]), max_size=12
)


@given(scores_by_step, st.integers(1, 14))
def test_the_newest_and_the_best_stay(scores: dict[int, float | None], keep: int) -> None:
    goes = outdated(scores, keep)
    stays = [step for step in sorted(scores) if step not in goes]
    assert goes == sorted(set(goes) & scores.keys())
    assert stays[-keep:] == sorted(scores)[-keep:]
    known = [(score, -step) for step, score in scores.items() if score is not None and score == score]
    best = [-max(known)[1]] if known else []
    assert stays[:-keep] == [step for step in best if step not in stays[-keep:]]


def test_old_ones_go_and_the_best_stays(place: Place, attempts: Place) -> None:
    for step, score in ((10, 0.5), (20, 0.9), (30, 0.9), (40, None), (50, None), (60, 0.1)):
        write_some(place, attempts, step, score=score)
    write(place, attempts, 70, groups_of(70), {})
    damage(place, 30, "checkpoint.json")
    for killed in (5, 80):
        folder_of(place, killed).mkdir()
        (folder_of(place, killed) / "model.safetensors").write_bytes(b"half")
    prune(place, attempts, keep=2)
    assert steps(place) == [20, 60, 70]
    assert sorted(path.name for path in folder_of(place, 0).parent.iterdir()) == [
        f"step-{n:08d}" for n in (20, 60, 70, 80)
    ]
    assert attempts.children() == []
    prune(place, attempts, keep=9)
    assert steps(place) == [20, 60, 70]
