"""The monitor of a rank: where the rank is in the training, its log, and the watch over it and the other ranks.

One `Monitor` is made for each process and passed to the loop, the strategy, the reader and the checkpoints.
"""

import math
import os
import shlex
import sys

from etl.errors import ERROR_PREFIX, RingsliceError
from etl.progress import log
from etl.storage.place import Place
from train.monitor.heartbeat import Status
from train.monitor.host_board import HostBoard
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import KVStoreClient
from train.monitor.launcher import launched_rank
from train.monitor.messages import PeerLost, prefix_of
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts
from train.monitor.watch import Watch
from train.monitor.watchdog_process import start_guard

STALL_TIMEOUT_S, MIN_STALL_TIMEOUT_S = 45.0, 2.0
SILENCE = 2 / 3  # of the timeout, after which a rank that is stopped or hung is ended by its guard
CONNECTING_S = 30  # Horovod's default
BACKSTOP = 10  # times the timeout: Horovod sees no progress of a rank that is loading, so the watch must act first


def parse_stall_timeout(text: str) -> float:
    """Seconds, or 0 for no limit. Raises ValueError if it is less than a guard needs to hear of its rank."""
    seconds = float(text)
    if seconds and not MIN_STALL_TIMEOUT_S <= seconds < math.inf:
        raise ValueError(f"{text} is out of range; give 0, or at least {MIN_STALL_TIMEOUT_S:g}")
    return seconds


class Monitor(Status):
    """Without a ``log``, as outside `run_rank`, it watches nothing and keeps no log.

    ``remedy`` is the part of a message that describes how to go on after an interrupt.
    """

    def __init__(self, remedy: str = "", log: RunLog | None = None) -> None:
        super().__init__()
        self.remedy, self.run_log = remedy, log
        self.watch: Watch | None = None

    def start(self, stall_timeout_s: float, elastic: bool = False) -> None:
        """Watch over this rank from now on; see `Watch`.

        Call it in the main thread, before Horovod is loaded: Horovod's own limits are set here, unless the user did.
        """
        if self.run_log is None:
            return
        limit_s = math.ceil(stall_timeout_s)
        os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")  # what Horovod logs of a rank's end is in our one line
        # elastic ranks do not wait so long for one that may have been killed while it loaded: they try again
        connecting_s = max(CONNECTING_S, limit_s) * (1 if elastic else BACKSTOP)
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(connecting_s))
        if stall_timeout_s:
            os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(2 * limit_s))
            os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(BACKSTOP * limit_s))
        guard = start_guard(SILENCE * stall_timeout_s) if stall_timeout_s and launched_rank() is not None else None
        client = KVStoreClient.of_launcher()
        host_notes = None
        if client is not None:
            host_notes = HostNotes(client, HostBoard.of_job(client.host, client.port), stall_timeout_s / 2 or math.inf)
        timeouts = Timeouts(stall_timeout_s)
        self.watch = Watch(
            self, self.run_log, host_notes, guard, timeouts=timeouts, remedy=self.remedy, elastic=elastic
        )
        self.watch.start()

    def open_log(self, run: Place) -> None:
        """Keep the log of this rank under ``run`` from now on. Raises OSError."""
        if self.run_log is not None and not self.run_log.uri:
            beat = self.beat()
            self.run_log.open(run, beat.rank)
            self.run_log.info(f"{beat.rank_name}, of {beat.size}, process {beat.pid}: {shlex.join(sys.argv)}")

    def log(self, line: str) -> None:
        """Print one line about the training to standard error, and add it to the log."""
        log("train", line)
        if self.run_log is not None:
            self.run_log.info(line)

    def end(self, error: RingsliceError) -> None:
        """End this rank with the line of ``error``, from another thread, because the main thread hangs."""
        if self.watch is not None:
            self.watch.end(error.status, f"{ERROR_PREFIX}{prefix_of(self.beat(), launched_rank() is not None)}{error}")

    def peer_lost(self) -> PeerLost:
        """The error to raise if Horovod reports that a rank is gone: it names that rank, and one rank prints it."""
        if self.watch is not None:
            return self.watch.peer_lost()
        lost = PeerLost("another rank has ended, or has not come, so this one ends too")
        lost.is_reported = launched_rank() not in (None, 0)
        return lost
