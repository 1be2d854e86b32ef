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

# options of mrjob with NAME=VALUE, maybe a password: -D, also behind other letters, and long ones
_SHORT = re.compile(r"(-[hqv]*D)(.*)", re.DOTALL)
_LONG = ("--jobconf", "--cmdenv")
_FOR_HADOOP = "--hadoop-arg"  # and --hadoop-args: words for Hadoop that are one for us
_VALUE = re.compile(r"=.*?(?=\s+[\"']?-|$)", re.DOTALL)

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
    """A command line with ``***`` for the values of ``-D NAME=VALUE`` and ``--cmdenv NAME=VALUE``."""
    shown, is_pair, is_for_hadoop = list[str](), False, False
    for word in words:
        option, equals, value = word.partition("=")
        if is_pair or is_for_hadoop:
            shown.append(_mask(word) if is_pair else _VALUE.sub("=***", word))
            is_pair = is_for_hadoop = False
        elif option.startswith(_FOR_HADOOP):
            shown.append(option + (f"={_VALUE.sub('=***', value)}" if equals else ""))
            is_for_hadoop = not equals
        elif short := _SHORT.fullmatch(word):
            shown.append(f"{short[1]}{_mask(short[2])}")
            is_pair = not short[2]
        elif option in _LONG:
            shown.append(f"{option}={_mask(value)}" if equals else option)
            is_pair = not equals
        else:
            shown.append(word)
    return shown


def _mask(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=***" if equals else name


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
