"""Tests of the DAGs that are ended by a signal leave no process of Airflow or PostgreSQL."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.airflow_dags.real_airflow import TIED
from tests.lib.ranks.running import started, wait_until

INNER = "tests/airflow_dags/test_scheduler.py::test_what_cannot_go_well_is_tried_once"
READY = {
    "api-server": "Application startup complete",
    "scheduler": "Starting the scheduler",
    "triggerer": "Starting the triggerer",
    "postgres": "ready to accept connections",
}  # by service, what it writes to its log


def processes_in(folder: Path) -> list[int]:
    """Those that work in ``folder``, or write their output to a file in it."""
    found = set()
    for link in (*Path("/proc").glob("[0-9]*/cwd"), *Path("/proc").glob("[0-9]*/fd/1")):
        with suppress(OSError):
            if os.readlink(link).startswith(f"{folder}/"):
                found.add(int(link.parts[2]))
    return sorted(found)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_services_end_with_the_tests(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    words = (*TIED, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder}", INNER)

    def are_up() -> bool:
        logs = {name: list(folder.glob(f"scheduler*/{name}.log")) for name in READY}
        return all(logs[name] and text in logs[name][0].read_text() for name, text in READY.items())

    with started(*words, log=tmp_path / "log") as running:
        wait_until(are_up, running)
        assert len(processes_in(folder)) > len(READY)
        running.send_signal(number)
        wait_until(lambda: running.poll() is not None)
        wait_until(lambda: not processes_in(folder))
