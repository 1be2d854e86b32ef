"""Random histories of a source, night after night: no content and no group ever changes its split."""

import hashlib
import io
import random
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etl.slices.group_assignment import GroupConflict
from etl.slices.prune import prune
from etl.storage.place import open_place
from mapreduce.verify import Verify
from tests.lib.inline import erase_here, ingest_here, normalize_here, run_here, shard_here
from tests.lib.nights import some_png

CLASSES, PATIENTS = "ab", 6


@dataclass(frozen=True)
class Picture:
    """A file of the source: the number of its content, and its patient."""

    content: int
    patient: str


@dataclass
class History:
    """A source, the root made of it, and what each night has shown so far."""

    folder: Path
    random: random.Random
    grouped: bool
    files: dict[str, Picture] = field(default_factory=dict)
    gone: list[Picture] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    ingested: dict[str, Picture] = field(default_factory=dict)
    erased: set[int] = field(default_factory=set)
    contents: int = 0
    nights: int = 0
    split_of_content: dict[bytes, str] = field(default_factory=dict)
    split_of_group: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def new_path(self) -> str:
        return f"{self.random.choice(CLASSES)}/{self.random.getrandbits(64):016x}.png"

    def some(self) -> list[str]:
        return self.random.sample(sorted(self.files), min(len(self.files), self.random.randint(1, 4)))

    def add(self, number: int = 4) -> None:
        for _ in range(number):
            self.contents += 1
            self.files[self.new_path()] = Picture(self.contents, f"p{self.random.randrange(PATIENTS + self.nights)}")

    def remove(self) -> None:
        self.gone += [self.files.pop(path) for path in self.some()]

    def come_back(self) -> None:
        """What was removed comes back, under another name."""
        for picture in self.gone:
            self.files[self.new_path()] = picture
        self.gone = []

    def rename(self) -> None:
        """Also between classes."""
        for path in self.some():
            self.files[self.new_path()] = self.files.pop(path)

    def change(self) -> None:
        for path in self.some():
            self.contents += 1
            self.files[path] = Picture(self.contents, self.files[path].patient)

    def exchange(self) -> None:
        """Files that change their contents with each other: moved and changed at once."""
        some = self.some()
        for path, picture in zip(some, [self.files[other] for other in (*some[1:], some[0])], strict=True):
            self.files[path] = picture

    def duplicate(self) -> None:
        for path in self.some():
            patient = self.random.choice([self.files[path].patient, f"p{self.random.randrange(PATIENTS)}"])
            self.files[self.new_path()] = Picture(self.files[path].content, patient)

    def export_again(self) -> None:
        """All under other names, and half of the patients' images as other files."""
        exported = {}
        for picture in self.files.values():
            if self.random.random() < 0.5 and self.grouped:
                self.contents += 1
                picture = Picture(self.contents, picture.patient)
            exported[self.new_path()] = picture
        self.files = exported

    def correct_a_patient(self) -> None:
        for path in self.some()[:1]:
            self.files[path] = Picture(self.files[path].content, f"p{self.random.randrange(PATIENTS + 2)}")

    def experiment(self) -> None:
        if self.nights:
            name = f"experiment-{self.random.getrandbits(64):016x}"
            shard_here(self.root, "--workers", 1, "--slices", 1, "--name", name, "--seed", self.random.getrandbits(16))

    def prune(self) -> None:
        if self.nights:
            prune(open_place(str(self.root)), keep=self.random.randint(1, 2))

    def erase(self) -> None:
        """Some images of last night, from the source too, and with them all copies."""
        if self.nights:
            keys = self.random.sample(sorted(self.ingested), 2)
            self.erased |= {self.ingested[key].content for key in keys}
            (self.folder / "keys.txt").write_text("".join(f"{key}\n" for key in keys))
            erase_here(self.root, self.folder / "keys.txt")
            self.files = {key: picture for key, picture in self.files.items() if picture.content not in self.erased}
            self.gone = [picture for picture in self.gone if picture.content not in self.erased]

    def _delete_erased(self) -> None:
        """Delete the slices that have erased images; then no file has their bytes."""
        for path in self.root.glob("slices/*/examples.parquet"):
            contents = {*pq.read_table(path)["sha256"].to_pylist()}
            if contents & {hashlib.sha256(png_of(content)).digest() for content in self.erased}:
                shutil.rmtree(path.parent)
        for path in self.root.rglob("*"):
            assert not path.is_file() or not any(png_of(each) in path.read_bytes() for each in self.erased), path
        for path in self.root.glob("slices/*/manifest.json"):
            run_here(Verify, self.root, "--name", path.parent.name)
        self.erased.clear()

    def night(self) -> None:
        """Ingest, normalize, shard and verify what there is; check that everything is where it was."""
        if len(self.files) < 8:
            self.add(8)
        source, self.ingested = self._write(), dict(self.files)
        columns: dict[str, Any] = {"columns": str(self.folder / "patients.csv")} if self.grouped else {}
        ingest_here(source, self.root, pack_size="1KB", max_removed="1", **columns)
        normalize_here(self.root, "--size", 4, "--format", "raw")
        name = f"night-{self.nights:02d}"
        words = ["--workers", 1, "--slices", 1, "--name", name, "--splits-from", "newest"]
        words += ["--split", "train=0.5,validation=0.2,test=0.3"]
        words += ["--group-by", "patient"] if self.grouped else []
        words += ["--drop-duplicates"] if self.random.random() < 0.5 else []
        try:
            shard_here(self.root, *words)
        except GroupConflict as conflict:
            assert self.grouped
            listed = self.root / "slices" / f"{name}.conflicts.txt"
            assert str(listed) in str(conflict)
            self.removed.update(listed.read_text().split())
            shard_here(self.root, *words, "--remove", listed)
        run_here(Verify, self.root, "--name", name)
        self._check(name)
        self._delete_erased()
        self.nights += 1

    def _write(self) -> Path:
        source = self.folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        for path, picture in self.files.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(png_of(picture.content))
        lines = [f"{path},{picture.patient}\n" for path, picture in self.files.items()]
        (self.folder / "patients.csv").write_text("".join(["key,patient\n", *lines]))
        return source

    def _check(self, name: str) -> None:
        rows = pq.read_table(self.root / "slices" / name / "examples.parquet").to_pylist()
        for row in rows:
            split = row["split"]
            assert self.split_of_content.setdefault(row["sha256"], split) == split, (name, row["key"])
            if self.grouped:
                patient = self.files[row["key"]].patient
                assert self.split_of_group.setdefault(patient, split) == split, (name, patient)
        assert not self.removed & {row["key"] for row in rows}
        dealt = {row["sha256"] for row in rows}
        there = {self.files[path].content for path in self.files if path not in self.removed}
        assert len(dealt) == len(there)  # no content is lost


