"""A training run: the slices that it reads, its folder and its settings; equal on all ranks."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import Any, Protocol

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from etl.stages.lease import lease_folder
from etl.stages.names import RESULT_FILE, WORK_FOLDER
from etl.stages.run import RunRecord
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.config.recipe import option_of
from train.config.settings import Settings
from train.monitor.heartbeat import LEASING
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective
from train.reader.intervals import run_of
from train.runs.consistency import describe_devices, require_agreement
from train.runs.folder import Dataset, choose_run, choose_slices, find_dataset, slices_with
from train.runs.learning_rate import recipe_of_run


@dataclass(frozen=True)
class Choice:
    """The slices that a run reads, the URI of its folder, and for how many replicas they were chosen: the default batch
    depends on that, in later rings of an elastic run too.
    """

    dataset: Dataset
    run: str
    replicas: int = 1


@dataclass(frozen=True)
class Run:
    """``staging`` is where a file is written before it is published; ``record`` has when this process began."""

    settings: Settings
    choice: Choice
    manifest: Manifest
    staging: Place
    record: RunRecord = field(default_factory=RunRecord)

    @classmethod
    def of(cls, settings: Settings, choice: Choice) -> "Run":
        """Raises UsageError if there is nothing to train on."""
        staging = open_place(choice.run) / WORK_FOLDER
        return cls(settings, choice, choose_slices(choice.dataset, settings.group), staging)

    @property
    def folder(self) -> Place:
        """``ROOT/runs/NAME``."""
        return open_place(self.choice.run)

    @property
    def seconds(self) -> float:
        """Since this process began to train."""
        return self.record.seconds

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with a run that goes on from it."""
        return {
            "classes": list(self.manifest.classes),
            "slices": self.choice.dataset.fingerprint,
            "framework": self.settings.framework,
            "settings": self.settings.training_settings(),
        }


class Processes(Protocol):
    """What a run needs to know of its strategy: see `train.strategies.Strategy`."""

    @property
    def collective(self) -> Collective: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def data_size(self) -> int: ...
    @property
    def is_counted(self) -> bool: ...
    @property
    def replicas(self) -> int: ...
    @property
    def earlier(self) -> Run | None: ...
    def device(self, settings: Settings) -> dict[str, Any]: ...


def open_run(settings: Settings, processes: Processes, log: Callable[[str], None]) -> Run:
    """Choose the slices, the folder and the recipe: rank 0 does, and all ranks must agree.

    A rank that joins an earlier run does not end it. Raises as `require_agreement` and `require_possible` do.
    """
    collective, replicas, earlier = processes.collective, processes.replicas, processes.earlier
    record = earlier.record if earlier is not None else RunRecord()
    ranks = collective.gather_object({"rank": collective.rank, "host": gethostname(), "pid": os.getpid()})
    record.note(strategy=settings.strategy, replicas=replicas, ranks=ranks)
    choice = collective.run_on_root(lambda: earlier.choice if earlier is not None else choose(settings, replicas, log))
    device, has_begun = processes.device(settings), earlier is not None
    facts = require_agreement(settings, choice.dataset, collective, device, has_begun)
    record.note(versions=facts[0]["versions"])
    for line in describe_devices(facts) if collective.is_root else ():
        log(line)
    folder, first = open_place(choice.run), choice.replicas
    recipe = collective.run_on_root(lambda: recipe_of_run(settings, choice.dataset, folder, first, log))
    settings = replace(settings, recipe=recipe)
    run = collective.run_root_first(lambda: replace(Run.of(settings, choice), record=record))
    collective.run_on_root(lambda: None if earlier is not None else require_possible(run, replicas))
    return run


