"""The splits of a run's slices: their readers, and the share of each rank in what is left of an epoch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from train.config.recipe import Recipe
from train.config.schedule import Schedule
from train.monitor.monitor import Monitor
from train.reader.batches import RecordBatch
from train.reader.order import epoch_seed
from train.reader.reader import SplitReader
from train.reader.state import ReaderState
from train.runs.position import FIRST_EPOCH, Position
from train.runs.run import Processes, Run


@dataclass(frozen=True)
class Data:
    """A reader for each split that has examples, by name; ``slices`` is the fingerprint of the slices.

    The training split is divided into ``size`` shares, for ``replicas`` copies of the model in all; this process reads
    share ``rank``, as others may. Its sums and keys count if it ``is_counted``.
    """

    readers: Mapping[str, SplitReader]
    slices: str
    recipe: Recipe
    ranks: int  # processes, of which several may read one share
    rank: int
    size: int
    replicas: int
    is_counted: bool

    @property
    def train(self) -> SplitReader:
        """The reader of the training split."""
        return self.readers["train"]

    @property
    def score_split(self) -> str:
        """The split whose accuracy is the score of an epoch."""
        return "validation" if "validation" in self.readers else "test"

    @property
    def global_batch(self) -> int:
        """Examples of a step of all replicas."""
        return self.recipe.examples_per_step * self.replicas

    @property
    def local_replicas(self) -> int:
        """Copies of the model for each share."""
        return self.replicas // self.size

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule.of(self.recipe)

    def learning_rate(self, position: Position) -> float:
        """The learning rate of the step after ``position``."""
        return self._schedule.rate(position.epochs_done(self.train.total), self.global_batch)

    def begin_epoch(self, epoch: int) -> ReaderState:
        """The state of the training split's reader before the first step of an epoch."""
        return self.divided(self.train.begin(self.slices, self.train.order(self.recipe.seed, epoch)))

    def train_records(self, position: Position) -> tuple[Iterator[RecordBatch], int]:
        """What this process reads of the rest of the training split's epoch, and the seed of its augmentation."""
        return self.train.batches_of(position.reader, self.rank), epoch_seed(self.recipe.seed, position.epoch)

    def divided(self, state: ReaderState) -> ReaderState:
        """This state, with what is left of its epoch divided into the shares that there are now."""
        lanes, batch = self.train.lanes(self.size), self.recipe.examples_per_step * self.local_replicas
        return state.shared(self.size, lanes, batch, self.recipe.drop_last)

    def begin(self) -> Position:
        """The position of a run before its first step."""
        return Position(0, self.begin_epoch(FIRST_EPOCH))


def open_data(run: Run, processes: Processes, monitor: Monitor) -> Data:
    """The readers of all splits. Raises on every rank as `SplitReader.require` does."""
    collective = processes.collective
    options = run.settings.reading, monitor.progress
    folder = run.choice.dataset.folder
    readers = {split: SplitReader(folder, run.manifest, split, *options) for split in run.manifest.splits}
    used = {split: reader for split, reader in readers.items() if reader.total}

    def require_all() -> None:
        for reader in used.values():
            reader.require()

    collective.run_on_root(require_all)
    return Data(
        used,
        run.choice.dataset.fingerprint,
        run.settings.recipe,
        ranks=collective.size,
        rank=processes.data_rank,
        size=processes.data_size,
        replicas=processes.replicas,
        is_counted=processes.is_counted,
    )
