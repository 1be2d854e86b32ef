from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure, UsageError
from etl.storage import open_place, publish, publish_bytes, publishing


def test_a_path_and_a_uri_name_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("x")
    for text in (f"{tmp_path}/a b", f"file://{tmp_path}/a%20b"):
        assert open_place(text).read_bytes() == b"x"
    assert open_place("data").path == str(Path.cwd() / "data")


@pytest.mark.parametrize("text", ["", "s3://bucket/x", "file://elsewhere/x"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give a"):
        open_place(text)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    with pytest.raises(RuntimeError, match="stop"), publishing(place / "final", place / "_work") as output:
        output.write(b"half")
        assert not (tmp_path / "final").exists()
        raise RuntimeError("stop")
    assert [path.name for path in tmp_path.rglob("*")] == ["_work"]
    with publishing(place / "deep" / "final", place / "_work") as output:
        output.write(b"whole")
    assert (tmp_path / "deep" / "final").read_bytes() == b"whole"
    assert output.won
    assert output.sha256 == (place / "deep" / "final").sha256()
    assert list((tmp_path / "_work").iterdir()) == []


def test_the_second_attempt_loses_and_removes_its_own(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    publish_bytes(place / "final", place / "_work", b"same")
    assert not publish_bytes(place / "final", place / "_work", b"same").won
    with pytest.raises(EnvironmentFailure, match="other bytes"):
        publish_bytes(place / "final", place / "_work", b"other")
    assert (tmp_path / "final").read_bytes() == b"same"
    assert list((tmp_path / "_work").iterdir()) == []


def test_publishing_is_exclusive(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("1")
    (tmp_path / "second").write_text("2")
    place = open_place(str(tmp_path))
    assert [publish(place / name, place / "final") for name in ("first", "second")] == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final").read_text() == "1"


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    (tmp_path / "marker.json").write_text("{")
    with pytest.raises(EnvironmentFailure, match=r"marker\.json is not JSON"):
        (open_place(str(tmp_path)) / "marker.json").read_json()
