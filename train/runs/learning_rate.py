"""The batch of a run and the schedule of its learning rate: as begun, or changed; and what is logged at the start."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from etl.errors import UsageError
from etl.storage.place import Place
from train.checkpoints import store
from train.config.recipe import COSINE, Recipe
from train.config.schedule import Schedule
from train.config.settings import Settings
from train.runs.folder import Dataset, choose_slices
from train.runs.position import Position


def recipe_of_run(settings: Settings, dataset: Dataset, run: Place, ranks: int, log: Callable[[str], None]) -> Recipe:
    """The recipe with its batch, its warm-up and the end of its decay: as given, else as the run's newest checkpoint
    has them, else by default.

    Logs if the decay ends elsewhere than before. Raises UsageError if there are no training examples, or if the run is
    to have more epochs than that and --decay-until is not given.
    """
    checkpoint = store.newest(run)
    begun = checkpoint.marker["settings"] if checkpoint else {}
    total = sum(each.records for each in choose_slices(dataset, settings.group).splits["train"])
    recipe = settings.recipe.resolved(settings.stopping.epochs, begun).with_batch(total, ranks)
    before, after = begun.get("decay_until"), recipe.decay_until
    if checkpoint is None or before is None or after is None:
        return recipe
    if (checkpoint.marker["slices"], begun["group"]) != (dataset.fingerprint, settings.group):
        return recipe  # refused later, as another training
    done = Position.from_json(checkpoint.marker["position"], dataset.fingerprint, total).epochs_done(total)

    def share(until: float) -> str:
        """The rate of the next step, as a part of its peak."""
        schedule = Schedule.of(replace(recipe, decay_until=until))
        return f"{schedule.share(done, ranks * recipe.examples_per_step):.2g}"

    epochs = settings.stopping.epochs
    if settings.recipe.decay_until is None and epochs > before:
        raise UsageError(
            f"--epochs {epochs}: the learning rate of {run} decays until epoch {before:g} and is 0 from there on; give"
            f" --decay-until {epochs}, which lifts it from {share(before)} to {share(epochs)} of its peak,"
            f" --decay-until {before:g}, which leaves it as it is, or another --run"
        )
    if after != before:
        log(
            f"--decay-until {after:g}: the learning rate decays until epoch {after:g} instead of {before:g}, and goes"
            f" on at {share(after)} of its peak instead of {share(before)}"
        )
    return recipe


def schedule_notes(settings: Settings, global_batch: int, last_epoch: float) -> Iterator[str]:
    """Notes on a run that does not take the schedule to its end, or goes on after it.

    ``last_epoch`` is where --max-steps ends the run, in epochs, or infinite.
    """
    recipe, stopping = settings.recipe, settings.stopping
    schedule = Schedule.of(recipe)
    by_epochs = float(stopping.epochs), f"--epochs {stopping.epochs}"
    end, option = min(by_epochs, (last_epoch, f"--max-steps {stopping.max_steps}"))
    end = float(f"{end:.4g}")
    warmup = f"--warmup-epochs {schedule.warmup_epochs:g}"
    if schedule.warmup_epochs >= end:
        yield f"{warmup}: {option} ends the run at epoch {end:g}, before the learning rate is at its peak"
    if recipe.decay != COSINE:
        return
    until, remedy = f"{schedule.until:g}", f"give --decay-until {end:g} to decay until there"
    if schedule.warmup_epochs >= schedule.until:
        yield f"{warmup} is not below the end of the decay at epoch {until}: the learning rate is 0 after the warm-up"
    if end < schedule.until:
        share = f"{schedule.share(end, global_batch):.2g}"
        yield f"{option} ends the run at epoch {end:g} of {until}, at a learning rate of {share} of its peak; {remedy}"
    elif end > schedule.until:
        yield f"the learning rate is 0 from epoch {until} to the end of the run at epoch {end:g}; {remedy}"
    if stopping.max_time_s is not None:
        yield (
            f"--max-time {stopping.max_time_s:g} s may end the run before epoch {until}, until which the learning rate"
            " decays; give --decay-until EPOCHS to decay until an earlier one"
        )
