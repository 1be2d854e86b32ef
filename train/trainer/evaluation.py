"""The evaluation of a run that has a checkpoint, apart from its training and on any number of ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etl.errors import DataError, UsageError
from etl.stages.stage import Run
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.checkpoints.store import Checkpoint, DamagedError
from train.config.recipe import Recipe
from train.config.settings import AUTO, BEST, Settings
from train.config.stopping import scores_of
from train.monitor.monitor import Monitor
from train.parallel.strategy import Horovod, Strategy, telling_lost_peers
from train.reader.config import Reading
from train.runs.folder import Dataset, choose_run, find_dataset
from train.runs.position import Metrics
from train.tf_backend.devices import take_device
from train.tf_backend.variables import assign
from train.trainer.rank_consistency import require_agreement
from train.trainer.session import Choice, Session, open_session
from train.trainer.steps import compile_steps, evaluate

FORMAT = "ringslice.evaluation/1"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate; the options of train/evaluate.py say what each means."""

    data: str
    name: str | None
    run: str | None
    split: str
    checkpoint: str
    min_accuracy: float | None
    json: bool
    reading: Reading


def evaluate_run(wanted: Evaluation, monitor: Monitor, strategy: Strategy | None = None) -> None:
    """Evaluate as ``wanted`` says, on all ranks of ``strategy`` (default: those that horovodrun started)."""
    clock = Run()
    take_device(AUTO)
    with telling_lost_peers(monitor):
        strategy = strategy or Horovod(monitor)
        dataset = strategy.from_root(lambda: find_dataset(wanted.data, wanted.name))
        run = strategy.from_root(lambda: choose_run(open_place(dataset.root), wanted.run, AUTO).uri)
        marker = strategy.from_root(lambda: find_checkpoint(open_place(run), dataset, wanted.checkpoint).marker)
        strategy.from_root(lambda: require_split(dataset, wanted.split))
        monitor.open_log(open_place(run))
        given = {name: getattr(wanted, name) for name in ("data", "name", "run", "json", "reading")}
        settings = settings_of(marker, **given)
        require_agreement(strategy, settings, dataset)
        session = open_session(settings, monitor, strategy, Choice(dataset, run))
        strategy.from_root(lambda: load(session, marker))
        strategy.broadcast(session.variables)
        metrics = evaluate(session, wanted.split, compile_steps(session)[1])
        if not math.isfinite(loss := metrics[f"{wanted.split}_loss"]):
            error = DataError(f"the loss on {wanted.split} is {loss} ({session.run}, {store.name_of(marker['step'])})")
            error.told = not session.is_root
            raise error
        result = {
            "split": wanted.split,
            "examples": session.readers[wanted.split].total,
            "loss": loss,
            "accuracy": metrics[f"{wanted.split}_accuracy"],
            "skipped": metrics.get(f"{wanted.split}_skipped", 0),
            **weights_of(marker),
        }
        strategy.from_root(lambda: finish(session, wanted, result, clock))
        strategy.leave()


def find_checkpoint(run: Place, dataset: Dataset, which: str) -> Checkpoint:
    """The newest checkpoint of ``run``, or its best. Raises UsageError where it has none, or was not made from these
    slices.
    """
    checkpoint = store.best(run) if which == BEST else store.newest(run)
    if checkpoint is None and store.newest(run) is not None:
        raise UsageError(f"{run} has no checkpoint of the end of an epoch to be the best; give --checkpoint newest")
    if checkpoint is None:
        raise UsageError(f"{run} holds no finished checkpoint; give --run NAME of a run that was trained")
    if checkpoint.marker["slices"] != dataset.fingerprint:
        raise UsageError(f"{run} was trained on other slices than {dataset.folder}; give --name of its slices")
    return checkpoint


def require_split(dataset: Dataset, split: str) -> None:
    """Raise UsageError where the slices have no examples of this split."""
    have = [name for name, its in dataset.manifest["splits"].items() if its["records"]]
    if split not in have:
        raise UsageError(f"--split {split!r}: {dataset.folder} has {', '.join(have)}")


def weights_of(marker: dict[str, Any]) -> dict[str, str]:
    """Which weights the checkpoint with this marker has, and of which slices: for what is made from them to tell."""
    return {
        "checkpoint": store.name_of(marker["step"]),
        "checkpoint_sha256": marker["files"]["model.safetensors"]["sha256"],
        "slices": marker["slices"],
    }


def load(session: Session, marker: dict[str, Any]) -> None:
    """Give the model the weights of the checkpoint with this marker. Raises DataError where it is damaged."""
    session.monitor.local_phase("loading the checkpoint")
    checkpoint = store.open_checkpoint(session.run, marker["step"])
    try:
        arrays = checkpoint.read("model", session.monitor.progress)
    except DamagedError as error:
        remedy = "give another --checkpoint, or train on from an older one with train/main.py --resume"
        raise DataError(f"{error}; {remedy}") from None
    assign({"model": session.model.weights}, {"model": arrays}, str(checkpoint.folder))


def take_best(session: Session, history: Sequence[Metrics]) -> dict[str, int]:
    """Give all ranks the weights of the run's best checkpoint, if it has one; returns its epoch and step, else none.

    It is told where the best epoch of the ``history`` is another one, whose checkpoint could not be written.
    """
    scores = scores_of(history, session.judge)
    epoch = history[scores.index(max(scores))]["epoch"]

    def load_best() -> dict[str, int]:
        best = store.best(session.run)
        weights = {}
        if best is not None:
            load(session, best.marker)
            weights = {"epoch": best.marker["position"]["history"][-1]["epoch"], "step": best.step}
        if weights.get("epoch") == epoch:
            session.monitor.log(f"the result is that of the best weights: epoch {epoch}, step {weights['step']}")
        else:
            found = f"of epoch {weights['epoch']}, the best that has one" if weights else "of the last weights"
            session.monitor.log(
                f"epoch {epoch} was the best ({session.judge} accuracy {max(scores):.4f}), but has no checkpoint;"
                f" the result is that {found}"
            )
        return weights

    weights = session.strategy.from_root(load_best)
    if weights:
        session.strategy.broadcast(session.variables)
    return weights


def settings_of(marker: dict[str, Any], **given: Any) -> Settings:
    """The settings that the checkpoint with this marker was trained with, and those that are ``given``."""
    recipe = dict(marker["settings"])
    group = recipe.pop("group")
    return Settings(recipe=Recipe(**recipe), group=group, resume=AUTO, **given)


def finish(session: Session, wanted: Evaluation, result: dict[str, Any], clock: Run) -> None:
    """Write the result down and show it. Raises DataError where the accuracy is below what is wanted."""
    place = session.run / f"evaluation-{wanted.split}.json"
    work = (session.run / f"_evaluation-{wanted.split}").make_folder()  # not the trainer's, which may be at work
    replace_bytes(place, work, json_bytes({"format": FORMAT, **result}))
    work.delete()
    shown = {"loss": round(result["loss"], 4), "accuracy": round(result["accuracy"], 4)}
    facts = {"model": session.settings.recipe.model, "ranks": session.strategy.size, **result, **shown}
    facts["seconds"] = round(clock.seconds, 1)
    Summary("evaluate", str(session.run), False, facts).show(wanted.json)
    if wanted.min_accuracy is not None and result["accuracy"] < wanted.min_accuracy:
        raise DataError(
            f"accuracy {result['accuracy']:.4f} on {wanted.split} is below --min-accuracy {wanted.min_accuracy:g}"
            f" ({session.run}, {result['checkpoint']})"
        )
