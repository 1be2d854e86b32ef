"""The seeded defects still apply: `python -m tests.lib.defects` tries whether the tests see them."""

from collections import Counter
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY
from tests.lib.defects import apply
from tests.lib.seeded_defects import DEFECTS, PLACES, Defect


def copy_file(defect: Defect, tree: Path) -> Path:
    """The file that the defect changes, alone, below ``tree``."""
    path = tree / defect.file
    path.parent.mkdir(parents=True)
    path.write_text((REPOSITORY / defect.file).read_text())
    return path


@pytest.mark.parametrize("defect", DEFECTS, ids=[each.name for each in DEFECTS])
def test_each_defect_changes_one_place_and_compiles(defect: Defect, tmp_path: Path) -> None:
    path = copy_file(defect, tmp_path)
    apply(defect, tmp_path)
    assert path.read_text() != (REPOSITORY / defect.file).read_text()
    compile(path.read_text(), defect.file, "exec")
    if defect.old not in defect.new:
        with pytest.raises(ValueError, match=f"{defect.name}: {defect.file} has its text 0 times"):
            apply(defect, tmp_path)


def test_there_are_thirty_of_them_three_or_four_in_each_place() -> None:
    assert len({each.name for each in DEFECTS}) == len(DEFECTS) == 30
    by_place = Counter(each.place for each in DEFECTS)
    assert set(by_place) == set(PLACES)
    assert set(by_place.values()) <= {3, 4}
    assert all((REPOSITORY / path).exists() for each in DEFECTS for path in each.tests)
