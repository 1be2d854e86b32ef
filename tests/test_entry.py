"""What commands do before they import packages of ours, and how their children begin."""

import signal
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY, failed, run

pytestmark = pytest.mark.integration

RINGSLICE = ("python", "-P", "-m", "ringslice_entry")


@pytest.mark.parametrize("words", [RINGSLICE, ("python", "train/main.py")], ids=["ringslice", "train/main.py"])
def test_a_package_of_another_project_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "etl").mkdir()
    (tmp_path / "etl/__init__.py").touch()
    finished = run(*words, "--help", variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    failed(finished, 3, f"{tmp_path}/etl comes before {REPOSITORY}/etl")


def test_an_interrupt_during_the_first_imports_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    finished = run(*RINGSLICE, "--help", variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    assert (finished.returncode, finished.stdout, finished.stderr) == (-signal.SIGINT, "", "")


def test_an_interrupt_during_the_imports_of_a_program_in_our_place_is_one_line(tmp_path: Path) -> None:
    """Both signals, as a terminal sends the one and a scheduler the other."""
    interrupt = "for number in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), number)"
    end = "from etl.errors import run_reporting\nsys.exit(run_reporting(lambda: 0))"
    (tmp_path / "stage.py").write_text(f"import os, signal, sys\n{interrupt}\n{end}\n")
    start = "from etl.processes import exec_module; exec_module('stage', [])"
    finished = run("python", "-c", start, variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    failed(finished, 130, "interrupted")
    assert finished.stderr.count("\n") == 1
