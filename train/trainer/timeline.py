"""Horovod's timeline of a run: what each collective operation waited for, as chrome://tracing and Perfetto show it."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from etl.storage.atomic import replace_bytes
from etl.storage.place import open_place
from train.monitor.heartbeat import PULSE

FILE = "timeline.json"
VARIABLE = "HOROVOD_TIMELINE"  # which Horovod reads when the ring is joined


@contextmanager
def timeline(wanted: bool, find_run: Callable[[], str]) -> Iterator[None]:
    """Have rank 0 record a timeline during the block, which joins the ring and leaves it, and keep it with the run.

    Every rank has to ask Horovod for it.
    """
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="timeline-") as folder:
        file = Path(folder) / FILE
        os.environ[VARIABLE] = str(file)
        yield
        if PULSE.beat().rank:
            return
        run = open_place(find_run())
        work = (run / "_timeline").make_folder()  # the claim on the run is given up by now
        replace_bytes(run / FILE, work, file.read_bytes())
        work.delete()
