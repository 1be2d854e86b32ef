"""What tests of killed tasks share."""

import secrets

import pytest


@pytest.fixture
def run() -> str:
    """The id of a DAG run: a folder of a test that passed is deleted, and the next test may get its name."""
    return f"run-{secrets.token_hex(4)}"
