"""Splits that are kept from night to night, by the real stages in process; see also tests/test_split_histories.py."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from etl.errors import UsageError
from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import Origin
from etl.slices.history import read_keys
from etl.slices.prune import prune
from etl.storage.place import open_place
from etl.verify.target import Target
from mapreduce import normalize as normalize_module
from mapreduce import shard as shard_module
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.conftest import TreeMaker
from tests.lib.commands import contents
from tests.lib.inline import ingest_here, normalize_here, refused, run_here, shard_here
from tests.lib.nights import some_png

SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5")
NEWEST = ("--splits-from", "newest")


class Nights:
    """A source and its root, night by night."""

    def __init__(self, source: Path, root: Path) -> None:
        self.source, self.root = source, root
        self.number = 0

    def ingest(self, **values: object) -> None:
        ingest_here(self.source, self.root, max_removed="1", **values)  # type: ignore[arg-type]
        normalize_here(self.root, "--size", 8, "--format", "raw")

    def night(self, *words: object, **values: object) -> dict[bytes, str]:
        """The split of each content, after all stages."""
        self.ingest(**values)
        self.number += 1
        name = f"night-{self.number}"
        shard_here(self.root, *SHARES, *NEWEST, "--name", name, *words)
        run_here(Verify, self.root, "--name", name)
        return self.splits(name)

    def splits(self, name: str) -> dict[bytes, str]:
        rows = pq.read_table(self.root / "slices" / name / "examples.parquet").to_pylist()
        return {row["sha256"]: row["split"] for row in rows}


@pytest.fixture
def nights(make_tree: TreeMaker, tmp_path: Path) -> Nights:
    return Nights(make_tree({"ant": 20, "bee": 20}), tmp_path / "root")


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
    table = tmp_path / "patients.csv"
    keys = sorted(str(path.relative_to(nights.source)) for path in nights.source.rglob("*.png"))
    patient_of = {key: f"patient-{number // 4}" for number, key in enumerate(keys)}

    def write_table(patient_of: dict[str, str]) -> str:
        table.write_text("key,patient\n" + "".join(f"{key},{patient}\n" for key, patient in patient_of.items()))
        return str(table)

    first = nights.night("--group-by", "patient", columns=write_table(patient_of))
    rows = pq.read_table(nights.root / "slices/night-1/examples.parquet").to_pylist()
    trained = next(patient_of[row["key"]] for row in rows if row["split"] == "train")
    one, two = [row["key"] for row in rows if row["split"] == "test"][:2]
    words = (*SHARES, "--name", "x", *NEWEST, "--group-by", "patient")
    listed = nights.root / "slices/x.conflicts.txt"
    for change, removing in ({one: trained}, ()), ({one: trained, two: trained}, ("--remove", listed)):
        nights.ingest(columns=write_table(patient_of | change))
        refused(Shard, 1, "1 images were in another split than their patient is: ", nights.root, *words, *removing)
    shard_here(nights.root, *words, "--remove", listed)
    assert nights.splits("x").items() <= first.items()
    line = "those slices keep each 'patient' in one split; give --group-by patient too"
    for other in ((), ("--group-by", "day")):
        refused(Shard, 2, line, nights.root, *SHARES, "--name", "y", *NEWEST, *other)


def test_unknown_keys_to_remove_are_named(nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights.ingest()
    listed = tmp_path / "gone.txt"
    listed.write_text("\ufeffant/003.png\n./ant/004.png\n bee/001.png\nbee/002.pgn\n", encoding="utf-8")
    shard_here(nights.root, *SHARES, "--remove", listed)
    line = "3 of 4 keys are unknown: ' bee/001.png', './ant/004.png', 'bee/002.pgn'"
    assert f"--remove {listed}: {line}" in capsys.readouterr().err
    listed.write_text("./ant/004.png\nbee/002.pgn\n")
    line = "2 of 2 keys are unknown: './ant/004.png', 'bee/002.pgn'; give keys as"
    refused(Shard, 2, line, nights.root, *SHARES, "--name", "x", "--remove", listed)


def test_a_list_of_classes_may_only_grow_at_its_end(nights: Nights, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text("owl\nant\nbee\n")
    before = nights.night(classes=str(listed))
    made = contents(nights.root)
    for names, line in (
        ("owl\nant\n", r"line 3 is missing, but .* was made with 'bee';"),
        ("owl\nbee\nant\ncat\n", r"line 2 is 'bee', but .* was made with 'ant'; a list may only grow at its end"),
    ):
        listed.write_text(names)
        with pytest.raises(UsageError, match=line):
            nights.ingest(classes=str(listed))
    assert contents(nights.root) == made
    (nights.source / "cat").mkdir()
    (nights.source / "cat/0.png").write_bytes(some_png(0))
    listed.write_text("owl\nant\nbee\ndog\ncat\n")
    after = nights.night(classes=str(listed))
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    rows = pq.read_table(nights.root / "slices/night-2/examples.parquet").to_pylist()
    assert {row["key"].split("/")[0]: row["label"] for row in rows} == {"ant": 1, "bee": 2, "cat": 4}
    marker = (nights.root / "raw/dataset.json").read_bytes()
    nights.ingest(classes=str(listed))
    assert (nights.root / "raw/dataset.json").read_bytes() == marker


def test_a_killed_run_neither_begins_a_lineage_nor_blocks_one(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nights.night()
    for name, words in (("experiment", ("--seed", 7)), ("late", NEWEST)):
        with monkeypatch.context() as patched:
            patched.setattr(shard_module, "build_manifest", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                shard_here(nights.root, *SHARES, *words, "--name", name)
    shard_here(nights.root, *SHARES, "--seed", 7, "--name", "experiment", *NEWEST)
    assert nights.splits("experiment") == first
    assert nights.night() == first
    with suppress(UsageError):
        shard_here(nights.root, *SHARES, "--name", "late", *NEWEST)
    assert nights.night() == first


def test_a_night_is_done_before_though_its_parent_is_pruned(nights: Nights) -> None:
    nights.night()
    nights.night("--slices", 3)  # rounded up to a multiple of the workers
    prune(open_place(str(nights.root)), keep=1)
    again = (*NEWEST, "--name", "night-2")
    shard_here(nights.root, *SHARES, *again, "--slices", 3)
    for other in ((*SHARES, "--slice-size", "1KB"), ("--workers", 2, "--slices", 3)):
        refused(Shard, 2, "--overwrite", nights.root, *other, *again)


def test_a_key_of_odd_blanks_can_be_listed(tmp_path: Path) -> None:
    listed = tmp_path / "gone.txt"
    listed.write_text(" \n\u3000\nk0\n", encoding="utf-8")  # as ROOT/slices/NAME.conflicts.txt is written
    assert set(read_keys(open_place(str(listed)))) == {" ", "\u3000", "k0"}


@pytest.mark.witness
@pytest.mark.integration
def test_ten_nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One percent new images each, one gone, one removed for good; no key changes its split, and only what is new is
    decoded.
    """
    nights, listed = Nights(tmp_path / "source", tmp_path / "root"), tmp_path / "removed.txt"
    decoded, removed, split_of = set[str](), set[str](), dict[str, str]()

    def counting(raw: Any, normalized: Any, origin: Origin, *rest: Any, **more: Any) -> object:
        decoded.add(origin.pack)
        return normalize_pack(raw, normalized, origin, *rest, **more)

    monkeypatch.setattr(normalize_module, "normalize_pack", counting)
    for night in range(11):
        for image in range(400) if night == 0 else range(396 + 4 * night, 400 + 4 * night):
            path = nights.source / ("ant", "bee", "cat")[image % 3] / f"{image:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(some_png(image))
        gone, *tonight = sorted(nights.source.rglob("*.png"))[7 * night : 7 * night + 2]
        gone.unlink()
        removed |= (keys := {str(path.relative_to(nights.source)) for path in tonight})
        listed.write_text("".join(f"{key}\n" for key in keys))  # those of nights before are remembered
        there = {str(path.relative_to(nights.source)) for path in nights.source.rglob("*.png")}
        before = {path: path.stat().st_mtime_ns for path in (nights.root / "normalized/parts").glob("*")}
        decoded.clear()
        nights.ingest(pack_size="16KB")
        shard_here(nights.root, *SHARES, *NEWEST, "--name", f"night-{night}", "--remove", listed)
        rows = pq.read_table(nights.root / f"slices/night-{night}/examples.parquet").to_pylist()
        assert Counter(row["key"] for row in rows) == Counter(there - removed)
        for row in rows:
            assert split_of.setdefault(row["key"], row["split"]) == row["split"], (night, row["key"])
        if night:
            assert decoded == {row["source"] for row in rows} - {path.stem for path in before}
            assert json.loads((nights.root / "normalized/run.json").read_text())["decoded"] <= 6
            assert {path: path.stat().st_mtime_ns for path in before} == before
    for name in ("night-10", "night-5"):  # whose generation is kept
        run_here(Verify, nights.root, "--name", name)
