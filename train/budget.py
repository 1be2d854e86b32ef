"""A bound on the memory of what is read ahead, shared by the lanes of a rank."""

import threading

from train.patience import Stopped


class Budget:
    """At most ``limit_bytes`` at once for what ``lanes`` lanes have read, or are reading, and nobody has freed yet.

    A lane all of whose windows were passed on always gets what it asks for, so none ever waits for another: that much,
    ``largest_bytes`` for each such lane, is kept back of what the others may take, and for a quarter of the lanes at
    least, for a batch holds on to windows that were passed on.
    """

    def __init__(self, limit_bytes: int, lanes: int, largest_bytes: int) -> None:
        self._limit = limit_bytes
        self._largest = largest_bytes
        self._waiting = [0] * lanes  # windows of each lane that its rank has not done with
        self._held = 0
        self._changed = threading.Condition()  # its lock may be taken again by its owner, for whom a window is freed
        self._stopped = False

    def acquire(self, lane: int, size_bytes: int) -> None:
        """Wait until ``lane`` may read a window of this size. Raises Stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._fits(lane, size_bytes))
            if self._stopped:
                raise Stopped
            self._waiting[lane] += 1
            self._held += size_bytes

    def pass_on(self, lane: int) -> None:
        """The rank has drawn all records of a window of ``lane``, though batches may still hold it."""
        with self._changed:
            self._waiting[lane] -= 1
            self._changed.notify_all()

    def free(self, size_bytes: int) -> None:
        """Nothing holds a window of this size any more."""
        with self._changed:
            self._held -= size_bytes
            self._changed.notify_all()

    def stop(self) -> None:
        """Whoever waits is told; nobody waits from now on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _fits(self, lane: int, size_bytes: int) -> bool:
        if not self._waiting[lane]:
            return True
        kept_back = max(self._waiting.count(0), len(self._waiting) // 4) * self._largest
        return self._held + kept_back + size_bytes <= self._limit
