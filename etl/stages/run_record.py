"""What stands in ``run.json``: where, when and by what a stage was made. No bytes of data follow from it."""

import getpass
import importlib.metadata
import platform
import socket
import sys
import time
from datetime import UTC, datetime
from typing import Any

MAKERS = ("mrjob", "numpy", "pillow", "pyarrow", "protobuf", "crc32c")


class Run:
    """Where, when and by what a stage was made: the content of ``run.json``."""

    def __init__(self, runner: str | None = None, **facts: object) -> None:
        self._clock = time.monotonic()
        self._started = datetime.now(UTC)
        self._facts = {"runner": runner, **facts}

    def note(self, **facts: object) -> None:
        """Add to what is known of the run."""
        self._facts |= facts

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._clock

    def finished(self) -> dict[str, Any]:
        """The content of ``run.json`` for a run that ends now."""
        return {
            "started": self._started.isoformat(timespec="milliseconds"),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds, 3),
            "host": socket.gethostname(),
            "user": _user(),
            "command": sys.argv,
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in MAKERS},
            **self._facts,
        }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
