"""``ringslice doctor``: looks at all that the stages stand on, and says of each thing whether it works."""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from etl.doctor import hadoop_checks, storage_checks, training_checks, yarn_checks
from etl.doctor.check import Check, run_checks
from etl.doctor.context import Surroundings
from etl.errors import EnvironmentFailure

PYTHON = "Python"
PACKAGES = ("ringslice", "pyarrow", "mrjob", "hdfs-native", "numpy", "pillow")
OLDEST, FIRST_TOO_NEW = (3, 11), (3, 13)

_GROUPS: dict[str, Callable[[Surroundings], Iterator[Check]]] = {
    "python": lambda around: _python_checks(),
    "hadoop": hadoop_checks.checks,
    "storage": storage_checks.checks,
    "yarn": yarn_checks.checks,
    "tasks": yarn_checks.python_checks,
    "training": lambda around: training_checks.checks(),
}
GROUPS = tuple(_GROUPS)


def diagnose(around: Surroundings, groups: Sequence[str], as_json: bool) -> int:
    """Run the checks of ``groups``, in order, all where it is empty; returns 0 where nothing fails, else 3."""
    every = (check for name, checks in _GROUPS.items() if not groups or name in groups for check in checks(around))
    return run_checks(every, as_json, place=around.uri)


def _python_checks() -> Iterator[Check]:
    yield Check(PYTHON, "version", _version)
    yield Check(PYTHON, "packages", _packages)


def _version() -> str:
    told = f"{sys.version.split()[0]} ({sys.executable})"
    if not OLDEST <= sys.version_info[:2] < FIRST_TOO_NEW:
        raise EnvironmentFailure(f"{told}: mrjob needs Python 3.11 or 3.12; install one and run: make install")
    return told


def _packages() -> str:
    told, missing = [], []
    for name in PACKAGES:
        try:
            told.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise EnvironmentFailure(f"{', '.join(missing)} missing; run: make install (or: pip install -e .)")
    return ", ".join(told)
