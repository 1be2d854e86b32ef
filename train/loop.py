"""The trainer's loop, from top to bottom: next batch, gradients, all-reduce, apply; evaluate; checkpoint."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from etl.errors import EnvironmentFailure, UsageError
from etl.manifest import Manifest
from etl.progress import Progress, tell
from etl.prune import RUN_SLICES_FILE
from etl.publishing import json_bytes, publish_bytes, replace_bytes
from etl.stages import RUN_FILE, WORK_FOLDER, Run
from etl.storage import Place, open_place
from etl.summary import Summary
from train import checkpoints
from train.augment import NOTHING, Augmentation
from train.decoding import Decoder, epoch_seed
from train.holding import holding
from train.inputs import PixelFeed
from train.models import build
from train.reader import SplitReader
from train.reading import STOP
from train.records_op import why_not_native
from train.runs import RESULT_FORMAT, Dataset, choose_run, find_dataset
from train.schedule import Schedule
from train.settings import Settings
from train.steps import Steps
from train.strategies import Horovod, Strategy, average_state, root_first, telling_lost_peers, weights_digest

Metrics = dict[str, float]
FIRST_EPOCH = 1
RANKS_TOLD = 16
EVALUATION_EPOCH = 0  # its order is that of every evaluation


@dataclass
class Session:
    """What a run works with, equal on every rank but for the rank itself."""

    settings: Settings
    strategy: Strategy
    manifest: Manifest
    readers: dict[str, SplitReader]
    augmented: PixelFeed
    plain: PixelFeed
    run: Place
    attempts: Place  # where what is about to be published is written
    identity: dict[str, Any]
    steps: Steps
    schedule: Schedule
    model: keras.Model
    optimizer: keras.optimizers.Optimizer

    @property
    def is_root(self) -> bool:
        return self.strategy.rank == 0

    @property
    def variables(self) -> list[Any]:
        """All that a checkpoint holds."""
        return [*self.model.variables, *self.optimizer.variables]


def train(settings: Settings, strategy: Strategy | None = None) -> None:
    """Train as ``settings`` say, on all ranks of ``strategy`` (default: those that horovodrun started)."""
    strategy = strategy or Horovod()
    with telling_lost_peers():
        ranks = strategy.gather({"rank": strategy.rank, "host": socket.gethostname(), "pid": os.getpid()})
        clock = Run(ranks=ranks)
        session = prepare(settings, strategy)
        with holding(session.run, strategy) as session.attempts:
            strategy.from_root(lambda: name_slices(session))
            done = strategy.from_root(lambda: restore(session))
            strategy.broadcast(session.variables)
            train_step, evaluate_step = compile_steps(session)
            announce(session, done)

            for epoch in range(done + FIRST_EPOCH, settings.epochs + FIRST_EPOCH):
                metrics = train_epoch(session, epoch, train_step)
                average_state(strategy, session.model.non_trainable_variables)
                require_equal_weights(session)
                metrics |= evaluate(session, "validation" if "validation" in session.readers else "test", evaluate_step)
                if session.is_root:
                    save(session, epoch, metrics)

            result = evaluate(session, "test", evaluate_step)
            strategy.from_root(lambda: write_result(session, result, clock))
        if session.is_root:
            show(session, result, clock, already_done=done >= settings.epochs)
        strategy.leave()


def prepare(settings: Settings, strategy: Strategy) -> Session:
    """Find the slices, share them out, and build the model. Rank 0 chooses, and tells the others."""
    dataset = strategy.from_root(lambda: find_dataset(settings.data, settings.name))
    run = strategy.from_root(lambda: choose_run(open_place(dataset.root), settings.run, settings.resume).uri)
    session = open_session(settings, strategy, dataset, run)
    strategy.from_root(lambda: require_steps(session.steps))
    return session


def open_session(settings: Settings, strategy: Strategy, dataset: Dataset, run: str) -> Session:
    """The session of the run at the URI ``run``, with every split's reader and the model at its first weights."""
    manifest = root_first(strategy, lambda: choose_slices(dataset, settings.group))
    readers = open_readers(dataset, manifest, settings)
    strategy.from_root(lambda: require_readers(readers))
    steps = Steps(readers["train"].total, strategy.size, settings.batch, settings.drop_last)
    warmup_steps = round(settings.warmup_epochs * steps.number)
    schedule = Schedule(settings.lr, strategy.size, warmup_steps, settings.epochs * steps.number, settings.decay)
    keras.utils.set_random_seed(settings.seed)
    shape = (*settings.picture_size(manifest), manifest.channels)
    model = build(settings.model, shape, len(manifest.classes), manifest.mean, manifest.std)
    optimizer = keras.optimizers.SGD(settings.lr, momentum=settings.momentum, nesterov=settings.momentum > 0)
    optimizer.build(model.trainable_variables)
    identity = {"slices": dataset.fingerprint, "settings": settings.of_training()}
    place = open_place(run)
    work = place / WORK_FOLDER
    feeds = pixel_feed(settings, manifest, Augmentation.of(settings.augmentations)), pixel_feed(settings, manifest)
    return Session(
        settings, strategy, manifest, readers, *feeds, place, work, identity, steps, schedule, model, optimizer
    )


