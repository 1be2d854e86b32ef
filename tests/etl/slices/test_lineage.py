"""From which slices splits are taken: by name, or the end of the lineage."""

from pathlib import Path
from typing import Any

import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.slices import history
from etl.slices.history import (
    FIRST,
    ParentSlices,
    find_parent,
    finished_at,
    lineage_ends,
    lineage_of,
    read_finished,
    require_parent,
)
from etl.slices.manifest import read_slices
from etl.stages.layout import SLICES_FORMAT, slices_stage
from etl.stages.stage import Stage
from etl.storage.place import Place, json_bytes, open_place, with_checksum


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
    assert first.marker["lineage"] == FIRST
    second = finish(root, "a", first)
    third = finish(root, "b", second)
    assert third.marker["lineage"] == {"number": 3, "ancestors": [second.fingerprint, first.fingerprint]}
    (tmp_path / "slices/c/run.json").write_bytes(json_bytes({"finished": "2099-01-01"}))
    (tmp_path / "slices/a/run.json").write_text("{garbled")
    (tmp_path / "slices/unfinished").mkdir()
    assert newest(root) == "b"
    assert sorted(map(str, (finished_at(slices_stage(root, name))[1] for name in "abc")))  # none of them ends it


def test_two_ends_are_named(root: Place) -> None:
    night = finish(root, "night-1")
    finish(root, "night-2", night)
    finish(root, "other-seed", night)
    with pytest.raises(UsageError, match="several ends of the lineage, night-2 and other-seed; name the one"):
        newest(root)
    assert newest(root, own="other-seed", overwrite=True) == "night-2"
    assert [stage.folder.name for stage in lineage_ends(read_finished(root))] == ["night-2", "other-seed"]


def test_two_ends_are_not_made_at_the_same_time(root: Place) -> None:
    own, night = slices_stage(root, "own"), finish(root, "night-1")
    require_parent(root, "newest", own, night)
    require_parent(root, "night-1", own, night)
    finish(root, "night-2", night)
    require_parent(root, "night-1", own, night)
    for parent in (night, None):
        with pytest.raises(
            EnvironmentFailure, match=r"night-2 was made or removed meanwhile.*run it again with --over"
        ):
            require_parent(root, "newest", own, parent)


def test_slices_that_are_removed_while_others_are_listed_are_left_out(
    root: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finish(root, "a")
    finish(root, "b", first)

    def removed_meanwhile(stage: Stage) -> Any:
        (root / "slices/a").delete()
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
