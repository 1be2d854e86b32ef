"""The lines in which ranks report why they ended, and which of them a launcher shows."""

import signal
import threading

from etl.errors import ERROR_PREFIX
from train.monitor.messages import without_rank

LOST = "another rank has ended, or does not answer; see what its launcher reports"  # of a rank that did not fail itself
INTERRUPTION = "ringslice: interrupted"
REMEDIES = {  # by script: how to go on after an interrupt
    "main.py": "--resume goes on from the last checkpoint",
    "evaluate.py": "run it again",
    "promote.py": "if champion.json is as before, run it again",
    "export.py": "run it again",
}
_INTERRUPTIONS = (INTERRUPTION, f"{ERROR_PREFIX}interrupted")


def describe_exit(status: int) -> str:
    """In words, how a process ended, by its status, which is negative after a signal."""
    if status >= 0:
        return f"ended with status {status}"
    names = {each.value: each.name for each in signal.Signals}  # not all that are valid have one
    return f"was killed ({names.get(-status, f'signal {-status}')})"


class Endings:
    """Each reason is shown once, with the first rank that has it. An interruption, and `LOST`, are kept for the end:
    they may follow from a reason that comes later, as when a launcher ends the ranks after it has lost one.
    """

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._lock = threading.Lock()
        self._interrupted = self._lost = ""  # the first such line

    @property
    def is_explained(self) -> bool:
        """True if a reason was shown."""
        return bool(self._shown)

    @property
    def kept(self) -> str:
        """The line to show at the end; empty if there is none, or a reason was shown."""
        return "" if self.is_explained else self._interrupted or self._lost

    def is_shown(self, line: str) -> bool:
        """False if ``line`` is an ending that is kept or left out; it is without the launcher's prefix."""
        is_interruption = line.startswith(_INTERRUPTIONS)
        if not is_interruption and not line.startswith(ERROR_PREFIX):
            return True
        with self._lock:
            if is_interruption:
                self._interrupted = self._interrupted or line
                return False
            if LOST in line:
                self._lost = self._lost or line
                return False
            reason = without_rank(line.removeprefix(ERROR_PREFIX))
            if reason in self._shown:
                return False
            self._shown.add(reason)
        return True
