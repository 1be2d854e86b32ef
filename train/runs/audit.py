"""Who consumed what: the keys of the examples of each rank, a file for each stretch of steps between two commits.

Those under ``audit/`` are the committed history: of an epoch, each key once. What was published for steps that a
commit never came of, because a rank was lost or the run was killed, is put apart in ``audit/rolled-back/``.
"""

import re

from etl.storage.atomic import publish_bytes
from etl.storage.place import Place
from train.runs.position import Position

FOLDER = "audit"
ROLLED_BACK = "rolled-back"
_NAME = re.compile(r"epoch-\d+-steps-(\d+)-to-(\d+)-rank-\d+-of-\d+\.txt")


class Audit:
    """Of one rank in a ring of ``size``."""

    def __init__(self, run: Place, staging: Place, rank: int, size: int) -> None:
        self._folder = run / FOLDER
        self._staging = staging
        self._rank, self._size = rank, size
        self._first = 0  # the step before the first of the next stretch

    def publish(self, position: Position, keys: list[bytes]) -> None:
        """Write down what this rank consumed since the last time, up to ``position``."""
        steps = f"steps-{self._first + 1:08d}-to-{position.step:08d}"
        name = f"epoch-{position.epoch:04d}-{steps}-rank-{self._rank:04d}-of-{self._size:04d}.txt"
        if position.step > self._first:
            publish_bytes(self._folder / name, self._staging, b"".join(key + b"\n" for key in keys))
        self._first = position.step

    def begin(self, step: int) -> None:
        """The next stretch begins after ``step``."""
        self._first = step

    def roll_back(self, step: int) -> None:
        """Put the files of steps after ``step`` apart. One rank does, when no other writes."""
        found = [(info, _NAME.fullmatch(info.base_name)) for info in self._folder.children()]
        lost = [info for info, name in found if name is not None and int(name[2]) > step]
        if not lost:
            return
        apart = (self._folder / ROLLED_BACK).make_folder()
        for number, info in enumerate(lost, len(apart.children())):
            self._folder.filesystem.replace(info.path, (apart / f"{number:06d}-{info.base_name}").path)