def choose(settings: Settings, replicas: int, log: Callable[[str], None]) -> Choice:
    """The slices to train on, and the run to make or to go on with.

    Without --name, a run without a result, which was stopped or killed, goes on with the slices of its newest
    checkpoint, if they are there.
    """
    dataset = find_dataset(settings.data, settings.name)
    root = open_place(dataset.root)
    run = choose_run(root, settings.run, settings.resume)
    if settings.resume and settings.name is None and not (run / RESULT_FILE).exists():
        newest = store.newest(run)
        own = slices_with(root, newest.marker["slices"]) if newest is not None else None
        if own is not None and own.fingerprint != dataset.fingerprint:
            log(f"{run} goes on with its own slices, {own.name}; the newest are {dataset.name}")
            dataset = own
    return Choice(dataset, run.uri, replicas)


@contextmanager
def lock(run: Run, collective: Collective, monitor: Monitor) -> Iterator[Run]:
    """Keep other trainers from ``run`` during the block; yields it with the staging folder that all ranks write to.

    After the block nothing is left of that folder; after one that raises, or was killed, the next trainer takes the run
    over. Raises EnvironmentFailure if another trainer is at work on the run.
    """
    with ExitStack() as leases:  # rank 0's one

        def take() -> str:
            monitor.local_phase(LEASING)
            lease = lease_folder(run.folder / WORK_FOLDER, f"train/main.py on {run.folder}", monitor.progress)
            return leases.enter_context(lease).staging.uri

        staging = open_place(collective.run_on_root(take))
        monitor.open_log(run.folder)
        yield replace(run, staging=staging)


def require_possible(run: Run, ranks: int) -> None:
    """Raise UsageError if there is not one example for each of the ``ranks``, a batch is more than a rank's share, a
    split that ends the run is missing, or the newest checkpoint is of another training.
    """
    stopping, recipe = run.settings.stopping, run.settings.recipe
    totals = {split: sum(each.records for each in slices) for split, slices in run.manifest.splits.items()}
    if not totals.get("validation") and not totals.get("test") and (stopping.until_accuracy or stopping.patience):
        raise UsageError(
            "--until-accuracy and --patience go by the validation or the test split, and"
            f" {run.choice.dataset.folder} has neither; leave them out"
        )
    total, batch = totals["train"], recipe.examples_per_step
    if total < ranks:
        raise UsageError(f"{ranks} ranks for {total} training examples; start fewer ranks or replicas")
    start, stop = run_of(total, 0, ranks)
    if batch > stop - start:
        raise UsageError(
            f"{recipe.wording} is more than a rank's share of {stop - start} of the {total} training examples; give a"
            " smaller --batch, or start fewer ranks or replicas"
        )
    require_resumable(run)


def require_resumable(run: Run) -> None:
    """Raise UsageError, naming the first thing that differs, if the newest checkpoint is of another training."""
    checkpoint = store.newest(run.folder)
    if checkpoint is None:
        return
    marker, identity = checkpoint.marker, run.identity
    theirs, ours = marker["classes"], identity["classes"]
    if theirs != ours:
        first = next((name for name in [*theirs, *ours] if (name in theirs) != (name in ours)), None)
        which = f"{first!r} is in one of them only" if first is not None else "in another order"
        raise UsageError(
            f"{checkpoint.folder} was trained on {len(theirs)} classes, these slices have {len(ours)} ({which}); give"
            " --name of its slices, or another --run"
        )
    if marker["slices"] != identity["slices"]:
        raise UsageError(
            f"{checkpoint.folder} was trained on other slices ({marker['slices']}, now {identity['slices']}); give"
            " --name of its slices, or another --run"
        )
    if marker["framework"] != identity["framework"]:
        raise UsageError(
            f"{checkpoint.folder} was trained with {marker['framework']}, --strategy {run.settings.strategy} trains"
            f" with {identity['framework']}; copy the run to one of {identity['framework']} with: ringslice"
            " convert-weights, or give another --strategy"
        )
    for name, value in identity["settings"].items():
        if name != "decay_until" and marker["settings"].get(name) != value:  # which --decay-until may change
            raise UsageError(
                f"{checkpoint.folder} was trained with other settings: {option_of(name)} was"
                f" {marker['settings'].get(name)}, now {value}; give what it was trained with, or another --run"
            )
