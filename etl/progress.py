"""What is shown, on standard error, while a stage works: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LOG_INTERVAL_S = 10.0


class Progress:
    """How far a stage has come, in ``total`` things of one ``unit``.

    with Progress("ingest", 1797, "images") as progress:
        progress.update(done=12)

    ``quiet`` shows nothing; ``begins`` is whether a log has a line for the beginning. The summary is that of the end.
    """

    def __init__(self, stage: str, total: int, unit: str, *, quiet: bool = False, begins: bool = True) -> None:
        self.stage, self.total, self.unit = stage, total, unit
        self.quiet, self.begins = quiet, begins
        self._done = 0
        self._lock = Lock()
        self._first = 0
        self._rich: RichProgress | None = None

    def __enter__(self) -> Self:
        self._stderr = sys.stderr  # mrjob's inline runner puts another in its place, which takes no text
        self._started = self._logged_at = time.monotonic()
        if sys.stderr.isatty() and not self.quiet:
            self._rich = _open_bar(self.unit)
            self._task = self._rich.add_task(self.stage, total=self.total, note="")
            self._rich.start()
        elif self.begins:
            self._log(f"{self.total:,} {self.unit} to do")
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def skip(self, done: int) -> None:
        """``done`` things were there before this run began; they do not count for the rate."""
        self._first = done
        self.update(done)

    def advance(self) -> None:
        """One more thing is done; for several threads at once."""
        with self._lock:
            self.update(self._done + 1)

    def update(self, done: int, note: str = "") -> None:
        """``done`` things are done by now; ``note`` is shown instead of the rate."""
        self._done = done
        rate = (done - self._first) / max(1e-9, time.monotonic() - self._started)
        note = note or f"{rate:,.0f}/s"
        if self._rich is not None:
            self._rich.update(self._task, completed=done, note=note)
        elif time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            self._log(f"{done:,} of {self.total:,} {self.unit}, {note}")

    def _log(self, line: str) -> None:
        if not self.quiet:
            log(self.stage, line, self._stderr)


def log(stage: str, line: str, stderr: TextIO | None = None) -> None:
    """Print one line about a stage to standard error. If that is full, or nobody reads it, the work goes on."""
    with suppress(OSError):
        print(f"ringslice {stage}: {line}", file=stderr or sys.stderr, flush=True)


def _open_bar(unit: str) -> "RichProgress":
    # imported only here, for most processes that import this module are tasks, and show nothing
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<10}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), transient=True)
