"""Failures of set-ups as pytest is to show them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from etl.errors import EnvironmentFailure


@contextmanager
def fail_in_one_line() -> Iterator[None]:
    """Report a failure of the environment without a traceback: as many tests have it as need what was to be set up."""
    try:
        yield
    except EnvironmentFailure as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