def png_of(content: int) -> bytes:
    return some_png(content, 2, 2)


CHANGES = (
    *(History.add, History.remove, History.come_back, History.rename, History.change, History.exchange),
    *(History.duplicate, History.export_again, History.correct_a_patient),
    *(History.experiment, History.prune, History.erase),
)


def live_through(nights: list[list[int]], grouped: bool, seed: int) -> None:
    """A history whose nights come after these changes, by their numbers in CHANGES."""
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        history = History(Path(folder), random.Random(seed), grouped)
        history.add(20)
        for changes in nights:
            for number in changes:
                CHANGES[number](history)
            history.night()


def histories(nights: int) -> st.SearchStrategy[list[list[int]]]:
    changes = st.lists(st.integers(0, len(CHANGES) - 1), max_size=4)
    return st.lists(changes, min_size=nights, max_size=nights)


@pytest.mark.parametrize(
    "grouped", [pytest.param(True, marks=pytest.mark.witness), pytest.param(False, marks=pytest.mark.chaos)]
)
def test_a_history_with_every_change(grouped: bool) -> None:
    every = list(range(len(CHANGES)))
    live_through([[], every[:4], every[4:8], every[8:], every], grouped, seed=1)


@pytest.mark.chaos
@settings(max_examples=300, suppress_health_check=list(HealthCheck), print_blob=True)
@given(nights=histories(12), grouped=st.booleans(), seed=st.integers(0, 2**32))
def test_nothing_changes_its_split_in_any_history(nights: list[list[int]], grouped: bool, seed: int) -> None:
    live_through(nights, grouped, seed)
