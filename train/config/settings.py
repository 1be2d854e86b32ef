"""The settings of a run."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.checkpoints.background import FAILURES
from train.config.recipe import FLOAT16, SYNCHRONISED, Recipe, option_of
from train.config.recipe_options import to_toml
from train.config.stopping import Stopping
from train.monitor.monitor import STALL_TIMEOUT_S
from train.reader.config import ReaderOptions

AUTO, CPU, GPU = "auto", "cpu", "gpu"
NEWEST, BEST = "newest", "best"
HOROVOD, MIRRORED, MULTI_WORKER, DDP = "horovod", "mirrored", "multi-worker-mirrored", "ddp"
ASYNCHRONOUS, SYNCHRONOUS = SERVED = ("parameter-server", "synchronous-parameter-server")
PIPELINE, TENSOR_PARALLEL = DIVIDED = ("pipeline", "tensor-parallel")
OF_TORCH = (DDP, *DIVIDED)
ONE_F_ONE_B, GPIPE = "1f1b", "gpipe"
TENSORFLOW, TORCH = "tensorflow", "torch"
EPOCHS = 10
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Settings:
    """Every setting of a run; the options of `command` describe each field."""

    data: str
    recipe: Recipe = field(default_factory=Recipe)
    stopping: Stopping = field(default_factory=lambda: Stopping(EPOCHS))
    strategy: str = HOROVOD
    replicas: int | None = None
    micro_batches: int | None = None
    pipeline_schedule: str | None = None
    model_ranks: int | None = None
    name: str | None = None
    group: int | None = None
    run: str | None = None
    resume: str | None = None
    audit: bool = False
    json: bool = False
    verbose: bool = False
    checkpoint_steps: int = 0
    commit_steps: int = 10
    keep: int = 3
    checkpoint_failures: int = FAILURES
    stall_timeout_s: float = STALL_TIMEOUT_S
    device: str = AUTO
    deterministic: bool = False
    reading: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--checkpoint-steps", self.checkpoint_steps, 0),
            ("--commit-steps", self.commit_steps, 1),
            ("--keep", self.keep, 1),
            ("--checkpoint-failures", self.checkpoint_failures, 1),
            ("--replicas", self.replicas, 1),
            ("--model-ranks", self.model_ranks, 2),
            ("--micro-batches", self.micro_batches, 1),
        ):
            if value is not None and not least <= value < math.inf:
                raise UsageError(f"{flag} {value} is out of range; give at least {least}")
        for flag, given, strategies in (
            ("--replicas", self.replicas, (MIRRORED,)),
            ("--model-ranks", self.model_ranks, DIVIDED),
            ("--micro-batches", self.micro_batches, (PIPELINE,)),
            ("--pipeline-schedule", self.pipeline_schedule, (PIPELINE,)),
        ):
            if given is not None and self.strategy not in strategies:
                raise UsageError(f"{flag} {given} is for --strategy {' and '.join(strategies)}; leave it out")
        if self.strategy != HOROVOD:
            self.recipe.require_plain(self.strategy)
        if self.has_servers or self.is_divided:
            self._require_supported()

    def _require_supported(self) -> None:
        """Raise UsageError if a setting is one that parameter servers, or parts of a model, do not support."""
        recipe, has_no_parts = self.recipe, self.is_divided or self.strategy == ASYNCHRONOUS
        for option, is_given in (
            (f"--batch-norm {recipe.batch_norm}", recipe.batch_norm == SYNCHRONISED),
            (f"--precision {recipe.precision}", recipe.precision == FLOAT16),
            (f"--device {self.device}", self.has_servers and self.device == GPU),
            ("--deterministic", self.has_servers and self.deterministic),
            (f"--accumulate {recipe.accumulate}", has_no_parts and recipe.accumulate > 1),
        ):
            if is_given:
                raise UsageError(f"{option} is not supported by --strategy {self.strategy}. Leave it out")

    @property
    def framework(self) -> str:
        """What computes: `TENSORFLOW` or `TORCH`."""
        return TORCH if self.strategy in OF_TORCH else TENSORFLOW

    @property
    def is_divided(self) -> bool:
        """True if each rank has a part of the model."""
        return self.strategy in DIVIDED

    @property
    def has_servers(self) -> bool:
        """True if the weights are on parameter servers."""
        return self.strategy in SERVED

    @property
    def is_synchronous(self) -> bool:
        """False if each worker changes the weights by itself."""
        return self.strategy != ASYNCHRONOUS

    def picture_size(self, manifest: Manifest) -> tuple[int, int]:
        """Height and width of what the model sees: the slices' pictures as they are, or cut to a square."""
        crop = self.recipe.crop
        return manifest.size if crop is None else (crop, crop)

    def training_settings(self) -> dict[str, Any]:
        """Those that decide what is learned: a run is resumed with the same ones."""
        return {"group": self.group, **self.recipe.to_json()}

    def of_elastic(self) -> Self:
        """Those of an elastic run: a rank that joins goes on with it, even if no rank of the beginning is left.

        Raises UsageError without a name.
        """
        if self.run is None:
            raise UsageError("an elastic run needs a name, for those that join it; give --run NAME")
        return replace(self, resume=AUTO)

    def compared(self) -> dict[str, Any]:
        """Those that all ranks must have been started with alike, by their options."""
        parallel = ("strategy", "micro_batches", "pipeline_schedule", "model_ranks")
        run = ("run", "resume", "audit", "checkpoint_steps", "commit_steps", "deterministic", *parallel)
        of_run = {name: getattr(self, name) for name in run}
        of_order = {"--slices-at-once": self.reading.lanes, "--reader-memory": self.reading.budget_bytes}
        of_damage = {name: getattr(self.reading, name) for name in ("check", "on_damage", "skip_limit")}
        alike = {**self.training_settings(), **asdict(self.stopping), **of_run, **of_damage}
        return {option_of(name): value for name, value in alike.items()} | of_order

    def as_recipe(self) -> str:
        """What ``--recipe`` takes to train likewise, as TOML."""
        return to_toml({**self.recipe.to_json(), **asdict(self.stopping)})
