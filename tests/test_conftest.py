"""What the tests need of the process that runs them."""

import signal
from collections.abc import Iterator

import pytest

from tests import conftest


@pytest.fixture
def interrupt_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_an_ignored_interrupt_is_heard_again(
    interrupt_handler: None, monkeypatch: pytest.MonkeyPatch, handler: signal.Handlers
) -> None:
    monkeypatch.setattr(conftest, "note_process_starts", lambda: None)
    signal.signal(signal.SIGINT, handler)
    conftest.pytest_configure()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
