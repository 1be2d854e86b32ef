"""Writes the metrics of a run in the background, as JSON lines and as TensorBoard's events: rank 0 only."""

from bisect import bisect_left, insort
from itertools import groupby
from threading import Lock, Thread

from etl.errors import EnvironmentFailure, reason_of
from etl.progress import log
from etl.stages.names import METRICS_FOLDER
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place
from train.runs.metrics import FILE_NAME, Line, metrics_file
from train.runs.tensorboard_events import EVENTS_NAME, FOLDER, events_file

# by folder: the names of its files, whose second group is their last step, and what makes one of some lines
FILES = ((METRICS_FOLDER, FILE_NAME, metrics_file), (FOLDER, EVENTS_NAME, events_file))


class MetricsWriter:
    """Writes ``lines``, to which others are appended meanwhile; those that are written are removed from the list.

    What cannot be written is reported in one line, stays in the list, and is tried again with the next lines.
    """

    def __init__(self, run: Place, staging: Place, lines: list[Line]) -> None:
        self._run_folder, self._staging = run, staging
        self._lines = lines
        self._cuts: list[int] = []  # ascending
        self._lock = Lock()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin to write in a thread, unless one is at work. Raises what a thread before raised, a defect of ours."""
        if self._error is not None:
            raise self._error
        if self._lines and (self._thread is None or not self._thread.is_alive()):
            self._thread = Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Return when the thread, if there is one, has ended."""
        if self._thread is not None:
            self._thread.join()

    def cut(self, step: int) -> None:
        """End a file with the lines up to ``step``, because there is a checkpoint: a resume deletes those after it."""
        self._cuts.append(step)

    def write(self) -> None:
        """Write the lines that there are now."""
        with self._lock:
            now = self._lines.copy()
            for _, group in groupby(now, lambda line: bisect_left(self._cuts, line["step"])):
                lines = list(group)
                try:
                    for folder, _, make in FILES:
                        name, content = make(lines)
                        replace_bytes(self._run_folder / folder / name, self._staging, content)
                except (OSError, EnvironmentFailure) as error:
                    why = reason_of(error)
                    log("train", f"{len(self._lines)} lines of metrics were not written ({why}); they are tried again")
                    insort(self._cuts, lines[-1]["step"])  # a file of them may be there: the next try has its name
                    break
                del self._lines[: len(lines)]

    def roll_back(self, step: int) -> None:
        """Delete the files of steps after ``step``, which are to be taken again."""
        for folder, pattern, _ in FILES:
            for info in (self._run_folder / folder).children():
                name = pattern.fullmatch(info.base_name)
                if name is not None and int(name[2]) > step:
                    (self._run_folder / folder / info.base_name).delete()

    def _run(self) -> None:
        try:
            self.write()
        except BaseException as error:  # raised in the trainer's own thread
            self._error = error