def choose_slices(dataset: Dataset, group: int | None) -> Manifest:
    """What to read: all slices, or of the training split those of one group of workers only."""
    manifest = Manifest.from_json(dataset.manifest)
    return manifest if group is None else manifest.of_group(group)


def open_readers(dataset: Dataset, manifest: Manifest, settings: Settings) -> dict[str, SplitReader]:
    """A reader for each split, by name."""
    return {split: SplitReader(dataset.folder, manifest, split, settings.reading) for split in manifest.splits}


def pixel_feed(settings: Settings, manifest: Manifest, augmentation: Augmentation = NOTHING) -> PixelFeed:
    """What decodes batches ahead, on all cores that this rank may use."""
    decoder = Decoder(manifest, settings.picture_size(manifest), augmentation)
    return PixelFeed(decoder, settings.batch, len(os.sched_getaffinity(0)))


def require_readers(readers: dict[str, SplitReader]) -> None:
    """Raise what is wrong with the files of any split, as far as a look tells."""
    for reader in readers.values():
        reader.require()


def require_steps(steps: Steps) -> None:
    """Raise UsageError where there is not one example for every rank, or not one step."""
    if steps.total < steps.world_size:
        raise UsageError(f"{steps.world_size} ranks for {steps.total} training examples; start fewer ranks")
    if not steps.number:
        raise UsageError(
            f"--batch {steps.batch} on {steps.world_size} ranks is more than the {steps.total} training examples;"
            " give a smaller --batch, or leave --drop-last out"
        )


def name_slices(session: Session) -> None:
    """Rank 0 writes down which slices the run reads, before it has a checkpoint that tells: so they are not pruned."""
    record = json_bytes({"slices": session.identity["slices"]})
    replace_bytes(session.run / WORK_FOLDER / RUN_SLICES_FILE, session.attempts, record)


def restore(session: Session) -> int:
    """Load the newest checkpoint of a run that is resumed; returns its epoch, 0 where there is none."""
    checkpoint = checkpoints.newest(session.run)
    if checkpoint is None:
        return 0
    if not session.settings.resume:  # another trainer made it between our choice of this run and our claim
        raise UsageError(f"{session.run} is there already; give --resume to go on with it, or another --run")
    for name, ours in session.identity.items():
        theirs = checkpoint.marker.get(name)
        if theirs != ours:
            raise UsageError(f"{session.run} was trained with other {name} ({theirs}, now {ours}); give another --run")
    checkpoints.load(checkpoint, session.variables)
    return checkpoint.epoch


def compile_steps(session: Session) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The training step and the evaluation step, as graphs. Both return this rank's sums of loss, hits and examples.

    A step's loss is the sum over the examples of all ranks, divided by their number, which is reduced along with the
    gradients: examples that only fill a batch up have weight 0, so a step of n ranks is the step of one rank fed the
    concatenation of their batches, whatever was skipped.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    model, optimizer, strategy = session.model, session.optimizer, session.strategy

    def sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        hits = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
        return [tf.reduce_sum(losses * weights), tf.reduce_sum(hits * weights), tf.reduce_sum(weights)]

    @tf.function(autograph=False)
    def train_step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            results = sums(model(pixels, training=True), labels, weights)
        gradients = tape.gradient(results[0], [variable.value for variable in model.trainable_variables])
        *gradients, examples = strategy.average([*gradients, results[2]])
        optimizer.apply([tf.math.divide_no_nan(gradient, examples) for gradient in gradients])
        return results

    @tf.function(autograph=False)
    def evaluate_step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        return sums(model(pixels, training=False), labels, weights)

    return train_step, evaluate_step


def train_epoch(session: Session, epoch: int, train_step: Callable[..., Any]) -> Metrics:
    """One pass over the training split; returns metrics over all ranks."""
    settings, strategy, steps = session.settings, session.strategy, session.steps
    started = time.monotonic()
    totals, keys = [0.0, 0.0, 0.0], list[bytes]()
    order = session.readers["train"].order(settings.seed, epoch)
    batches = session.readers["train"].batches(order, steps, strategy.rank)
    pictures = session.augmented.epoch(batches, epoch_seed(settings.seed, epoch))
    with Progress(f"train epoch {epoch}", steps.number, "steps", quiet=not session.is_root, ends=False) as progress:
        for step, batch in enumerate(pictures):
            session.optimizer.learning_rate = session.schedule.rate((epoch - FIRST_EPOCH) * steps.number + step)
            results = train_step(batch.pixels, batch.labels, batch.weights)
            totals = [total + float(value) for total, value in zip(totals, results, strict=True)]
            if settings.audit:
                keys += batch.keys[batch.weights > 0].numpy().tolist()
            progress.update(step + 1)
    if settings.audit:
        place = session.run / "audit" / f"epoch-{epoch:04d}-rank-{strategy.rank:04d}.txt"
        publish_bytes(place, session.attempts, b"".join(key + b"\n" for key in keys))
    loss, hits, examples = strategy.sum(totals)
    seconds = time.monotonic() - started
    rate = round(examples / seconds)
    metrics = {"train_loss": loss / examples, "train_accuracy": hits / examples, "images_per_s": rate}
    return metrics | skipped("train", steps.examples - examples)


