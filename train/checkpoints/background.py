"""Checkpoints in the background: the trainer goes on with its steps while its last checkpoint is written."""

from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any

from etl.errors import EnvironmentFailure, reason_of
from etl.progress import log
from etl.storage.atomic import ReplacedError
from etl.storage.place import Place
from train.checkpoints.safetensors_file import Arrays
from train.checkpoints.store import DamagedError, OnProgress, amend, name_of, nothing, prune, remove, write

ABANDON_S = 2.0
FAILURES = 3


class _AbandonedError(Exception):
    """Raised in the background if the checkpoint is no longer wanted."""


class Saver:
    """Writes checkpoints of ``run``, one at a time, each in a thread; then removes those that are outdated.

    ``before`` (what must be on storage before a checkpoint is), ``before_file`` and ``progress`` are called in it.
    The end of the process does not wait for it: call `finish`. If storage fails, one line reports it, and the next
    checkpoint is the next try; after ``failures`` in a row, and for any other error at once, the error is raised by the
    next call but `abandon`, once. ``step`` is that of the last checkpoint, whose marker `amend` replaces; set it for
    one that another process wrote.
    """

    def __init__(
        self,
        run: Place,
        staging: Place,
        keep: int,
        progress: OnProgress = nothing,
        *,
        failures: int = FAILURES,
        before: Callable[[], None] = nothing,
        before_file: Callable[[Place], None] = nothing,
    ) -> None:
        self._run, self._staging, self._keep, self._progress = run, staging, keep, progress
        self._limit, self._before, self._before_file = failures, before, before_file
        self.step: int | None = None
        self._unwritten: Mapping[str, Arrays] | None = None
        self._facts: dict[str, Any] = {}
        self._failures, self._failed = 0, -1  # in a row, and the step of the last one
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._abandoned = Event()

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, step: int, groups: Mapping[str, Arrays], facts: dict[str, Any]) -> None:
        """Begin to write a checkpoint, once the last one is written; the arrays must not change until then.

        Raises what went wrong with the last one; this one is not begun then.
        """
        self.wait()
        self.step, self._unwritten = step, groups
        self._start(facts, self._limit)

    def amend(self, facts: dict[str, Any]) -> None:
        """Begin to replace the facts of the last checkpoint, once it is written; one that failed is written now.

        Raises as `submit` does.
        """
        self.wait()
        self._start(facts, self._limit)

    def check(self) -> None:
        """Raise what went wrong with the last checkpoint, if it did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Return when nothing is being written.

        It waits without a limit, because the monitor ends a rank whose storage does not answer.
        """
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """As `join`; raises what went wrong."""
        self.join()
        self.check()

    def finish(self) -> None:
        """Return when the last checkpoint is written; one that failed is tried once more. Raises what went wrong."""
        self.wait()
        if self._failures:
            self._start(self._facts, limit=1)
            self.wait()

    def discard(self, step: int) -> None:
        """Remove the checkpoint of ``step``, once the last one is written. Raises what went wrong."""
        self.wait()
        remove(self._run, self._staging, step)

    def abandon(self) -> None:
        """Have nothing more written, and wait at most 2 s for that."""
        self._abandoned.set()
        if self._thread is not None:
            self._thread.join(ABANDON_S)

    def _start(self, facts: dict[str, Any], limit: int) -> None:
        self._facts = facts
        self._thread = Thread(target=self._save, args=(self.step, limit), name=f"checkpoint {self.step}", daemon=True)
        self._thread.start()

    def _save(self, step: int, limit: int) -> None:
        try:
            self._before()
            if self._unwritten is None:
                amend(self._run, self._staging, step, self._facts)
            else:
                write(
                    self._run,
                    self._staging,
                    step,
                    self._unwritten,
                    self._facts,
                    progress=self._go_on,
                    before_file=self._before_file,
                )
            self._unwritten = None
        except _AbandonedError:
            pass
        except (OSError, EnvironmentFailure, DamagedError) as error:  # damaged: deleted before its score
            is_again, self._failed = step == self._failed, step  # with its score
            self._failures += not is_again
            if self._failures >= limit or isinstance(error, ReplacedError):
                self._error = error
            elif not is_again:
                self._report(step, error)
        except BaseException as error:  # raised in the trainer's own thread
            self._error = error
        else:
            self._failures, self._failed = 0, -1
            self._prune()

    def _prune(self) -> None:
        """Remove older checkpoints; one that cannot be removed is reported and stays: this one is written."""
        try:
            prune(self._run, self._staging, self._keep)
        except (OSError, EnvironmentFailure) as error:
            why = reason_of(error)
            log("train", f"an older checkpoint was not removed ({why}); the next checkpoint is the next try")
        except BaseException as error:
            self._error = error

    def _report(self, step: int, error: BaseException) -> None:
        log(
            "train",
            f"checkpoint {name_of(step)} was not written ({reason_of(error)}); the next one is the next try"
            f" (failure {self._failures} of --checkpoint-failures {self._limit})",
        )

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise _AbandonedError
        self._progress()
