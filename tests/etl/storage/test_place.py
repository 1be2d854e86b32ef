from pathlib import Path

import pytest

from etl.errors import UsageError
from etl.storage.place import open_place


def test_a_path_and_a_uri_name_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in (f"{tmp_path}/a b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b", "~/a b"):
        assert open_place(text).read_bytes() == b"x"
    assert open_place("data").path == str(Path.cwd() / "data")


@pytest.mark.parametrize(
    "text", ["", "s3://bucket/x", "file://elsewhere/x", "s3:/bucket/x", "C:/x", r"C:\x", "~nobody-here/x"]
)
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give "):
        open_place(text)
