"""What commands do before they import packages of ours, and how their children begin."""

from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY, failed, run

pytestmark = pytest.mark.integration

RINGSLICE = ("python", "-P", "-m", "ringslice_entry")


@pytest.mark.parametrize("words", [RINGSLICE, ("python", "train/main.py")], ids=["ringslice", "train/main.py"])
def test_a_package_of_another_project_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "etl").mkdir()
    (tmp_path / "etl/__init__.py").touch()
    told = run(*words, "--help", variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    failed(told, 3, f"{tmp_path}/etl comes before {REPOSITORY}/etl")
