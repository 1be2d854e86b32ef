"""A trained run to evaluate or export: its checkpoint, the slices that it was trained on, and others that fit it."""

from dataclasses import dataclass, replace
from typing import Any

from etl.errors import DataError, UsageError
from etl.slices.manifest import Manifest
from etl.stages.champion import CHAMPION, Promoted, champion_file, read_champion
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.checkpoints.conversion import weights_of
from train.checkpoints.store import DamagedError
from train.config.recipe import LOCAL, NONE, Recipe
from train.config.settings import AUTO, BEST, Settings
from train.runs.folder import Dataset, choose_run, find_dataset, has_begun, slices_with
from train.runs.run import Choice, Run


@dataclass(frozen=True)
class RunCheckpoint:
    """A run's folder, as a URI; the marker of one of its checkpoints; the slices that it was trained on."""

    folder: str
    marker: dict[str, Any]
    dataset: Dataset

    @property
    def name(self) -> str:
        """The name of the run."""
        return open_place(self.folder).name

    @property
    def id(self) -> tuple[str, int]:
        """Which it is among others: a run may be a candidate with a newer checkpoint than the one it is champion by."""
        return self.folder, self.marker["step"]

    @property
    def weights(self) -> dict[str, str]:
        """Which weights, and of which slices, as results and exports record it."""
        return {
            "checkpoint": store.name_of(self.marker["step"]),
            "checkpoint_sha256": self.marker["files"]["model.safetensors"]["sha256"],
            "slices": self.marker["slices"],
        }

    def require_unchanged(self) -> None:
        """Raise EnvironmentFailure if the checkpoint was removed, or replaced, since it was found."""
        store.chosen(open_place(self.folder), self.marker).require_unchanged()

    def settings(self, **given: Any) -> Settings:
        """The settings that it was trained with, and those that are ``given``; of no group: all slices are evaluated.

        Raises UsageError if its model cannot be converted to the framework of the strategy.
        """
        recorded = self.marker["settings"]
        # without what concerns the steps of the training only
        recipe = replace(Recipe.of_run(recorded), batch_norm=LOCAL, compression=NONE, xla=False)
        settings = Settings(recipe=recipe, resume=AUTO, **given)
        if self.marker["framework"] != settings.framework:
            weights_of(recorded["model"])  # raises it
        return settings

    def run_on(self, dataset: Dataset, settings: Settings) -> Run:
        """The run with the examples of ``dataset``, and the mean and standard deviation that it was trained with.

        Raises UsageError as `require_fit` does.
        """
        if dataset.fingerprint == self.dataset.fingerprint:
            return Run.of(settings, Choice(dataset, self.folder))
        self.require_fit(dataset)
        run = Run.of(settings, Choice(dataset, self.folder))
        own = Manifest.from_json(self.dataset.manifest)
        return replace(run, manifest=replace(run.manifest, mean=own.mean, std=own.std))

    def require_fit(self, dataset: Dataset, remedy: str = "") -> None:
        """Raise UsageError if these slices have other classes or image sizes than those that it was trained on, or
        splits of their own: its training images may be in their test split then.
        """
        own = self.dataset
        if dataset.fingerprint == own.fingerprint:
            return
        what, remedy = f"{self.folder} was trained on {own.folder}", remedy or f"give --name {own.name}"
        ours, theirs = own.manifest, dataset.manifest
        if ours["classes"] != theirs["classes"]:
            counts = f"{len(ours['classes'])}, now {len(theirs['classes'])}"
            raise UsageError(f"{what}, whose classes differ from those of {dataset.folder} ({counts}); {remedy}")
        had, has = ([each["image"][name] for name in ("height", "width", "channels")] for each in (ours, theirs))
        if had != has:
            raise UsageError(f"{what}, whose images have another size ({had}, now {has}); {remedy}")
        if not (_is_ancestor(own, dataset) or _is_ancestor(dataset, own)):
            raise UsageError(
                f"{what}, and {dataset.folder} does not keep its splits (--splits-from): images that it was trained on"
                f" may be in another split there; {remedy}"
            )


def _is_ancestor(earlier: Dataset, dataset: Dataset) -> bool:
    lineage = dataset.manifest["lineage"]
    return lineage is not None and earlier.fingerprint in lineage["ancestors"]


def find_trained(root: Place, name: str | None, which: str) -> RunCheckpoint:
    """The newest checkpoint of the run called ``name`` under ``root``, or its best; the promoted one of "champion".

    Raises UsageError if there is none, or the slices that it was trained on are gone.
    """
    if name == CHAMPION and which == BEST:
        raise UsageError("--checkpoint best is not for the champion, which is one checkpoint; leave it out")
    if name == CHAMPION:
        return find_promoted(root, read_champion(root))
    run = choose_run(root, name, AUTO)
    if name is None and not has_begun(run):
        raise UsageError(f"no run of {root} has a number as its name; give --run NAME, or train one")
    checkpoint = store.best(run) if which == BEST else store.newest(run)
    if checkpoint is None and store.newest(run) is not None:
        raise UsageError(f"{run} has no checkpoint of the end of an epoch to be the best; give --checkpoint newest")
    if checkpoint is None:
        raise UsageError(f"{run} has no finished checkpoint; give --run NAME of a run that was trained")
    return RunCheckpoint(
        run.uri, checkpoint.marker, _slices_of(root, run, checkpoint.marker["slices"], "give another --run")
    )


def find_promoted(root: Place, promoted: Promoted, remedy: str = "give ringslice promote --rollback") -> RunCheckpoint:
    """The checkpoint that is recorded as ``promoted``. Raises DataError if it is gone or another one."""
    run = root / "runs" / promoted["run"]
    remedy = f"put it back, {remedy}, or remove {champion_file(root)} to start again"
    step = int(promoted["checkpoint"].removeprefix("step-"))
    try:
        marker = store.open_checkpoint(run, step).marker
    except DamagedError as error:
        raise DataError(f"{error}; it was promoted; {remedy}") from None
    found = RunCheckpoint(run.uri, marker, _slices_of(root, run, marker["slices"], remedy))
    if found.weights["checkpoint_sha256"] != promoted["checkpoint_sha256"]:
        raise DataError(f"{run} has another {promoted['checkpoint']} than was promoted; {remedy}")
    return found


def _slices_of(root: Place, run: Place, fingerprint: str, remedy: str) -> Dataset:
    if (found := slices_with(root, fingerprint)) is not None:
        return found
    where = root / "slices"
    raise UsageError(f"{run} was trained on slices that are not in {where} any more ({fingerprint[:12]}…); {remedy}")


def find_with_slices(data: str, slices: str | None, run: str | None, which: str) -> RunCheckpoint:
    """As `find_trained`, in the root that has the ``slices`` of this name, by default the newest, among ``data``.

    Raises UsageError if a name is given, and these are not the slices that it was trained on.
    """
    dataset = find_dataset(data, slices)
    found = find_trained(open_place(dataset.root), run, which)
    if slices is not None and found.dataset.fingerprint != dataset.fingerprint:
        raise UsageError(f"{found.folder} was trained on other slices than {dataset.folder}; leave --name out")
    return found


def require_split(dataset: Dataset, split: str) -> None:
    """Raise UsageError if the slices have no examples of this split."""
    have = [name for name, its in dataset.manifest["splits"].items() if its["records"]]
    if split not in have:
        raise UsageError(
            f"--split {split!r}: {dataset.folder} has only {', '.join(have)}; give another --split, or --name of slices"
            " that have it"
        )
