"""What each kind of source must do: archives, plain and packed, Parquet files, and lists."""

import json
import os
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from etl.errors import DataError, UsageError
from etl.sources import Source, open_source
from etl.storage.place import Place, open_place
from tests.lib.commands import contents
from tests.lib.damage.sources import try_list, try_parquet
from tests.lib.damage.trials import Trial, run_trials
from tests.lib.inline import ingest_here
from tests.lib.sources.archives import Entry, contents_of, packed, tar_of
from tests.lib.sources.packed import interrupted_after, packed_images
from tests.lib.sources.parquet_images import image_column, some_bytes, write_file, write_parquet

CODECS = {"tar": "", "tar.gz": "gzip", "tar.zst": "zstd"}
LISTS = ("csv", "jsonl")
KINDS = (*CODECS, "parquet", *LISTS)
CLASSES = ["cat", "dog", "owl"]

by_kind = pytest.mark.parametrize("kind", KINDS)


def write(place: Place, kind: str, **splits: range) -> Place:
    """Images by number, in a file, or in lines of a list, for each split; files that are there stay. What to ingest."""
    for split, numbers in splits.items():
        rows = [(number, CLASSES[number % 3], f"p{number % 5}") for number in numbers]
        file = place / f"{split}-0.{kind}"
        if kind in CODECS and not file.exists():
            write_file(file, packed(tar_of(samples(rows)), CODECS[kind]))
        elif kind == "parquet" and not file.exists():
            columns = zip(*rows, strict=True)
            numbers_of, labels, patients = (list(each) for each in columns)
            table = {"image": image_column(list(map(some_bytes, numbers_of))), "label": labels, "patient": patients}
            write_parquet(file, pa.table(table), row_group_size=8, data_page_size=200)
        elif kind in LISTS:
            for number in numbers:
                if not (place / "i" / f"{number}.png").exists():
                    write_file(place / "i" / f"{number}.png", some_bytes(number))
    if kind not in LISTS:
        return place
    lines = [
        {"path": f"i/{number}.png", "label": CLASSES[number % 3], "split": split, "patient": f"p{number % 5}"}
        for split, numbers in splits.items()
        for number in numbers
    ]
    text = [",".join(lines[0]), *(",".join(line.values()) for line in lines)]
    return write_file(place / f"list.{kind}", "\n".join(text if kind == "csv" else map(json.dumps, lines)).encode())


def samples(rows: Iterable[tuple[int, str, str]]) -> list[Entry]:
    entries = []
    for number, name, patient in rows:
        entries.append(Entry(f"{number:03d}.png", some_bytes(number)))
        entries.append(Entry(f"{number:03d}.json", json.dumps({"label": name, "patient": patient}).encode()))
    return entries


def opened(folder: Path, kind: str) -> Source:
    return open_source(write(open_place(str(folder / "source")), kind, train=range(40), test=range(40, 60)))


@by_kind
def test_packs_contain_the_images_and_stay_when_a_file_is_added(root: Place, kind: str) -> None:
    packs = root / "data" / "raw" / "packs"

    def digests() -> dict[str, str]:
        return {info.base_name: (packs / info.base_name).sha256() for info in packs.children()}

    ingest_here(write(root / "source", kind, train=range(30)), root / "data", pack_size="2000")
    before = digests()
    assert len(before) > 4
    ingest_here(write(root / "source", kind, train=range(30), test=range(30, 34)), root / "data", pack_size="2000")
    after = digests()
    assert before.items() < after.items()
    found = {each.data: (each.name, each.split, each.columns) for each in packed_images(root / "data").values()}
    assert found == {
        some_bytes(number): (CLASSES[number % 3], "train" if number < 30 else "test", {"patient": f"p{number % 5}"})
        for number in range(34)
    }


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "parquet"])
def test_a_file_that_was_touched_is_compared_and_its_packs_stay(kind: str, tmp_path: Path) -> None:
    source = write(open_place(str(tmp_path / "source")), kind, train=range(30))
    ingest_here(source, tmp_path / "root", pack_size="2000")
    before = contents(tmp_path / "root/raw/packs")
    os.utime(tmp_path / "source" / f"train-0.{kind}", (1, 1))
    ingest_here(source, tmp_path / "root", pack_size="2000")
    assert contents(tmp_path / "root/raw/packs") == before


