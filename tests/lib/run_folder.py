"""The folder that all workers of a test run share, and failures of set-ups as pytest is to show them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from tests.lib.set_up_failures import FOLDER_VARIABLE, HADOOP, raise_known


@pytest.fixture(scope="session", autouse=True)
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this run, the same in all workers of pytest-xdist.

    Failures of set-ups are kept in it; if a test has started this run, in the folder of that test's run.
    """
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if hasattr(request.config, "workerinput") else own  # a worker's is inside its run's
    with pytest.MonkeyPatch.context() as patch:
        if FOLDER_VARIABLE not in os.environ:
            patch.setenv(FOLDER_VARIABLE, str(folder))
        yield folder


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Do not make a test's other fixtures, which may take a minute, if Hadoop could not be set up."""
    if item.get_closest_marker("hadoop"):
        with fail_in_one_line():
            raise_known(HADOOP)


@contextmanager
def fail_in_one_line() -> Iterator[None]:
    """Report a failure of the environment without a traceback: as many tests have it as need what was to be set up."""
    try:
        yield
    except EnvironmentFailure as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
