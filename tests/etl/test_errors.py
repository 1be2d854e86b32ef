"""Errors of the system that end a command in one line; and JSON that other programs can read."""

import errno
import io
import json
import math
import os
import signal
import sys
import threading

import pytest

from etl.entry_point import run_reporting
from etl.errors import INTERRUPTED, UsageError, explain, report
from etl.storage.place import json_bytes, with_checksum
from mapreduce import _report_import
from tests.lib.commands import PATIENCE_S

NO_ROOM = ImportError("/usr/lib/cv2/cv2.abi3.so: failed to map segment from shared object")


def test_errors_of_the_system_have_a_status_and_a_remedy() -> None:
    assert explain(NO_ROOM) == (3, "no memory to load cv2.abi3.so (raise the limit: ulimit -v)")
    assert explain(RuntimeError("can't start new thread")) == (3, "can't start new thread (raise the limit: ulimit -v)")
    assert explain(ImportError("No module named 'numpy'")) is None
    too_long = OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "xxx")
    assert explain(too_long) == (2, "File name too long: xxx (choose a shorter name)")
    assert explain(TimeoutError()) == (3, "TimeoutError")  # without a text


def test_a_variable_has_tracebacks_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for value, is_shown in (("yes", True), ("0", False), ("False", False)):
        monkeypatch.setenv("RINGSLICE_DEBUG", value)
        assert report(UsageError("why")) == 2
        assert ("UsageError: why\n" in capsys.readouterr().err) is is_shown


def test_a_task_that_cannot_load_one_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _report_import(ImportError, NO_ROOM, None)
    assert capsys.readouterr().err == "ringslice: error: no memory to load cv2.abi3.so (raise the limit: ulimit -v)\n"
    assert sys.excepthook is not sys.__excepthook__


class Ignored:
    """Python ignores exceptions of ``__del__``, and of callbacks while it imports."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_python_ignores_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def main() -> int:
        Ignored()
        threading.Event().wait(PATIENCE_S)
        return 0

    try:
        assert run_reporting(main) == INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_number_that_json_has_not_is_refused() -> None:
    for write in (json_bytes, with_checksum):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write({"a": [{"b": [1.0, math.nan]}]})


def test_json_is_json_on_an_output_that_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    names, written = {"caf\xe9 \U0001f600": 1}, io.BytesIO()

    def show() -> int:
        print(json.dumps(names, ensure_ascii=False), flush=True)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
        run_reporting(show)
        assert json.loads(written.getvalue()) == names
