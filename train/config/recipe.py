"""The recipe: every setting, but the length, that decides what is learned. A resumed run has the same one. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from etl.errors import UsageError
from train.reader.intervals import Steps

AUGMENTATIONS = ("crop", "flip", "colour")
NONE = "none"
COSINE, STEP = "cosine", "step"
SGD, LARS, ADAM, ADAMW = "sgd", "lars", "adam", "adamw"
RATES = {SGD: 0.2, LARS: 0.2, ADAM: 0.004, ADAMW: 0.004}  # for a global batch of 256: 0.001 with a batch of 64
FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
FP16 = "fp16"
SEEDS = 1 << 32  # numpy's
MAX_VALUE = 1_000_000_000
WARMUP_EPOCHS, EPOCHS_TO_WARMUP = 1.0, 5  # the default warm-up, if the schedule is at least this many times as long
LOCAL, SYNCHRONISED = "local", "synchronised"
MAX_BATCH, MIN_BATCH, MIN_STEPS = 64, 4, 20  # of the default batch, and the steps of an epoch with it


@dataclass(frozen=True)
class Recipe:
    """The options of `train.config.recipe_options` describe each field.

    Raises UsageError, naming the option and its value, for what is out of range or cannot go together.
    """

    model: str = "cnn"
    batch: int | None = None
    accumulate: int = 1
    optimizer: str = SGD
    lr: float | None = None
    momentum: float = 0.9
    warmup_epochs: float | None = None
    decay: str = COSINE
    decay_until: float | None = None
    decay_epochs: str = "30,60,80"
    weight_decay: float = 0.0
    lars_coefficient: float = 0.001
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    precision: str = FLOAT32
    compression: str = NONE
    batch_norm: str = LOCAL
    xla: bool = False
    augment: str = NONE
    crop: int | None = None
    crop_area: float = 0.08
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("accumulate", 1), ("weight_decay", 0), ("clip_norm", 0)):
            self._require(name, least <= getattr(self, name) <= MAX_VALUE, f"a number from {least} to {MAX_VALUE}")
        fits = self.batch is None or 1 <= self.batch <= MAX_VALUE
        self._require("batch", fits, f"a number from 1 to {MAX_VALUE}")
        self._require("seed", 0 <= self.seed < SEEDS, f"a number from 0 to {SEEDS - 1}")
        self._require("warmup_epochs", self.warmup_epochs is None or 0 <= self.warmup_epochs < math.inf, "at least 0")
        self._require("decay_until", self.decay_until is None or 0 < self.decay_until < math.inf, "a number above 0")
        self._require("crop", self.crop is None or 1 <= self.crop <= MAX_VALUE, "at least 1")
        self._require("lr", self.lr is None or 0 < self.lr < math.inf, "a number above 0")
        self._require("lars_coefficient", 0 < self.lars_coefficient < math.inf, "a number above 0")
        self._require("crop_area", 0 < self.crop_area <= 1, "a number from above 0 to 1")
        for name in ("momentum", "label_smoothing"):
            self._require(name, 0 <= getattr(self, name) < 1, "a number from 0 to below 1")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{option_of(name)} {getattr(self, name)!r}: give {' or '.join(known)}")
        for name in self.augmentations:
            if name not in AUGMENTATIONS:
                remedy = f"give {NONE}, or some of {', '.join(AUGMENTATIONS)}"
                raise UsageError(f"--augment {self.augment!r}: there is no {name!r}; {remedy}")
        _ = self.decays
        if self.xla and self.batch_norm == SYNCHRONISED:
            raise UsageError(
                "--xla and --batch-norm synchronised do not go together: XLA cannot compile the reduction of the"
                " statistics; give one of them"
            )

    def _require(self, name: str, is_valid: bool, remedy: str) -> None:
        if not is_valid:
            raise UsageError(f"{option_of(name)} {getattr(self, name)} is out of range; give {remedy}")

    @property
    def base_rate(self) -> float:
        """The learning rate for a global batch of 256: as given, or the default of the optimizer."""
        return RATES[self.optimizer] if self.lr is None else self.lr

    @property
    def rank_batch(self) -> int:
        """The batch of each rank, in a recipe that has one: after `with_batch`."""
        assert self.batch is not None
        return self.batch

    @property
    def examples_per_step(self) -> int:
        """Examples of one step on each rank."""
        return self.rank_batch * self.accumulate

    @property
    def wording(self) -> str:
        """The options that decide on `examples_per_step`."""
        return f"--batch {self.batch}" + (f" --accumulate {self.accumulate}" if self.accumulate > 1 else "")

    @property
    def augmentations(self) -> list[str]:
        """What is done at random to the training pictures: of `AUGMENTATIONS`."""
        return [] if self.augment == NONE else self.augment.split(",")

    @property
    def decays(self) -> tuple[float, ...]:
        """The epochs after which the rate falls to a tenth, if it falls by steps. Raises UsageError."""
        if self.decay != STEP:
            return ()
        try:
            epochs = tuple(float(each) for each in self.decay_epochs.split(","))
        except ValueError:
            epochs = (math.nan,)
        if not all(0 < each < math.inf for each in epochs) or list(epochs) != sorted(set(epochs)):
            raise UsageError(
                f"--decay-epochs {self.decay_epochs!r} are not ascending epochs; give numbers with commas between them,"
                " like 30,60,80"
            )
        return epochs

    def resolved(self, epochs: int, begun: Mapping[str, Any] | None = None) -> Self:
        """With values for rate, warm-up and the end of the decay, in a run of so many epochs; with the batch, if begun.

        What is not given is as the run was ``begun`` with: the settings of its checkpoint. In a new run, a cosine ends
        with the epochs, and the warm-up takes 1 epoch, but no more than a fifth of the schedule.
        """
        begun = begun or {}
        end: float = epochs
        if self.decay == COSINE:
            end = self.decay_until or begun.get("decay_until") or end
        warmup = self.warmup_epochs
        if warmup is None:
            warmup = begun.get("warmup_epochs", min(WARMUP_EPOCHS, end / EPOCHS_TO_WARMUP))
        batch = self.batch or begun.get("batch")
        until = float(end) if self.decay == COSINE else None
        return replace(self, batch=batch, lr=self.base_rate, warmup_epochs=warmup, decay_until=until)

    def with_batch(self, examples: int, ranks: int) -> Self:
        """With a batch, if none is given: the largest power of two up to MAX_BATCH that leaves MIN_STEPS steps in an
        epoch of ``examples``, but at least MIN_BATCH, and never more than a rank's share.
        """
        if self.batch is not None:
            return self
        batch = MAX_BATCH
        while batch > MIN_BATCH and Steps(examples, ranks, batch * self.accumulate, self.drop_last).number < MIN_STEPS:
            batch //= 2
        return replace(self, batch=max(1, min(batch, examples // ranks // self.accumulate)))

    def require_plain(self, strategy: str) -> None:
        """Raise UsageError if a setting is one that only Horovod's steps support."""
        for name, plain in (("compression", NONE), ("xla", False)):
            if getattr(self, name) != plain:
                option = option_of(name) + ("" if plain is False else f" {getattr(self, name)}")
                raise UsageError(f"{option} is not supported by --strategy {strategy}. Leave it out, or use horovod")
        if self.batch_norm == SYNCHRONISED and self.accumulate > 1:
            raise UsageError(
                f"--accumulate {self.accumulate} is not supported by --strategy {strategy} with --batch-norm"
                " synchronised. Leave one out, or use horovod"
            )

    def to_json(self) -> dict[str, Any]:
        """The settings by name; as keyword arguments they make the same recipe."""
        return asdict(self)

    @classmethod
    def of_run(cls, settings: Mapping[str, Any]) -> Self:
        """The recipe among the settings that a checkpoint records, which have the run's group, too."""
        return cls(**{name: value for name, value in settings.items() if name != "group"})


CHOICES = {
    "optimizer": (SGD, LARS, ADAM, ADAMW),
    "decay": (COSINE, STEP, NONE),
    "precision": (FLOAT32, FLOAT16, BFLOAT16),
    "compression": (NONE, FP16),
    "batch_norm": (LOCAL, SYNCHRONISED),
}


def option_of(name: str) -> str:
    """The option of a setting, whose name may end with its unit."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"