@by_kind
@pytest.mark.parametrize("at_once", ["1", "4"])
def test_an_interrupted_run_goes_on(at_once: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(open_place(str(tmp_path / "source")), kind, train=range(30))
    before = contents(tmp_path)
    root, whole = tmp_path / "root", tmp_path / "whole"
    ingest_here(source, whole, pack_size="2000")
    with monkeypatch.context() as patch:
        reader = type(open_source(source))
        patch.setattr(reader, "read_all", interrupted_after(25, reader.read_all))
        with pytest.raises(KeyboardInterrupt):
            ingest_here(source, root, pack_size="2000", packs_at_once=at_once)
    assert not (root / "raw" / "dataset.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in (root / "raw" / "packs").glob("*.parquet")}
    assert kept or at_once != "1"
    ingest_here(source, root, pack_size="2000")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    found = contents(tmp_path)
    assert contents(root, "run.json") == contents(whole, "run.json")
    assert {name: data for name, data in found.items() if not name.startswith(("root/", "whole/"))} == before


@by_kind
def test_images_are_read_in_any_order_and_by_several_threads(kind: str, tmp_path: Path) -> None:
    source = opened(tmp_path, kind)
    expected = contents_of(source)
    assert sorted(expected.values()) == sorted(map(some_bytes, range(60)))
    assert [len(data) for data in expected.values()] == [image.size_bytes for image in source.images]
    chance = random.Random(1)
    choices = [chance.sample(source.images, 30) for _ in range(8)] + [source.images] * 4
    choices += [[], source.images[4:5] * 2, source.images[::-7], source.images[::7]]
    with ThreadPoolExecutor(4) as pool:
        for images, found in zip(choices, pool.map(lambda images: list(source.read_all(images)), choices), strict=True):
            assert found == [expected[image.key] for image in images]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        *(("touched", kind) for kind in KINDS if kind not in LISTS),  # of a list's files only sizes are compared
        *(("longer", kind) for kind in KINDS if kind != "parquet"),  # which is no Parquet file then
        *(("gone", kind) for kind in KINDS),
    ],
)
def test_a_file_that_changed_since_it_was_listed_is_an_error(change: str, kind: str, tmp_path: Path) -> None:
    source = opened(tmp_path, kind)
    path = tmp_path / "source" / ("i/3.png" if kind in LISTS else f"train-0.{kind}")
    known = path.stat()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + bytes(512 if change == "longer" else 0))
        os.utime(path, ns=(1, known.st_mtime_ns + (change == "touched")))
    with pytest.raises((FileNotFoundError, DataError)) as raised:
        contents_of(source)
    if change != "gone":
        assert f"{path.name} changed while it was read" in str(raised.value)


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_file_named_by_no_key_is_refused(kind: str, tmp_path: Path) -> None:
    source = write(open_place(str(tmp_path / "source")), kind, train=range(3))
    (tmp_path / "source" / f"train-0.{kind}").rename(tmp_path / "source" / f"a\nb.{kind}")
    with pytest.raises(
        UsageError, match=r"'a\\nb' cannot be a key, for it holds control characters; rename it"
    ) as raised:
        open_source(source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "trials", [pytest.param(300, marks=pytest.mark.integration), pytest.param(20_000, marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("trial", [try_parquet, try_list])
def test_damaged_files_lose_no_image_silently(trial: Trial, trials: int) -> None:
    report = run_trials(trial, 0, trials, timeout_s=1200)
    assert report.faults == []
    assert report.outcomes.total() == trials
    errors = ("DataError",) if trial is try_parquet else ("DataError", "UsageError")
    assert min(report.outcomes[each] for each in ("good", *errors)) > trials // 50
