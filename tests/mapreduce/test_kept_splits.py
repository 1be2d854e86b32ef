"""Splits that are kept from night to night, by the real stages in process; see also tests/test_split_histories.py."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from etl.errors import UsageError
from etl.slices.history import read_keys
from etl.slices.prune import prune
from etl.storage.place import open_place
from etl.verify.target import Target
from mapreduce import shard as shard_module
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.lib.commands import contents
from tests.lib.inline import refused, run_here, shard_here
from tests.lib.nights import SHARES, Nights, nights, patients, some_png, splits_of_patients

__all__ = ["nights"]  # a fixture

NEWEST = ("--splits-from", "newest")


def test_assignments_that_tasks_may_read_stay_unless_they_are_others(nights: Nights, tmp_path: Path) -> None:
    nights.night()
    nights.night()
    plan, file = Target.find(open_place(str(nights.root)), "night-2").plan_again(), tmp_path / "assignments.parquet"
    staging = open_place(str(tmp_path / "staging")).make_folder()
    written = plan.write_assignment(open_place(str(file)), staging)
    assert written is not None
    first, data = file.stat().st_ino, file.read_bytes()
    plan.write_assignment(written, staging)
    assert (file.stat().st_ino, file.read_bytes()) == (first, data)
    file.write_bytes(b"of another plan")
    plan.write_assignment(written, staging)
    assert file.read_bytes() == data
    assert not contents(tmp_path / "staging")


def test_a_corrected_group_is_named_with_a_remedy(nights: Nights, tmp_path: Path) -> None:
    """A second conflict does not remove the first from the list."""
    table = patients(nights, tmp_path)
    first = nights.night("--group-by", "patient", columns=table)
    by_patient = splits_of_patients(nights, table)
    trained = next(patient for patient, split in by_patient.items() if split == "train")
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    one, two = [key for key, patient in patient_of.items() if by_patient[patient] == "test"][:2]
    words = (*SHARES, "--name", "x", *NEWEST, "--group-by", "patient")
    listed = nights.root / "slices/x.conflicts.txt"
    for change, removing in ({one: trained}, ()), ({one: trained, two: trained}, ("--remove", listed)):
        nights.ingest(columns=patients(nights, tmp_path, change))
        refused(Shard, 1, "1 images were in another split than their patient is: ", nights.root, *words, *removing)
    shard_here(nights.root, *words, "--remove", listed)
    assert nights.splits("x").items() <= first.items()
    line = "those slices keep each 'patient' in one split; give --group-by patient too"
    for other in ((), ("--group-by", "day")):
        refused(Shard, 2, line, nights.root, *SHARES, "--name", "y", *NEWEST, *other)


def test_keys_to_remove_that_nothing_is_known_by(
    nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.ingest()
    listed = tmp_path / "gone.txt"
    listed.write_text("\ufeffant/003.png\n./ant/004.png\n bee/001.png\nbee/002.pgn\n", encoding="utf-8")
    shard_here(nights.root, *SHARES, "--remove", listed)
    line = "3 of 4 keys are unknown: ' bee/001.png', './ant/004.png', 'bee/002.pgn'"
    assert f"--remove {listed}: {line}" in capsys.readouterr().err
    listed.write_text("./ant/004.png\nbee/002.pgn\n")
    line = "2 of 2 keys are unknown: './ant/004.png', 'bee/002.pgn'; give keys as"
    refused(Shard, 2, line, nights.root, *SHARES, "--name", "x", "--remove", listed)


def test_a_list_of_classes_grows_at_its_end(nights: Nights, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text("owl\nant\nbee\n")
    before = nights.night(classes=str(listed))
    for name in ("cat", "dog"):
        shutil.copytree(nights.source / "bee", nights.source / name)
        for number, path in enumerate(sorted((nights.source / name).iterdir())):
            path.write_bytes(some_png(ord(name[0]) * 100 + number))
    listed.write_text("owl\nant\nbee\ndog\ncat\n")
    after = nights.night(classes=str(listed))
    assert before.items() <= after.items()
    assert len(after) == len(before) + 40
    raw = json.loads((nights.root / "raw/dataset.json").read_text())
    assert raw["classes"] == raw["config"]["classes"] == ["owl", "ant", "bee", "dog", "cat"]
    assert raw["counts"]["by_class"] == [0, 20, 20, 20, 20]
    rows = pq.read_table(nights.root / "slices/night-2/examples.parquet").to_pylist()
    labels = {row["key"].split("/")[0]: row["label"] for row in rows}
    assert labels == {"ant": 1, "bee": 2, "dog": 3, "cat": 4}
    normalized = json.loads((nights.root / "normalized/dataset.json").read_text())
    assert normalized["counts"]["by_class"] == [0, 20, 20, 20, 20]
    run_here(Verify, nights.root, "--name", "night-2", "--every-stage")
    marker = (nights.root / "raw/dataset.json").read_bytes()
    nights.ingest(classes=str(listed))
    assert (nights.root / "raw/dataset.json").read_bytes() == marker


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("owl\nant\n", r"line 3 is missing, but .* was made with 'bee';"),
        ("owl\nbee\nant\ncat\n", r"line 2 is 'bee', but .* was made with 'ant'; a list may only grow at its end"),
    ],
)
def test_a_list_of_classes_that_differs_at_its_beginning_is_refused(
    names: str, line: str, nights: Nights, tmp_path: Path
) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text("owl\nant\nbee\n")
    nights.ingest(classes=str(listed))
    before = contents(nights.root)
    listed.write_text(names)
    with pytest.raises(UsageError, match=line) as raised:
        nights.ingest(classes=str(listed))
    assert "\n" not in str(raised.value)
    assert contents(nights.root) == before


def kill(monkeypatch: pytest.MonkeyPatch, nights: Nights, *words: object) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shard_module, "build_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shard_here(nights.root, *SHARES, *words)


def test_a_killed_experiment_resumed_with_newest_begins_no_second_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nights.night()
    kill(monkeypatch, nights, "--seed", 7, "--name", "x")
    shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x", "--splits-from", "newest")
    assert nights.splits("x") == first
    assert nights.night() == first


def test_a_killed_night_that_is_tried_again_after_the_next_does_not_block_the_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nights.night()
    kill(monkeypatch, nights, "--name", "late", "--splits-from", "newest")
    assert nights.night() == first
    with suppress(UsageError):
        shard_here(nights.root, *SHARES, "--name", "late", "--splits-from", "newest")
    assert nights.night() == first


def test_a_night_is_done_before_though_its_parent_is_pruned(nights: Nights) -> None:
    nights.night()
    nights.night()
    prune(open_place(str(nights.root)), keep=1)
    shard_here(nights.root, *SHARES, "--splits-from", "newest", "--name", "night-2")


def test_a_key_of_odd_blanks_can_be_listed(tmp_path: Path) -> None:
    listed = tmp_path / "gone.txt"
    listed.write_text(" \n\u3000\nk0\n", encoding="utf-8")  # as ROOT/slices/NAME.conflicts.txt is written
    assert set(read_keys(open_place(str(listed)))) == {" ", "\u3000", "k0"}
