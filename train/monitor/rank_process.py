"""A process as a rank: watched from its first moment, ended in any case, and one line reports why it failed.

`run_rank` runs a command as a rank. The command starts its `Monitor` as soon as its settings are known, before
TensorFlow is loaded.
"""

import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

import click

from etl.entry_point import end_process, run_reporting
from etl.errors import ERROR_PREFIX, INTERRUPTED, DataError, RingsliceError, UsageError, explain, report
from etl.options.click_command import invoke
from train.monitor.heartbeat import Beat
from train.monitor.kv_store import KVStoreClient
from train.monitor.launcher import launched_rank, require_place
from train.monitor.messages import PeerLost, first_line, prefix_of
from train.monitor.monitor import Monitor
from train.monitor.notes import ExitNotice, Note
from train.monitor.rank_log import RunLog
from train.monitor.watch import SIGNALS

# For the rank that reports: as soon as any rank has ended, horovodrun ends the others.
PRINTING_S = 10.0

with_monitor = click.make_pass_decorator(Monitor, ensure=True)  # for commands: the rank's monitor as first argument


class DefectError(RingsliceError):
    """A defect of ours: its traceback is in the log."""


def is_elastic() -> bool:
    """True if horovodrun may add and lose ranks of this run."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def run_rank(command: click.Command, name: str, remedy: str) -> NoReturn:
    """Run ``command`` as a rank; exits 0, 1, 2, 3 or 130, without waiting for threads that may never end.

    ``remedy`` is the part of a message that describes how to go on after an interrupt.
    """
    log = RunLog()
    monitor = Monitor(remedy, log)
    raised: list[BaseException] = []

    def end_at_once(number: int, frame: FrameType | None) -> None:
        """End this rank on Ctrl-C or SIGTERM before it is watched; rank 0, or the only one, reports it."""
        del number, frame
        if launched_rank() in (None, 0):
            os.write(sys.stderr.fileno(), f"ringslice: interrupted; {remedy}\n".encode())
        _leave_note(monitor.beat())
        os._exit(INTERRUPTED)

    def run() -> int:
        for number in SIGNALS:
            signal.signal(number, end_at_once)
        try:
            require_place()
            return invoke(command, name, monitor)
        except SystemExit as error:
            raised.append(error)
            return _fail(monitor, log, DataError(f"the code of --model ended this process ({error!r})"))
        except (Exception, KeyboardInterrupt) as error:
            raised.append(error)  # and with it its frames: to delete tf.data's iterators is to wait for their reading
            return _fail(monitor, log, error)

    status = run_reporting(run)
    log.info(f"ends with status {status}")
    if monitor.watch is not None:
        if not raised:
            monitor.watch.announce_exit(status, "")
            log.end()
        monitor.watch.leave()
    end_process(status)


def _fail(monitor: Monitor, log: RunLog, error: BaseException) -> int:
    """Report ``error``: all of it to the log, the end of this rank to the others, one line to stderr; its status."""
    beat, watch = monitor.beat(), monitor.watch
    prefix = "" if isinstance(error, PeerLost) else prefix_of(beat, launched_rank() is not None)
    explained = explain(error)
    if explained is None and log.uri:
        reported: BaseException = DefectError(
            f"{type(error).__name__}: {first_line(error)} (the traceback is in {log.uri})"
        )
        reported.__cause__ = error
    else:
        reported = error
    if isinstance(reported, UsageError) and beat.rank:
        reported.is_reported = True  # every rank has the same command line, and rank 0 reports it
    is_reported = getattr(reported, "is_reported", False)
    status, line = explain(reported) or (1, f"{type(error).__name__}: {error}")
    log.failure(f"{prefix}{line}", error)
    if watch is not None:
        watch.announce_exit(status, "" if is_reported else f"{ERROR_PREFIX}{prefix}{line}")
    kept = log.upload()
    if watch is None or watch.may_print():
        report(reported, prefix, f" (its log: {kept})" if kept else "")
    if watch is not None:
        watch.line_printed()
    if is_reported:
        time.sleep(PRINTING_S)
    return status


def _leave_note(beat: Beat) -> None:
    """Leave a note for ranks that are watched already: this one was interrupted, and did not die without a notice."""
    client = KVStoreClient.of_launcher()
    line = "interrupted" if beat.rank == 0 else ""  # which rank 0 has printed
    try:
        if client is not None:
            Note(beat, "", ExitNotice(INTERRUPTED, line)).put_into(client)
    except OSError:
        pass
