import shutil
from pathlib import Path

import pytest

from tests.lib.commands import run, succeeded

pytestmark = pytest.mark.integration

CHECKER = "tests/lib/independent_checker.py"


@pytest.mark.witness
def test_it_agrees(digits_root: Path, digits: Path) -> None:
    finished = succeeded(run("python", CHECKER, digits_root / "slices/default", digits))
    assert "{'train': 1437, 'validation': 180, 'test': 180}" in finished.stdout


def test_it_would_not_agree_otherwise(digits_root: Path, digits: Path, tmp_path: Path) -> None:
    more = shutil.copytree(digits, tmp_path / "more")
    shutil.copy(more / "0/0000.png", more / "0/another.png")
    finished = run("python", CHECKER, digits_root / "slices/default", more)
    assert "not in any slice: ['0/another.png']" in finished.stderr
