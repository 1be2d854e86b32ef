"""What a run works with: its slices, shared out, its model and optimizer, its folder."""

import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from etl.stages.stage import WORK_FOLDER
from etl.storage.place import Place, open_place
from train.config.recipe import BFLOAT16, FLOAT16, FLOAT32, SYNCHRONISED
from train.config.schedule import Schedule
from train.config.settings import Settings
from train.monitor.monitor import Monitor
from train.parallel.strategy import Strategy, root_first
from train.reader.intervals import run_of
from train.reader.reader import SplitReader
from train.reader.state import ReaderState
from train.runs.folder import Dataset, choose_run, find_dataset
from train.runs.position import FIRST_EPOCH, Position
from train.tf_backend.augment import NOTHING, Augmentation
from train.tf_backend.batch_norm import synchronised
from train.tf_backend.builders import build
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import PixelFeed
from train.tf_backend.optimizer import make_optimizer
from train.tf_backend.variables import Groups
from train.trainer.learning_rate import recipe_of_run
from train.trainer.rank_consistency import describe_devices, require_agreement

POLICIES = {FLOAT32: "float32", FLOAT16: "mixed_float16", BFLOAT16: "mixed_bfloat16"}


@dataclass(frozen=True)
class Choice:
    """The slices that a run reads, the URI of its folder, and how many ranks chose them: the default batch depends on
    that, in later rings of an elastic run too.
    """

    dataset: Dataset
    run: str
    ranks: int = 1


@dataclass
class Session:
    """What a run works with, equal on every rank but for the rank itself."""

    settings: Settings
    monitor: Monitor
    strategy: Strategy
    choice: Choice
    manifest: Manifest
    readers: dict[str, SplitReader]
    augmented: PixelFeed
    plain: PixelFeed
    run: Place
    attempts: Place  # where what is about to be published is written
    identity: dict[str, Any]
    schedule: Schedule
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since this process began to train."""
        return time.monotonic() - self.started

    @property
    def is_root(self) -> bool:
        return self.strategy.rank == 0

    @property
    def variables(self) -> list[Any]:
        """All that a checkpoint holds."""
        return [each for group in self.groups.values() for each in group]

    @property
    def groups(self) -> Groups:
        """The same, by what they belong to: each is a file of a checkpoint."""
        return {"model": self.model.weights, "optimizer": self.optimizer.variables}

    @property
    def global_batch(self) -> int:
        """Examples of a step of all ranks."""
        return self.settings.recipe.examples_per_step * self.strategy.size

    @property
    def judge(self) -> str:
        """The split that each epoch is judged by."""
        return "validation" if "validation" in self.readers else "test"

    @property
    def examples(self) -> int:
        """Examples of the training split."""
        return self.readers["train"].total

    def epoch_begin(self, epoch: int) -> ReaderState:
        """The state of the reader at the begin of an epoch, shared out among the ranks that there are."""
        reader = self.readers["train"]
        return self.shared(reader.begin(self.identity["slices"], reader.order(self.settings.recipe.seed, epoch)))

    def shared(self, state: ReaderState) -> ReaderState:
        """This state for the ranks that there are to go on from."""
        size, recipe = self.strategy.size, self.settings.recipe
        return state.shared(size, self.readers["train"].lanes(size), recipe.examples_per_step, recipe.drop_last)

    def begin(self) -> Position:
        """The position of a run before its first step."""
        return Position(0, self.epoch_begin(FIRST_EPOCH))


def prepare(settings: Settings, monitor: Monitor, strategy: Strategy, chosen: Choice | None = None) -> Session:
    """Find the slices, share them out, and build the model. Rank 0 chooses, and tells the others.

    ``chosen`` is what a ring before this one has chosen, as far as this rank was in it.
    """
    choice = strategy.from_root(lambda: chosen or choose(settings, strategy.size))
    told = require_agreement(strategy, settings, choice.dataset, begun=chosen is not None)
    for line in describe_devices(told) if strategy.rank == 0 else ():
        monitor.log(line)
    run, ranks = open_place(choice.run), choice.ranks
    recipe = strategy.from_root(lambda: recipe_of_run(settings, choice.dataset, run, ranks, monitor.log))
    session = open_session(replace(settings, recipe=recipe), monitor, strategy, choice)
    strategy.from_root(lambda: None if chosen else require_shares(session))  # one that joins ends nothing
    return session


def choose(settings: Settings, ranks: int) -> Choice:
    """What to train on, and the run to make or to go on with."""
    dataset = find_dataset(settings.data, settings.name)
    return Choice(dataset, choose_run(open_place(dataset.root), settings.run, settings.resume).uri, ranks)


def open_session(settings: Settings, monitor: Monitor, strategy: Strategy, choice: Choice) -> Session:
    """The session of a run, with every split's reader and the model at its first weights."""
    dataset = choice.dataset
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    manifest = root_first(strategy, lambda: choose_slices(dataset, settings.group))
    readers = open_readers(dataset, manifest, settings, monitor)
    strategy.from_root(lambda: require_readers(readers))
    recipe = settings.recipe
    monitor.local_phase("building the model")
    keras.utils.clear_session()  # so that layers are called the same on a rank that has been in another ring before
    keras.utils.set_random_seed(recipe.seed)
    shape = (*settings.picture_size(manifest), manifest.channels)
    keras.config.set_dtype_policy(POLICIES[recipe.precision])
    model = build(recipe.model, shape, len(manifest.classes), manifest.mean, manifest.std)
    if recipe.batch_norm == SYNCHRONISED:
        model = synchronised(model, strategy.sum_in_graph)
    optimizer = make_optimizer(recipe, model.trainable_variables)
    identity = {"classes": list(manifest.classes), "slices": dataset.fingerprint, "settings": settings.of_training()}
    place = open_place(choice.run)
    augmentation = Augmentation.of(recipe.augmentations, recipe.crop_area)
    feeds = (
        pixel_feed(settings, manifest, recipe.examples_per_step, augmentation),
        pixel_feed(settings, manifest, recipe.rank_batch),
    )
    return Session(
        settings,
        monitor,
        strategy,
        choice,
        manifest,
        readers,
        *feeds,
        place,
        place / WORK_FOLDER,
        identity,
        Schedule.of(recipe),
        model,
        optimizer,
    )


