"""What could not be set up once is not tried again by the same test run: Hadoop, its cluster, Airflow.

All processes of a run (pytest-xdist's workers, a pytest or a command that a test starts) find the failures in the run's
folder, which an environment variable names. Outside a test run nothing is kept.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etl.errors import EnvironmentFailure, explain

FOLDER_VARIABLE = "TEST_RUN_FOLDER"
HADOOP, AIRFLOW = "hadoop", "airflow"


@contextmanager
def fail_once(name: str) -> Iterator[None]:
    """Raise at once what the set-up ``name`` failed with before in this test run; keep what the block fails with.

    A defect of ours is raised unchanged the first time, because its traceback is needed.
    """
    raise_known(name)
    try:
        yield
    except Exception as error:
        explained = explain(error)
        line = " ".join((explained[1] if explained else f"{type(error).__name__}: {error}").split())
        _keep(name, line)
        if explained is None:
            raise
        raise EnvironmentFailure(line) from error


def raise_known(name: str) -> None:
    """Raise the failure that this test run keeps of the set-up ``name``, if any."""
    path = _path(name)
    if path is not None and path.exists():
        raise EnvironmentFailure(path.read_text())


def _keep(name: str, line: str) -> None:
    path = _path(name)
    if path is None or path.exists():
        return
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(line)
    unfinished.rename(path)


def _path(name: str) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) / f"{name}.failure" if folder else None
