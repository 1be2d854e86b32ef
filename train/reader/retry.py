"""Try again what storage fails at, and longer than a client does: a DataNode takes a while to come back."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from etl.errors import DataError, EnvironmentFailure
from etl.progress import log
from etl.storage.place import Place

PAUSES_S = (0.1, 0.3, 1.0, 2.0)  # the last one again and again

Result = TypeVar("Result")


class ReadStopped(Exception):
    """The reading was stopped while a lane waited."""


def missing(place: Place) -> DataError:
    """A file of the slices is not there."""
    return DataError(f"{place} is missing; see: ringslice verify")


@dataclass(frozen=True)
class Patience:
    """Tries again for ``retry_s`` seconds, unless ``stopping`` is set meanwhile."""

    retry_s: float
    stopping: threading.Event = field(default_factory=threading.Event)

    def call(self, place: Place, function: Callable[[], Result]) -> Result:
        """What ``function`` returns, which reads ``place``.

        Raises DataError if ``place`` is missing, and as `pause` does.
        """
        began, tries = time.monotonic(), 0
        while True:
            try:
                return function()
            except FileNotFoundError:
                raise missing(place) from None
            except (OSError, EnvironmentFailure) as error:
                self.pause(error, place, 0, began, tries)
                tries += 1

    def pause(self, error: Exception, place: Place, offset: int, began: float, tries: int) -> None:
        """Wait before the next try to read ``place`` at ``offset``, after ``tries`` since ``began``.

        Raises EnvironmentFailure if they took too long or cannot help, ReadStopped if none is wanted any more.
        """
        reason = str(error).partition("\n")[0].partition(". Detail:")[0]
        if isinstance(error, (PermissionError, IsADirectoryError)) or time.monotonic() - began > self.retry_s:
            look = "; look at: hdfs fsck" if place.filesystem.scheme == "hdfs" else ""
            raise EnvironmentFailure(f"{place} cannot be read at offset {offset} ({reason}){look}") from error
        if not tries:
            log("reader", f"{place} cannot be read at offset {offset} ({reason}); trying again")
        if self.stopping.wait(PAUSES_S[min(tries, len(PAUSES_S) - 1)]):
            raise ReadStopped
