"""What stands in ``run.json``: where, when and by what a stage was made. No bytes of data follow from it."""

import getpass
import importlib.metadata
import platform
import re
import socket
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

# options of mrjob with NAME=VALUE, maybe a password, in the same word or the next: -D, also behind other letters
_SECRET = re.compile(r"(?:-[hqv]*D|--jobconf|--cmdenv|--hadoop-args?)=?(.*)", re.DOTALL)

MAKERS = ("mrjob", "numpy", "pillow", "pyarrow", "protobuf", "crc32c")


class RunRecord:
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
        """How long the run has taken so far."""
        return time.monotonic() - self._clock

    def finished(self) -> dict[str, Any]:
        """The content of ``run.json`` for a run that ends now."""
        return {
            "started": self._started.isoformat(timespec="milliseconds"),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds, 3),
            "host": socket.gethostname(),
            "user": _user(),
            "command": masked(sys.argv),
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in MAKERS},
            **self._facts,
        }


def masked(words: Iterable[str]) -> list[str]:
    """A command line with ``***`` behind the first ``=`` of what is given to Hadoop or to the tasks' environment."""
    shown, is_secret = list[str](), False
    for word in words:
        option = None if is_secret else _SECRET.fullmatch(word)
        start = option.start(1) if option else 0
        is_value = is_secret or option is not None
        shown.append(word[:start] + re.sub("=.*", "=***", word[start:], flags=re.DOTALL) if is_value else word)
        is_secret = option is not None and not option[1]
    return shown


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
