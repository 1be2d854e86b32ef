"""What earlier slices know of keys, and which of them are the newest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etl.errors import UsageError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.slices.manifest import DEPARTED_FILE, EXAMPLES_FILE
from etl.slices.previous import KnownKeys, departed_rows, find_earlier, removed_keys
from etl.stages.layout import SLICES_FORMAT, slices_stage
from etl.storage.json_files import json_bytes, with_checksum
from etl.storage.place import Place, open_place

DEALT = {f"image-{number:03d}": SPLIT_NAMES[number % 3] for number in range(50)}
GONE: dict[str, tuple[str | None, bool]] = {
    "gone-a": ("test", False),
    "gone-b": ("validation", False),
    "removed": ("train", True),
    "never-there": (None, True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """The tables of slices: what they hold, and what those before them held."""
    dealt = [{"key": key, "split": split} for key, split in DEALT.items()]
    gone = [{"key": key, "split": split, "removed": removed} for key, (split, removed) in GONE.items()]
    write(tmp_path / EXAMPLES_FILE, parquet_tables.table_of(schemas.EXAMPLES, dealt))
    write(tmp_path / DEPARTED_FILE, parquet_tables.table_of(schemas.DEPARTED, gone))
    return open_place(str(tmp_path))


def write(path: Path, table: Any) -> None:
    path.write_bytes(parquet_tables.table_bytes(table))


def test_every_key_that_was_ever_dealt_keeps_its_split(folder: Place) -> None:
    known = KnownKeys.of_slices(folder, {})
    assert len(known) == len(DEALT) + len(GONE)
    expected: dict[str, str | None] = {**DEALT, **{key: split for key, (split, _) in GONE.items()}}
    numbers = known.find([*expected, "new"])
    assert numbers[-1] == -1
    splits = [None if split < 0 else SPLIT_NAMES[split] for split in known.splits[numbers[:-1]].tolist()]
    assert dict(zip(expected, splits, strict=True)) == expected


def test_who_departs_is_remembered_with_those_that_departed_before(folder: Place) -> None:
    known = KnownKeys.of_slices(folder, {})
    dealt = np.zeros(len(known), dtype=bool)
    dealt[known.find([*list(DEALT)[1:], "gone-a"])] = True  # the first left, and one came back
    rows = departed_rows(folder, {}, known, dealt).to_pylist()
    assert {row["key"]: row["split"] for row in rows} == {
        "image-000": DEALT["image-000"],
        **{key: split for key, (split, _) in GONE.items() if key != "gone-a"},
    }
    assert sorted(removed_keys(folder)) == ["never-there", "removed"]


def finish(root: Path, name: str, finished: str, splits_from: str | None = None) -> str:
    """Slices as a run leaves them, without their files; returns their fingerprint."""
    folder = root / "slices" / name
    folder.mkdir(parents=True)
    marker = with_checksum({"format": SLICES_FORMAT, "name": name, "config": {"splits_from": splits_from}})
    (folder / "manifest.json").write_bytes(json_bytes(marker))
    (folder / "run.json").write_bytes(json_bytes({"finished": finished}))
    return slices_stage(open_place(str(root)), name).fingerprint()


def test_the_newest_are_those_that_were_finished_last(tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    own = slices_stage(root, "own")
    assert find_earlier(root, "newest", own) is None
    fingerprints = {
        name: finish(tmp_path, name, finished)
        for name, finished in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01"))
    }
    (tmp_path / "slices" / "unfinished").mkdir()
    for text, name in (("newest", "a"), ("c", "c"), (str(tmp_path / "slices/b/manifest.json"), "b")):
        found = find_earlier(root, text, own)
        assert found is not None
        assert (found.folder, found.fingerprint) == (root / "slices" / name, fingerprints[name])
    assert find_earlier(root, None, own) is None
    with pytest.raises(UsageError, match="no slices there"):
        find_earlier(root, str(tmp_path / "nothing"), own)


def test_what_was_begun_goes_on_from_what_it_began_with(tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    older = finish(tmp_path, "older", "2026-01-01")
    finish(tmp_path, "own", "2026-01-02", splits_from=older)
    finish(tmp_path, "newer", "2026-01-03")
    found = find_earlier(root, "newest", slices_stage(root, "own"))
    assert found is not None
    assert found.fingerprint == older
    finish(tmp_path, "first", "2026-01-04")
    assert find_earlier(root, "newest", slices_stage(root, "first")) is None
