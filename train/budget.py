"""A bound on the memory of what is read ahead, shared by the lanes of a rank."""

import threading
from typing import Self


class Stopped(Exception):
    """The reading was stopped while a lane waited."""


class Budget:
    """At most ``limit_bytes`` at once for what ``lanes`` lanes have read, or are reading, and their rank has not taken.

    A lane that holds nothing always gets what it asks for, so none ever waits for another: that much is kept back of
    what the others may take. Where ``largest_bytes``, what one lane may ask for at once, times ``lanes`` is within the
    limit, so is what they hold together.
    """

    def __init__(self, limit_bytes: int, lanes: int, largest_bytes: int) -> None:
        self._limit = limit_bytes
        self._largest = largest_bytes
        self._held = [0] * lanes
        self._changed = threading.Condition()
        self._stopped = False
        self.peak_bytes = 0

    def acquire(self, lane: int, size_bytes: int) -> None:
        """Wait until ``lane`` may hold so much more. Raises Stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._fits(lane, size_bytes))
            if self._stopped:
                raise Stopped
            self._held[lane] += size_bytes
            self.peak_bytes = max(self.peak_bytes, sum(self._held))

    def release(self, lane: int, size_bytes: int) -> None:
        """``lane`` holds so much less."""
        with self._changed:
            self._held[lane] -= size_bytes
            self._changed.notify_all()

    def stop(self) -> None:
        """Whoever waits is told; nobody waits from now on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _fits(self, lane: int, size_bytes: int) -> bool:
        if not self._held[lane]:
            return True
        kept_back = self._held.count(0) * self._largest
        return sum(self._held) + kept_back + size_bytes <= self._limit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
