"""The log of a rank, under its run: ``runs/NAME/logs/rank-0002-HOST-PID.log``.

What is logged before the run's place is known is kept. On a local root the file is written in its place, line by
line; for another root it is a temporary file of this machine, and a copy goes to its place by `RunLog.upload`.
"""

import logging
import os
import socket
import tempfile
import threading
import time
import traceback
from pathlib import Path

from etl.storage.atomic import replace_bytes
from etl.storage.filesystem import LocalFilesystem
from etl.storage.place import Place

FOLDER = "logs"
UPLOAD_S = 5.0


class RunLog:
    """Lines of UTC time, level and text. ``stream`` is its file descriptor, the same from beginning to end."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as unnamed:
            self.stream = os.dup(unnamed.fileno())
        self._place: Place | None = None
        self._temporary: Path | None = None
        self._copying = threading.Lock()
        self._is_copied = False
        self._is_named = False  # a message has named the temporary file
        self._handler = _ToDescriptor(self.stream)
        self._handler.setFormatter(_utc_formatter())
        self._logger = logging.Logger("ringslice")
        self._logger.addHandler(self._handler)

    def info(self, line: str) -> None:
        """Log a line."""
        self._logger.info(line)

    def failure(self, line: str, error: BaseException | None = None) -> None:
        """Log a failure, with the traceback of ``error``."""
        text = "" if error is None else "\n" + "".join(traceback.format_exception(error)).rstrip()
        self._logger.error(line + text)

    def open(self, run: Place, rank: int) -> None:
        """Keep this log of ``rank`` under ``run`` from now on, with all that was logged. Raises OSError."""
        place = run / FOLDER / f"rank-{rank:04d}-{socket.gethostname()}-{os.getpid()}.log"
        if place.filesystem.scheme == LocalFilesystem.scheme:
            place.parent.make_folder()
            named = os.open(place.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        else:
            named, path = tempfile.mkstemp(prefix="ringslice-", suffix=f"-{place.name}")
            self._temporary = Path(path)
        self._handler.acquire()  # no line of another thread's is lost on the way
        try:
            os.write(named, self._text())
            os.dup2(named, self.stream, inheritable=False)
        finally:
            self._handler.release()
            os.close(named)
        self._place = place
        self.upload(0)  # so that the file that others name is there, even if this process is killed

    @property
    def uri(self) -> str:
        """Where it is, or will be; empty before `open`."""
        return "" if self._place is None else self._place.uri

    def upload(self, limit_s: float = UPLOAD_S) -> str:
        """Copy it to its place if that is elsewhere; returns the path of the local file if that failed, else "".

        It fails if it takes longer than ``limit_s``.
        """
        if self._place is None or self._temporary is None:
            return ""
        done = threading.Event()
        threading.Thread(target=self._copy, args=(self._place, done), name="log", daemon=True).start()
        if done.wait(limit_s):
            return ""
        self._is_named = limit_s > 0
        return str(self._temporary)

    def end(self, limit_s: float = UPLOAD_S) -> str:
        """`upload`, for the last time: if it and the one before succeed, the temporary file is deleted."""
        kept = self.upload(limit_s)
        if self._temporary is not None and not kept and not self._is_named:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None
        return kept

    def _copy(self, place: Place, done: threading.Event) -> None:
        try:
            with self._copying:  # one after the other, so that the last copy is the longest
                if self._is_copied and not place.parent.exists():
                    raise FileNotFoundError(f"{place.parent} was removed")  # with its run, whose name is free again
                place.parent.make_folder()
                replace_bytes(place, place.parent, self._text())
                self._is_copied = True
            done.set()
        except Exception as error:  # the local file is named instead
            self._logger.warning(f"{place} was not written: {error}")

    def _text(self) -> bytes:
        size = os.fstat(self.stream).st_size
        return os.pread(self.stream, size, 0)


class _ToDescriptor(logging.Handler):
    """Writes each line at once."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._descriptor, f"{self.format(record)}\n".encode(errors="replace"))
        except OSError:  # a log that cannot be written is not a reason to fail
            pass


def _utc_formatter() -> logging.Formatter:
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter
