"""What may happen to a source between two nights, and the splits that stay: by the real stages, in process."""

import io
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError, RingsliceError, UsageError
from etl.slices.prune import prune
from etl.storage.place import open_place
from mapreduce import shard as shard_module
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.conftest import TreeMaker
from tests.lib.inline import ingest_here, normalize_here, refused, run_here, shard_here
from tests.lib.sources.parquet_images import image_column, write_parquet


def some_png(number: int) -> bytes:
    """A picture of its own for each number."""
    buffer = io.BytesIO()
    Image.frombytes("RGB", (9, 12), random.Random(number).randbytes(9 * 12 * 3)).save(buffer, "PNG")
    return buffer.getvalue()


SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5")


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
        shard_here(self.root, *SHARES, "--splits-from", "newest", "--name", name, *words)
        run_here(Verify, self.root, "--name", name)
        return self.splits(name)

    def splits(self, name: str) -> dict[bytes, str]:
        rows = pq.read_table(self.root / "slices" / name / "examples.parquet").to_pylist()
        splits = {row["sha256"]: row["split"] for row in rows}
        assert all(splits[row["sha256"]] == row["split"] for row in rows)
        return splits

    def known(self) -> dict[str, int]:
        manifest = json.loads((self.root / f"slices/night-{self.number}/manifest.json").read_text())
        known: dict[str, int] = manifest["known"]
        return known


@pytest.fixture
def nights(make_tree: TreeMaker, tmp_path: Path) -> Nights:
    return Nights(make_tree({"ant": 20, "bee": 20}), tmp_path / "root")


def told(kept: int = 0, moved: int = 0, changed: int = 0, new: int = 0, disagreeing: int = 0) -> dict[str, int]:
    return {"kept": kept, "moved": moved, "changed": changed, "new": new, "disagreeing": disagreeing}


