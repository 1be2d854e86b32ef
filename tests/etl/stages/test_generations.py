"""An earlier marker is found by its fingerprint only as long as its bytes have that fingerprint."""

from pathlib import Path

import pytest

from etl.stages.marker import Finished, fingerprint_of
from etl.storage.json_files import json_bytes
from etl.storage.place import open_place

FIRST, LAST = (json_bytes({"format": "test/1", "input": each}) for each in "xy")


@pytest.mark.parametrize("other", [FIRST.replace(b"x", b"z"), LAST], ids=["a flipped byte", "another marker"])
def test_a_kept_marker_that_is_not_the_one_of_its_name_is_not_believed(other: bytes, tmp_path: Path) -> None:
    stage = Finished("normalize", open_place(str(tmp_path)), "dataset.json", "test/1")
    kept = tmp_path / "generations" / f"{fingerprint_of(FIRST)}.json"
    kept.parent.mkdir()
    kept.write_bytes(FIRST)
    (tmp_path / "dataset.json").write_bytes(LAST)
    assert stage.find_generation(fingerprint_of(FIRST)) == {"format": "test/1", "input": "x"}
    kept.write_bytes(other)
    assert stage.find_generation(fingerprint_of(FIRST)) is None
