"""What the tests of checkpoints share: a run's folder, and one for what is about to be published."""

from pathlib import Path

import pytest

from etl.storage import Place, open_place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "run"))


@pytest.fixture
def attempts(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "attempts")).make_folder()
