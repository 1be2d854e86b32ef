"""Checkpoints in the background: the trainer goes on with its steps while its last checkpoint is written."""

from collections.abc import Mapping
from threading import Event, Thread
from typing import Any

from etl.storage.place import Place
from train.checkpoints.safetensors_file import Arrays
from train.checkpoints.store import Ticking, nothing, prune, write

ABANDON_S = 2.0


class _AbandonedError(Exception):
    """Raised in the background where nobody waits for the checkpoint any more."""


class Saver:
    """Writes checkpoints of ``run``, one at a time, each in a thread; then removes those that are outdated.

    ``tick`` is called in that thread. No end of the process waits for it, so call `finish`. What went wrong there is
    raised here, once, by the next call but `abandon`.
    """

    def __init__(self, run: Place, attempts: Place, keep: int, tick: Ticking = nothing) -> None:
        self._run, self._attempts, self._keep, self._tick = run, attempts, keep, tick
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._abandoned = Event()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, step: int, groups: Mapping[str, Arrays], facts: dict[str, Any]) -> None:
        """Begin to write a checkpoint, once the last one is written; the arrays must not change until then.

        Raises what went wrong with the last one; this one is not begun then.
        """
        self.finish()
        self._thread = Thread(target=self._save, args=(step, groups, facts), name=f"checkpoint {step}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong with the last checkpoint, if it did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when the last checkpoint is written; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def abandon(self) -> None:
        """Have nothing more written, and wait at most 2 s for that."""
        self._abandoned.set()
        if self._thread is not None:
            self._thread.join(ABANDON_S)

    def _save(self, step: int, groups: Mapping[str, Arrays], facts: dict[str, Any]) -> None:
        try:
            write(self._run, self._attempts, step, groups, facts, tick=self._go_on)
            prune(self._run, self._attempts, self._keep)
        except _AbandonedError:
            pass
        except BaseException as error:  # told by the trainer's own thread
            self._error = error

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise _AbandonedError
        self._tick()