def evaluate(session: Session, split: str, evaluate_step: Callable[..., Any]) -> Metrics:
    """Loss and accuracy over every example of a split, each counted exactly once, over all ranks; empty without it.

    Raises EnvironmentFailure where the ranks together saw another number of examples than the manifest tells of, and
    none may be skipped.
    """
    if split not in session.readers:
        return {}
    reader, strategy = session.readers[split], session.strategy
    steps = Steps(reader.total, strategy.size, session.settings.batch)
    order = reader.order(session.settings.seed, EVALUATION_EPOCH)
    totals = [0.0, 0.0, 0.0]
    for batch in session.plain.epoch(reader.batches(order, steps, strategy.rank)):
        results = evaluate_step(batch.pixels, batch.labels, batch.weights)
        totals = [total + float(value) for total, value in zip(totals, results, strict=True)]
    loss, hits, examples = strategy.sum(totals)
    if examples != reader.total and reader.reading.on_damage == STOP:
        raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
    metrics = {f"{split}_loss": loss / examples, f"{split}_accuracy": hits / examples}
    return metrics | skipped(split, reader.total - examples)


def skipped(split: str, examples: float) -> Metrics:
    """What is told of damaged examples that were left out, over all ranks: nothing where there were none."""
    return {f"{split}_skipped": int(examples)} if examples else {}


def require_equal_weights(session: Session) -> None:
    """Raise EnvironmentFailure unless all ranks hold the same weights, bit for bit."""
    digests = session.strategy.gather(weights_digest(session.variables))
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise EnvironmentFailure(
            f"the weights of ranks {different} are not those of rank 0: gradients were not reduced"
        )


def announce(session: Session, done: int) -> None:
    """Rank 0 says what is about to happen."""
    if not session.is_root:
        return
    settings, steps, size = session.settings, session.steps, session.strategy.size
    parameters = session.model.count_params()
    epochs = (
        f"epochs {done + FIRST_EPOCH} to {settings.epochs}" if done < settings.epochs else f"its {done} epochs are done"
    )
    tell("train", f"{session.run}: {settings.model} of {parameters:,} parameters, {epochs}")
    slices = len(session.manifest.splits["train"])
    tell(
        "train",
        f"{steps.total:,} examples in {slices} slices on {size} ranks: {steps.number} steps of {settings.batch} each",
    )
    reader = session.readers["train"]
    order = reader.order(settings.seed, done + FIRST_EPOCH)
    for rank, (slices, records) in enumerate(islice(reader.shares(order, steps), RANKS_TOLD)):
        tell("train", f"rank {rank}: {records:,} records of {slices} slices in {steps.number} steps")
    if size > RANKS_TOLD:
        tell("train", f"and so on: no two of the {size} ranks differ by more than one record")
    if reason := why_not_native():
        tell("train", f"the reader's native op is {reason}, so examples take more time; run: make install")


def save(session: Session, epoch: int, metrics: Metrics) -> None:
    """Rank 0 leaves the checkpoint of ``epoch``, and says how it went."""
    facts = {"world_size": session.strategy.size, **session.identity, "metrics": metrics}
    checkpoints.save(session.run, session.attempts, epoch, session.variables, facts)
    tell("train", f"epoch {epoch}: " + ", ".join(f"{name} {value:,.4g}" for name, value in metrics.items()))


def write_result(session: Session, result: Metrics, clock: Run) -> None:
    """Rank 0 writes down the result, its marker last."""
    history = checkpoints.history(session.run)
    replace_bytes(session.run / RUN_FILE, session.attempts, json_bytes(clock.finished()))
    settings = {**session.identity["settings"], "epochs": session.settings.epochs}
    marker = {"format": RESULT_FORMAT, **session.identity, "settings": settings, "epochs": history, "result": result}
    replace_bytes(session.run / "result.json", session.attempts, json_bytes(marker))


def show(session: Session, result: Metrics, clock: Run, already_done: bool) -> None:
    """Rank 0 shows the summary."""
    history = checkpoints.history(session.run)
    facts = {
        "model": session.settings.model,
        "ranks": session.strategy.size,
        "epochs": session.settings.epochs,
        "global_batch": session.settings.batch * session.strategy.size,
        **{name: round(value, 4) for name, value in (history[-1] | result).items() if name != "epoch"},
        "seconds": round(clock.seconds, 1),
    }
    Summary("train", str(session.run), already_done, facts).show(session.settings.json)
