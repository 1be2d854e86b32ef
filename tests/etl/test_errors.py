"""Errors of the system that end a command in one line."""

import sys

import pytest

from etl.errors import explain
from mapreduce import _report_import

NO_ROOM = ImportError("/usr/lib/cv2/cv2.abi3.so: failed to map segment from shared object")


def test_a_library_that_no_memory_is_left_for_is_named() -> None:
    assert explain(NO_ROOM) == (3, "no memory to load cv2.abi3.so (raise the limit: ulimit -v)")
    assert explain(RuntimeError("can't start new thread")) == (
        3,
        "can't start new thread (raise the limit: ulimit -v)",
    )
    assert explain(ImportError("No module named 'numpy'")) is None


def test_a_task_that_cannot_load_one_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _report_import(ImportError, NO_ROOM, None)
    assert capsys.readouterr().err == "ringslice: error: no memory to load cv2.abi3.so (raise the limit: ulimit -v)\n"
    assert sys.excepthook is not sys.__excepthook__