def test_an_experiment_is_no_night(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    first = nights.night()
    assert nights.known() == told(new=40)
    shard_here(nights.root, *SHARES, "--name", "experiment", "--seed", 7)
    assert nights.splits("experiment") != first
    assert nights.night() == first
    assert nights.known() == told(kept=40)
    assert "known" in capsys.readouterr().out
    for name, text in (("night-1", None), ("night-2", "{garbled"), ("experiment", '["no", "object"]')):
        file = nights.root / "slices" / name / "run.json"
        file.unlink() if text is None else file.write_text(text)
    assert nights.night() == first
    prune(open_place(str(nights.root)), keep=1)
    shard_here(nights.root, *SHARES, "--name", "experiment-2", "--seed", 8)
    prune(open_place(str(nights.root)), keep=1)  # the end of the lineage stays too
    assert {path.name for path in (nights.root / "slices").iterdir()} == {"night-3", "experiment-2"}
    assert nights.night() == first


def test_two_ends_of_a_lineage_are_named(nights: Nights) -> None:
    nights.night()
    nights.night()
    shard_here(nights.root, *SHARES, "--name", "fork", "--splits-from", "night-1")
    line = "--splits-from newest: several ends of the lineage, fork and night-2; name the one"
    refused(Shard, 2, line, nights.root, *SHARES, "--name", "x", "--splits-from", "newest")


def test_renamed_moved_and_exported_again(nights: Nights) -> None:
    first = nights.night()
    (nights.source / "ant").rename(nights.source / "wasp")
    assert nights.night() == first
    assert nights.known() == told(kept=40, moved=20)
    for number, path in enumerate(sorted(nights.source.rglob("*.png"))):
        path.rename(path.with_name(f"export-{number:04d}.png"))
    shutil.move(nights.source / "bee/export-0000.png", nights.source / "wasp/export-9999.png")
    assert nights.night() == first
    assert nights.known() == told(kept=40, moved=40)


def test_changed_images_stay_and_what_moves_onto_anothers_name_takes_its_split_along(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    first = nights.night()
    paths = sorted(nights.source.rglob("*.png"))
    before = {path: path.read_bytes() for path in paths}
    changed = paths[0]
    changed.write_bytes(some_png(999))
    for path, other in zip(paths[1:], (*paths[2:], paths[1]), strict=True):
        path.write_bytes(before[other])
    second = nights.night()
    assert {content: second[content] for content in first if content in second} == {
        content: split for content, split in first.items() if content in second
    }
    assert len(second) == 40
    known = nights.known()
    assert (known["kept"], known["changed"], known["new"]) == (39, 1, 0)
    assert known["disagreeing"] > 5
    line = (
        f"{known['disagreeing']} images were moved and changed at once, and are where their content or group is: ant/"
    )
    assert line in capsys.readouterr().err
    changed.write_bytes(before[changed])  # its first content was remembered
    assert nights.night().items() >= first.items()


def test_the_original_of_a_duplicate_is_deleted(nights: Nights) -> None:
    for path in sorted((nights.source / "ant").iterdir()):
        shutil.copy(path, nights.source / "bee" / f"copy-{path.name}")
    first = nights.night("--drop-duplicates")
    shutil.rmtree(nights.source / "ant")
    assert nights.night("--drop-duplicates") == first
    assert nights.known() == told(kept=40, moved=20)


def test_duplicates_are_in_one_split_from_the_first_night(nights: Nights) -> None:
    for path in sorted((nights.source / "ant").iterdir()):
        shutil.copy(path, nights.source / "bee" / f"copy-{path.name}")
    first = nights.night()
    assert Counter(first.values())["train"] in range(16, 25)
    assert nights.night("--drop-duplicates", "--seed", 9) == first


@pytest.mark.parametrize("by_key", [False, True])
def test_a_row_is_put_in_front_of_a_parquet_file(by_key: bool, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    values: dict[str, object] = {"key_column": "id"} if by_key else {}

    def write(numbers: list[int]) -> None:
        images = image_column([some_png(number) for number in numbers])
        table = pa.table({"image": images, "label": ["x"] * len(numbers), "id": [f"scan-{n}" for n in numbers]})
        write_parquet(open_place(str(nights.source / "all.parquet")), table)

    write(list(range(30)))
    first = nights.night(**values)
    write([100, *range(30)])
    second = nights.night(**values)
    assert {content: second[content] for content in first} == first
    known = nights.known()
    if by_key:
        assert known == told(kept=30, new=1)
    else:  # the first row's key is that of another image, the last row's is new
        assert known == told(kept=30, moved=1, changed=1, disagreeing=known["disagreeing"])
        assert known["disagreeing"] > 5


def patients(nights: Nights, tmp_path: Path, change: dict[str, str] | None = None) -> str:
    """A table with a patient for each image: one for every four of them."""
    table = tmp_path / "patients.csv"
    keys = sorted(str(path.relative_to(nights.source)) for path in nights.source.rglob("*.png"))
    values = {key: f"patient-{number // 4}" for number, key in enumerate(keys)} | (change or {})
    table.write_text("key,patient\n" + "".join(f"{key},{value}\n" for key, value in values.items()))
    return str(table)


def splits_of_patients(nights: Nights, table: str) -> dict[str, str]:
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    rows = pq.read_table(nights.root / f"slices/night-{nights.number}/examples.parquet").to_pylist()
    return {patient_of[row["key"]]: row["split"] for row in rows}


def test_patients_whose_scans_are_all_others_stay(nights: Nights, tmp_path: Path) -> None:
    table = patients(nights, tmp_path)
    nights.night("--group-by", "patient", columns=table)
    first = splits_of_patients(nights, table)
    assert set(first.values()) == {"train", "test"}
    for number, path in enumerate(sorted(nights.source.rglob("*.png"))):
        path.unlink()
        path.with_name(f"again-{number:04d}.png").write_bytes(some_png(1000 + number))
    again = patients(nights, tmp_path)
    nights.night("--group-by", "patient", columns=again)
    assert nights.known() == told(new=40)
    assert splits_of_patients(nights, again) == first


def test_a_corrected_group_is_named_with_a_remedy(nights: Nights, tmp_path: Path) -> None:
    table = patients(nights, tmp_path)
    first = nights.night("--group-by", "patient", columns=table)
    by_patient = splits_of_patients(nights, table)
    trained = next(patient for patient, split in by_patient.items() if split == "train")
    tested = next(patient for patient, split in by_patient.items() if split == "test")
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    key = next(key for key, patient in patient_of.items() if patient == tested)
    nights.ingest(columns=patients(nights, tmp_path, {key: trained}))
    words = (*SHARES, "--name", "x", "--splits-from", "newest", "--group-by", "patient")
    listed = nights.root / "slices/x.conflicts.txt"
    line = f"1 images were in another split than their patient is: {key} (test, patient {trained!r} in train);"
    refused(Shard, 1, line, nights.root, *words)
    assert listed.read_text() == f"{key}\n"
    shard_here(nights.root, *words, "--remove", listed)
    assert {content: first[content] for content in nights.splits("x")} == nights.splits("x")
    run_here(Verify, nights.root, "--name", "x")
    for other in ((), ("--group-by", "day")):
        line = "those slices keep each 'patient' in one split; give --group-by patient too"
        refused(Shard, 2, line, nights.root, *SHARES, "--name", "y", "--splits-from", "newest", *other)


@pytest.mark.parametrize("name", ["examples", "departed", "contents", "groups"])
def test_what_is_remembered_is_checked_while_it_is_read(name: str, nights: Nights) -> None:
    nights.night()
    path = nights.root / f"slices/night-1/{name}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{name}.parquet has another SHA-256 than its manifest records"):
        nights.night()


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


def by_split_folders(nights: Nights, files: dict[str, int]) -> None:
    shutil.rmtree(nights.source, ignore_errors=True)
    for name, number in files.items():
        (nights.source / name).parent.mkdir(parents=True, exist_ok=True)
        (nights.source / name).write_bytes(some_png(number))
    nights.ingest(split_folders=True)


def key_splits(nights: Nights, name: str) -> dict[str, str]:
    rows = pq.read_table(nights.root / "slices" / name / "examples.parquet").to_pylist()
    return {row["key"]: row["split"] for row in rows}


SOURCE_WITH_COPIES = {f"train/a/{n}.png": n for n in range(6)} | {f"test/a/{n}.png": n for n in (0, 10, 11)}
PLAIN = ("--workers", 1, "--slices", 1, "--splits-from", "newest")


def test_attack_a_content_of_two_splits_keeps_both_while_one_copy_is_away(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    by_split_folders(nights, SOURCE_WITH_COPIES)
    shard_here(nights.root, *PLAIN, "--name", "n1")
    first = key_splits(nights, "n1")
    assert (first["train/a/0.png"], first["test/a/0.png"]) == ("train", "test")
    by_split_folders(nights, {key: n for key, n in SOURCE_WITH_COPIES.items() if key != "test/a/0.png"})
    shard_here(nights.root, *PLAIN, "--name", "n2")
    by_split_folders(nights, SOURCE_WITH_COPIES)
    shard_here(nights.root, *PLAIN, "--name", "n3")
    assert key_splits(nights, "n3") == first


def test_attack_dropping_duplicates_for_a_night_moves_nothing(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    files = {f"train/a/{n}.png": n for n in range(6)} | {f"test/a/{n}.png": n for n in (0, 1, 10)}
    by_split_folders(nights, files)
    shard_here(nights.root, *PLAIN, "--name", "n1")
    shard_here(nights.root, *PLAIN, "--name", "n2", "--drop-duplicates")
    shard_here(nights.root, *PLAIN, "--name", "n3")
    assert key_splits(nights, "n3") == key_splits(nights, "n1")


@pytest.mark.parametrize("shares", ["train=0.9,test=0.1", "train=rest,test=20", "train=0.8,validation=0.1,test=0.1"])
def test_attack_images_that_come_in_pairs_leave_every_split_its_share(shares: str, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    for kind in range(20):
        folder = nights.source / f"c{kind:02d}"
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number}.png").write_bytes(some_png(100 * kind + number // 2))
    nights.ingest()
    shard_here(nights.root, *PLAIN, "--name", "n1", "--split", shares)
    counts = Counter(key_splits(nights, "n1").values())
    assert counts["test"] in (18, 19, 20, 21, 22), counts  # of 200; off by the copies of an image


def test_attack_an_experiments_name_asked_again_with_newest_is_not_done_before(nights: Nights) -> None:
    first = nights.night()
    shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x")
    try:
        shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x", "--splits-from", "newest")
    except UsageError:
        return  # it holds another shard
    assert nights.splits("x") == first


def kill(monkeypatch: pytest.MonkeyPatch, nights: Nights, *words: object) -> None:
    """A run that ends before its manifest is written."""
    with monkeypatch.context() as patched:
        patched.setattr(shard_module, "build_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shard_here(nights.root, *SHARES, *words)


def test_attack_a_killed_experiment_resumed_with_newest_begins_no_second_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.night()
    kill(monkeypatch, nights, "--seed", 7, "--name", "x")
    with pytest.raises(UsageError):
        shard_here(nights.root, *SHARES, "--seed", 7, "--name", "x", "--splits-from", "newest")
    nights.night()


def test_attack_a_killed_night_that_is_tried_again_after_the_next_does_not_block_the_lineage(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nights.night()
    kill(monkeypatch, nights, "--name", "late", "--splits-from", "newest")
    assert nights.night() == first
    try:
        shard_here(nights.root, *SHARES, "--name", "late", "--splits-from", "newest")
    except UsageError:
        pass  # a line that says so would do
    assert nights.night() == first


def test_attack_a_night_is_done_before_though_its_parent_is_pruned(nights: Nights) -> None:
    nights.night()
    nights.night()
    prune(open_place(str(nights.root)), keep=1)
    shard_here(nights.root, *SHARES, "--splits-from", "newest", "--name", "night-2")


def test_attack_slices_replaced_from_themselves_survive_a_kill(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nights.night("--seed", 5)
    own = ("--name", "night-1", "--splits-from", "night-1", "--overwrite")
    try:
        kill(monkeypatch, nights, *own)
        shard_here(nights.root, *SHARES, *own)
    except UsageError:  # refused: then nothing may be lost
        pass
    assert nights.splits("night-1") == first


def test_attack_a_second_conflict_does_not_forget_the_first(nights: Nights, tmp_path: Path) -> None:
    table = patients(nights, tmp_path)
    nights.night("--group-by", "patient", columns=table)
    by_patient = splits_of_patients(nights, table)
    trained = next(patient for patient, split in by_patient.items() if split == "train")
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    one, two = [key for key, patient in patient_of.items() if by_patient[patient] == "test"][:2]
    words = (*SHARES, "--name", "x", "--splits-from", "newest", "--group-by", "patient")
    listed = nights.root / "slices/x.conflicts.txt"
    nights.ingest(columns=patients(nights, tmp_path, {one: trained}))
    refused(Shard, 1, "1 images were in another split", nights.root, *words)
    nights.ingest(columns=patients(nights, tmp_path, {one: trained, two: trained}))
    refused(Shard, 1, "1 images were in another split", nights.root, *words, "--remove", listed)
    shard_here(nights.root, *words, "--remove", listed)  # all that is left out so far, and what is new


def test_attack_images_that_exchange_their_names_are_counted_as_moved(nights: Nights) -> None:
    nights.night()
    splits = key_splits(nights, "night-1")
    one, two = [nights.source / key for key, split in sorted(splits.items()) if split == "train"][:2]
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    nights.night()
    assert nights.known() == told(kept=40, moved=2)


def test_attack_splits_from_a_file_that_is_not_there(nights: Nights) -> None:
    nights.night()
    for name in ("nothing", "manifest.jsno", "examples.parquet"):
        asked = nights.root / "slices/night-1" / name
        refused(Shard, 2, "no slices there", nights.root, *SHARES, "--name", "x", "--splits-from", asked)


@pytest.mark.parametrize("key", ["\ufeffbom", " ", "\u3000"])
def test_attack_a_key_of_odd_blanks_can_be_removed(key: str, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "source", tmp_path / "root")
    images = image_column([some_png(number) for number in range(9)])
    keys = [key, *(f"k{number}" for number in range(8))]
    table = pa.table({"image": images, "label": ["x"] * 9, "id": keys})
    write_parquet(open_place(str(nights.source / "all.parquet")), table)
    nights.ingest(key_column="id")
    listed = tmp_path / "gone.txt"
    listed.write_text(f"{key}\nk0\n", encoding="utf-8")  # as ROOT/slices/NAME.conflicts.txt is written
    shard_here(nights.root, *SHARES, "--name", "x", "--remove", listed)
    assert not {key, "k0"} & set(key_splits(nights, "x"))


@pytest.mark.parametrize("text", ["[]", '"x"'])
def test_attack_a_manifest_of_an_experiment_that_is_no_object_is_named_in_a_line(text: str, nights: Nights) -> None:
    nights.night()
    (nights.root / "slices/experiment").mkdir()
    (nights.root / "slices/experiment/manifest.json").write_text(text)
    with pytest.raises(RingsliceError, match="manifest.json"):
        shard_here(nights.root, *SHARES, "--name", "x", "--splits-from", "newest")
