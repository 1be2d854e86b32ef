"""The splits of keys, contents and groups that slices record; and from which slices splits are taken."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.slices import history
from etl.slices.history import ParentSlices, SplitHistory, find, find_parent, lineage_ends, lineage_of, read_finished
from etl.slices.manifest import read_slices
from etl.stages.layout import SLICES_FORMAT, slices_stage
from etl.stages.stage import Stage
from etl.storage.place import Place, json_bytes, open_place, with_checksum


def sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


EXAMPLES = {"image-0": "train", "image-1": "validation", "image-2": "test"}
DEPARTED: list[tuple[str, str | None, bool]] = [
    ("gone-a", "test", False),
    ("gone-b", "validation", False),
    ("removed", "train", True),
    ("never-there", None, True),
]
TABLES: dict[
    str, tuple[pa.Schema, list[dict[str, Any]]]
] = {  # of slices: their own examples, and those of the slices before them
    "examples": (schemas.EXAMPLES, [{"key": key, "split": EXAMPLES[key], "sha256": sha256(key)} for key in EXAMPLES]),
    "departed": (schemas.DEPARTED, [{"key": key, "split": split, "removed": gone} for key, split, gone in DEPARTED]),
    "contents": (  # one of them is in two splits, by the source
        schemas.CONTENTS,
        [{"sha256": sha256("before"), "split": "test"}, {"sha256": sha256("image-1"), "split": "train"}],
    ),
    "groups": (schemas.GROUPS, [{"group": "x", "split": "train"}, {"group": "y", "split": "test"}]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    for name, (schema, rows) in TABLES.items():
        table = parquet_tables.table_of(schema, rows)
        (tmp_path / f"{name}.parquet").write_bytes(parquet_tables.table_bytes(table))
    return open_place(str(tmp_path))


def facts_of(folder: Place) -> dict[str, dict[str, dict[str, str]]]:
    files = {name: f"{name}.parquet" for name in history.TABLES_OF_HISTORY}
    return {"tables": {name: {"file": file, "sha256": (folder / file).sha256()} for name, file in files.items()}}


@pytest.mark.parametrize("name", history.TABLES_OF_HISTORY)
def test_a_table_that_is_not_as_it_was_written_is_refused(name: str, folder: Place) -> None:
    """Rewritten without its first row, as Parquet that reads well."""
    facts = facts_of(folder)
    place = folder / f"{name}.parquet"
    Path(place.path).write_bytes(parquet_tables.table_bytes(parquet_tables.read_table(place).slice(1)))
    with pytest.raises(DataError, match=rf"{name}.parquet has another SHA-256 than its manifest records"):
        SplitHistory.read(folder, facts)


def test_what_retires_is_recorded_with_what_retired_before(folder: Place) -> None:
    """The first key left, one came back, and one was removed that never was there."""
    known = SplitHistory.read(folder, facts_of(folder))
    names = ["image-1", "image-2", "gone-a"]
    places = find(pa.chunked_array([names]), known.keys)
    contents = find(pa.chunked_array([[sha256(name) for name in names]], pa.binary(32)), known.contents)
    splits = np.array([SPLIT_NAMES.index(EXAMPLES.get(name, "test")) for name in names], dtype=np.int8)
    removed = known.removed | {"image-0", "unknown"}
    tables = known.retired_tables(places, contents, splits, removed=removed, groups={"y": 2, "x": 0})
    expected = [("image-0", "train", True), *DEPARTED[1:], ("unknown", None, True)]
    assert [tuple(row.values()) for row in tables["departed"].to_pylist()] == expected
    left = {(sha256("image-0"), "train"), (sha256("image-1"), "train"), (sha256("before"), "test")}
    assert [(row["sha256"], row["split"]) for row in tables["contents"].to_pylist()] == sorted(left)
    assert tables["groups"].to_pylist() == TABLES["groups"][1]
    assert sorted(history.removed_keys(folder)) == ["never-there", "removed"]
    assert {name: table.schema for name, table in tables.items()} == {name: TABLES[name][0] for name in tables}


@pytest.fixture
def root(tmp_path: Path) -> Place:
    return open_place(str(tmp_path))


def finish(root: Place, name: str, parent: ParentSlices | None = None, *, plain: bool = False) -> ParentSlices:
    """Slices as a run leaves them, without their files; ``plain``: made without --splits-from."""
    folder = Path((root / "slices" / name).path)
    folder.mkdir(parents=True)
    lineage = None if plain else lineage_of("newest", parent)
    config = {"splits_from": parent.fingerprint if parent else None}
    marker = with_checksum({"format": SLICES_FORMAT, "name": name, "config": config, "lineage": lineage})
    (folder / "manifest.json").write_bytes(json_bytes(marker))
    return ParentSlices(marker, slices_stage(root, name).fingerprint(), root / "slices" / name)


def newest(root: Place, own: str = "own", *, overwrite: bool = False) -> str | None:
    found = find_parent(root, "newest", slices_stage(root, own), overwrite)
    return found.folder.name if found else None


def test_the_lineage_is_followed_to_its_end_whatever_run_json_says(root: Place, tmp_path: Path) -> None:
    assert newest(root) is None
    first = finish(root, "c")
    assert first.marker["lineage"] == history.FIRST
    second = finish(root, "a", first)
    third = finish(root, "b", second)
    assert third.marker["lineage"] == {"number": 3, "ancestors": [second.fingerprint, first.fingerprint]}
    (tmp_path / "slices/c/run.json").write_bytes(json_bytes({"finished": "2099-01-01"}))
    (tmp_path / "slices/a/run.json").write_text("{garbled")
    (tmp_path / "slices/b/run.json").write_bytes(json_bytes({"counters": []}))
    (tmp_path / "slices/unfinished").mkdir()
    assert newest(root) == "b"
    assert [slices_stage(root, name).read_run() for name in "ab"] == [{}, {}]
    for name in "abc":
        history.finished_at(slices_stage(root, name))  # raises nothing


def test_two_ends_are_named(root: Place) -> None:
    night = finish(root, "night-1")
    finish(root, "night-2", night)
    finish(root, "other-seed", night)
    with pytest.raises(UsageError, match="several ends of the lineage, night-2 and other-seed; name the one"):
        newest(root)
    assert newest(root, own="other-seed", overwrite=True) == "night-2"
    assert [stage.folder.name for stage in lineage_ends(read_finished(root))] == ["night-2", "other-seed"]
    Path(slices_stage(root, "other-seed").marker.path).write_text("damaged")
    assert newest(root, own="other-seed", overwrite=True) == "night-2"


def test_two_ends_are_not_made_at_the_same_time(root: Place) -> None:
    own, night = slices_stage(root, "own"), finish(root, "night-1")
    history.require_parent(root, "newest", own, night)
    history.require_parent(root, "night-1", own, night)
    finish(root, "night-2", night)
    history.require_parent(root, "night-1", own, night)
    for parent in (night, None):
        with pytest.raises(
            EnvironmentFailure, match=r"night-2 was made or removed meanwhile.*run it again with --over"
        ):
            history.require_parent(root, "newest", own, parent)


@pytest.mark.parametrize("error", [UsageError, FileNotFoundError])
def test_slices_that_are_removed_while_others_are_listed_are_left_out(
    error: type[Exception], root: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finish(root, "a")
    finish(root, "b", first)

    def removed_meanwhile(stage: Stage) -> Any:
        if stage.folder.name == "a":
            stage.folder.delete()
            raise error("gone")
        return read_slices(stage)

    monkeypatch.setattr(history, "read_slices", removed_meanwhile)
    assert newest(root) == "b"


def test_slices_without_a_lineage_begin_one_where_they_are_alone(root: Place) -> None:
    plain = finish(root, "default", plain=True)
    assert lineage_ends(read_finished(root)) == []
    assert newest(root) == "default"
    finish(root, "experiment", plain=True)
    with pytest.raises(UsageError, match="several sets of slices, none made from another, default and experiment"):
        newest(root)
    child = finish(root, "night", plain)
    assert child.marker["lineage"] == {"number": 2, "ancestors": [plain.fingerprint]}
    assert newest(root) == "night"
    assert [stage.folder.name for stage in lineage_ends(read_finished(root))] == ["night"]


def test_slices_are_named_by_name_folder_or_manifest(root: Place, tmp_path: Path) -> None:
    finish(root, "a")
    own = slices_stage(root, "own")
    for text in ("a", str(tmp_path / "slices/a"), str(tmp_path / "slices/a/manifest.json")):
        found = find_parent(root, text, own)
        assert found is not None
        assert found.folder == root / "slices" / "a"
    assert find_parent(root, None, own) is None
    assert lineage_of(None, None) is None
    with pytest.raises(UsageError, match="no slices there"):
        find_parent(root, str(tmp_path / "nothing"), own)
    for edit in ('"x": 0', '"x": NaN', '"x": 1e999', r'"x": "\ud800"'):
        (tmp_path / "slices/a/manifest.json").write_text(f'{{"format": "{SLICES_FORMAT}", "checksum": "", {edit}}}')
        with pytest.raises(DataError, match="was edited or damaged"):
            find_parent(root, "a", own)
    with pytest.raises(DataError, match="was edited or damaged"):
        newest(root)


def test_what_was_begun_continues_with_what_it_began_with(root: Place) -> None:
    older = finish(root, "older")
    own = finish(root, "own", older)
    finish(root, "newer", own)
    assert newest(root) == "older"
    assert newest(root, overwrite=True) == "newer"  # it knows all that there was
    older.folder.delete()
    assert newest(root) is None
    (root / "slices" / "newer").delete()
    with pytest.raises(UsageError, match="only own has splits to keep, and it would be replaced; give another --name"):
        newest(root, overwrite=True)
    with pytest.raises(UsageError, match="--splits-from own: these are the slices to be made; give them another"):
        find_parent(root, "own", slices_stage(root, "own"))