def choose_slices(dataset: Dataset, group: int | None) -> Manifest:
    """What to read: all slices, or of the training split those of one group of workers only.

    Raises UsageError where there is nothing to train on.
    """
    manifest = Manifest.from_json(dataset.manifest)
    manifest = manifest if group is None else manifest.of_group(group)
    if not sum(each.records for each in manifest.splits.get("train", [])):
        have = ", ".join(f"{split} {sum(each.records for each in own):,}" for split, own in manifest.splits.items())
        raise UsageError(
            f"{dataset.folder} has no training examples ({have}); give ringslice shard a --split with train="
        )
    return manifest


def open_readers(dataset: Dataset, manifest: Manifest, settings: Settings, monitor: Monitor) -> dict[str, SplitReader]:
    """A reader for each split that has examples, by name."""
    options = settings.reading, monitor.progress
    readers = {split: SplitReader(dataset.folder, manifest, split, *options) for split in manifest.splits}
    return {split: reader for split, reader in readers.items() if reader.total}


def pixel_feed(settings: Settings, manifest: Manifest, batch: int, augmentation: Augmentation = NOTHING) -> PixelFeed:
    """What decodes batches ahead, on all cores that this rank may use, and copies them to its GPU."""
    decoder = Decoder(manifest, settings.picture_size(manifest), augmentation)
    gpus = tf.config.list_logical_devices("GPU")
    return PixelFeed(decoder, batch, len(os.sched_getaffinity(0)), gpus[0].name if gpus else "")


def require_readers(readers: dict[str, SplitReader]) -> None:
    """Raise what is wrong with the files of any split, as far as a look tells."""
    for reader in readers.values():
        reader.require()


def require_shares(session: Session) -> None:
    """Raise UsageError where there is not one example for every rank, a batch is more than a rank's share, or a split
    that ends the run is missing.
    """
    stopping = session.settings.stopping
    if session.judge not in session.readers and (stopping.until_accuracy or stopping.patience):
        raise UsageError(
            "--until-accuracy and --patience go by the validation or the test split, and"
            f" {session.choice.dataset.folder} has neither; leave them out"
        )
    total, size, batch = session.examples, session.strategy.size, session.settings.recipe.examples_per_step
    if total < size:
        raise UsageError(f"{size} ranks for {total} training examples; start fewer ranks")
    start, stop = run_of(total, 0, size)
    if batch > stop - start:
        raise UsageError(
            f"{session.settings.recipe.wording} is more than a rank's share of {stop - start} of the {total} training"
            " examples; give a smaller --batch, or start fewer ranks"
        )
