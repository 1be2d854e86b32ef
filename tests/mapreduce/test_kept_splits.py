"""What may happen to a source between two nights, and the splits that stay: by the real stages, in process."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from etl.errors import DataError, UsageError
from etl.slices.prune import prune
from etl.storage.place import open_place
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.lib.commands import contents
from tests.lib.inline import refused, run_here, shard_here
from tests.lib.nights import SHARES, Nights, nights, patients, some_png, splits_of_patients, told
from tests.lib.sources.parquet_images import image_column, write_parquet

__all__ = ["nights"]  # a fixture


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


def test_a_list_of_classes_grows_at_its_end(nights: Nights, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text("owl\nant\nbee\n")
    before = nights.night(classes=str(listed))
    for name in ("cat", "dog"):
        shutil.copytree(nights.source / "bee", nights.source / name)
        for number, path in enumerate(sorted((nights.source / name).iterdir())):
            path.write_bytes(some_png(ord(name[0]) * 100 + number))
    listed.write_text("owl\nant\nbee\ndog\ncat\n")
    after = nights.night("--partition", "stratified", classes=str(listed))
    assert before.items() <= after.items()
    assert len(after) == len(before) + 40
    raw = json.loads((nights.root / "raw/dataset.json").read_text())
    assert raw["classes"] == raw["config"]["classes"] == ["owl", "ant", "bee", "dog", "cat"]
    assert raw["counts"]["by_class"] == [0, 20, 20, 20, 20]
    labels = {row["key"].split("/")[0]: row["label"] for row in nights.rows()}
    assert labels == {"ant": 1, "bee": 2, "dog": 3, "cat": 4}
    run = json.loads((nights.root / "normalized/run.json").read_text())
    assert (run["decoded"], run["reused"]) == (40, 1)
    normalized = json.loads((nights.root / "normalized/dataset.json").read_text())
    assert normalized["counts"]["by_class"] == [0, 20, 20, 20, 20]
    assert [len(next(iter(part["examples"].values()))) for part in normalized["parts"]] == [3, 5]
    verify = ("--name", "night-2", "--every-stage")
    run_here(Verify, nights.root, *verify)
    marker = (nights.root / "raw/dataset.json").read_bytes()
    nights.ingest(classes=str(listed))
    assert (nights.root / "raw/dataset.json").read_bytes() == marker


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("owl\nant\n", r"line 3 is missing, .* was made with 'bee' there"),
        ("owl\nbee\nant\ncat\n", r"line 2 is 'bee', but .* was made with 'ant' there; new classes go to the end"),
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
