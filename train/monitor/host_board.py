"""Notes that the ranks of one host share, in a folder of its memory: so one of them can report for all.

Ranks whose containers do not share the folder are as ranks of different hosts.
"""

import fcntl
import json
import math
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Self

MEMORY = Path("/dev/shm")  # noqa: S108
ATTEMPTS, ATTEMPT_S = 20, 0.01


class HostBoard:
    """A file for each note, by name; it ends with the last process that has it open.

    Raises OSError if the folder cannot be had.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = self._open()

    @classmethod
    def of_job(cls, launcher_host: str, launcher_port: int) -> Self | None:
        """That of the job whose launcher's store is at this address; None if there is no folder for it."""
        parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        prefix = f"ringslice-{os.getuid()}-"
        host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
        try:
            _remove_left(parent, prefix)
            return cls(parent / f"{prefix}{host}-{launcher_host}-{launcher_port}".replace("/", "-"))
        except OSError:
            return None

    def path(self, name: str) -> Path:
        """The file of a note: JSON with the ``note`` and the system's monotonic time ``at`` which it was written."""
        return self._folder / name

    def put(self, name: str, note: dict[str, Any]) -> None:
        """Put ``note`` in the place of what is there. Raises OSError."""
        new = self.path(f".{name}-{os.getpid()}")
        new.write_text(json.dumps({"at": time.monotonic(), "note": note}, allow_nan=False))
        new.replace(self.path(name))

    def get(self, name: str, max_age_s: float = math.inf) -> dict[str, Any] | None:
        """The note; None if there is none, or none that was written within so many seconds."""
        try:
            found = json.loads(self.path(name).read_text())
            return found["note"] if time.monotonic() - found["at"] < max_age_s else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def names(self, prefix: str) -> list[str]:
        """Of all notes that begin with ``prefix``. Raises OSError."""
        return [name for name in os.listdir(self._folder) if name.startswith(prefix)]

    def close(self) -> None:
        """Leave it; the last one removes it."""
        if _is_alone(self._lock):
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _open(self) -> int:
        """Create it, or join those who have it open; what a job before this one has left in it is removed."""
        for _ in range(ATTEMPTS):
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except (FileExistsError, FileNotFoundError):  # another one has removed it this moment
                time.sleep(ATTEMPT_S)
                continue
            if os.fstat(lock).st_uid != os.getuid():
                os.close(lock)
                break
            try:
                for left in self._folder.iterdir() if _is_alone(lock) else ():
                    left.unlink(missing_ok=True)
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(self._folder)):
                    return lock
            except OSError:  # another one is creating or removing it
                time.sleep(ATTEMPT_S)
            os.close(lock)
        raise OSError(f"{self._folder} is not this user's, or does not stay")


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove the folders of jobs that were killed."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        if _is_alone(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _is_alone(lock: int) -> bool:
    """True if no other process has this folder open."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
