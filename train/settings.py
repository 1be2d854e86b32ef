"""The settings of a run, and its command line. Imports no TensorFlow: --help and a wrong option answer at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import click

from etl.errors import UsageError
from etl.manifest import Manifest
from etl.option_kinds import click_options
from etl.options import ENVIRONMENT_OPTIONS
from etl.places import DATA_PLACE, default_data_place
from train.ranks import STALL_TIMEOUT_S
from train.reading import Reading
from train.reading_options import reading_options

AUGMENTATIONS = ("crop", "flip", "colour")
NO_AUGMENTATION = "none"
AUTO, CPU, GPU = "auto", "cpu", "gpu"
NEWEST, BEST = "newest", "best"


@dataclass(frozen=True)
class Settings:
    """Every setting of a run; the options of `command` say what each means."""

    data: str
    name: str | None
    group: int | None
    model: str
    epochs: int
    batch: int
    lr: float
    momentum: float
    warmup_epochs: float
    decay: str
    drop_last: bool
    seed: int
    run: str | None
    resume: str | None
    audit: bool
    json: bool
    augment: str = NO_AUGMENTATION
    crop: int | None = None
    checkpoint_steps: int = 0
    commit_steps: int = 10
    keep: int = 3
    stall_timeout_s: float = STALL_TIMEOUT_S
    device: str = AUTO
    deterministic: bool = False
    reading: Reading = field(default_factory=Reading)

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--epochs", self.epochs, 1),
            ("--batch", self.batch, 1),
            ("--warmup-epochs", self.warmup_epochs, 0),
            ("--crop", 1 if self.crop is None else self.crop, 1),
            ("--checkpoint-steps", self.checkpoint_steps, 0),
            ("--commit-steps", self.commit_steps, 1),
            ("--keep", self.keep, 1),
            ("--stall-timeout", self.stall_timeout_s, 0),
        ):
            if value < least:
                raise UsageError(f"{flag} {value} is out of range; give at least {least}")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum {self.momentum:g} is out of range; give a number from 0 to below 1")
        for name in self.augmentations:
            if name not in AUGMENTATIONS:
                known = f"{NO_AUGMENTATION}, or some of {', '.join(AUGMENTATIONS)}"
                raise UsageError(f"--augment {self.augment!r}: there is no {name!r}; give {known}")

    @property
    def augmentations(self) -> list[str]:
        """What is done at random to the training pictures: of `AUGMENTATIONS`."""
        return [] if self.augment == NO_AUGMENTATION else self.augment.split(",")

    def picture_size(self, manifest: Manifest) -> tuple[int, int]:
        """Height and width of what the model sees: the slices' pictures as they are, or cut to a square."""
        own = manifest.size
        return own if self.crop is None else (self.crop, self.crop)

    def of_training(self) -> dict[str, Any]:
        """Those that decide what is learned: a run is resumed with the same ones."""
        names = ("group", "model", "batch", "lr", "momentum", "warmup_epochs", "decay", "drop_last", "seed")
        return {name: getattr(self, name) for name in (*names, "augment", "crop")}

    def of_elastic(self) -> Self:
        """Those of an elastic run: whoever joins goes on with it, even where nobody is left who has been there.

        Raises UsageError without a name.
        """
        if self.run is None:
            raise UsageError("an elastic run needs a name, for those that join it; give --run NAME")
        return replace(self, resume=AUTO)

    def compared(self) -> dict[str, Any]:
        """Those that all ranks must have been started with alike, by their options."""
        run = ("epochs", "run", "resume", "audit", "checkpoint_steps", "commit_steps", "deterministic")
        of_order = {"--slices-at-once": self.reading.lanes, "--reader-memory": self.reading.budget_bytes}
        return {option_of(name): getattr(self, name) for name in (*self.of_training(), *run)} | of_order


def option_of(name: str) -> str:
    """The option of a setting."""
    return f"--{name.replace('_', '-')}"


ENVIRONMENT_PREFIX = "RINGSLICE"  # RINGSLICE_EPOCHS=3 is --epochs 3

DATA = click.option(
    "--data",
    default=default_data_place,
    metavar="ROOT",
    help=f"The dataset's root, or a folder of roots. Default: ${DATA_PLACE}, else ./data.",
)
NAME = click.option("--name", help="Name of the slices. Default: the newest finished ones.")
STALL_TIMEOUT = click.option(
    "--stall-timeout",
    "stall_timeout_s",
    type=float,
    default=STALL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="End all ranks, and name the one that is late, when it has made no progress for so long; 0: wait for ever.",
)
JSON = click.option("--json", is_flag=True, help="Print the summary as JSON on standard output.")

_OPTIONS = (
    DATA,
    NAME,
    click.option(
        "--group",
        type=int,
        metavar="N",
        help="Train on the slices of one group of workers only, from 0 (ringslice shard --groups). Default: all.",
    ),
    click.option(
        "--model",
        default="cnn",
        show_default=True,
        help="mlp, cnn, or module:function, a function of (image shape, classes) that gives a Keras model of logits.",
    ),
    click.option("--epochs", type=int, default=10, show_default=True, help="Passes over the training split."),
    click.option(
        "--batch",
        type=int,
        default=64,
        show_default=True,
        help="Examples per step on each rank; the global batch is this times the ranks.",
    ),
    click.option(
        "--lr",
        type=float,
        default=0.05,
        show_default=True,
        help="Learning rate for one rank; it is multiplied by the number of ranks.",
    ),
    click.option("--momentum", type=float, default=0.9, show_default=True, help="Nesterov momentum of SGD."),
    click.option(
        "--warmup-epochs",
        type=float,
        default=1.0,
        show_default=True,
        help="Epochs over which the rate grows to its full size.",
    ),
    click.option(
        "--decay",
        type=click.Choice(["cosine", "none"]),
        default="cosine",
        show_default=True,
        help="How the rate falls after that.",
    ),
    click.option(
        "--drop-last",
        is_flag=True,
        help="Leave out what does not fill a batch on every rank, instead of filling up with repeats of no weight.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of the first weights and of the order of examples."
    ),
    click.option(
        "--augment",
        default=NO_AUGMENTATION,
        show_default=True,
        metavar="LIST",
        help="What to do at random to training pictures: some of crop (a part of the picture, resized), flip (left for"
        " right) and colour (brightness, contrast, saturation), as in crop,flip.",
    ),
    click.option(
        "--crop",
        type=int,
        metavar="SIZE",
        help="Side of the pictures that the model sees, in pixels; cut from the middle without --augment crop, and for"
        " evaluation. Default: the slices' size.",
    ),
    click.option("--run", help="Name of the run, under ROOT/runs. Default: the next number."),
    click.option(
        "--resume",
        is_flag=False,
        flag_value=AUTO,
        type=click.Choice([AUTO]),
        help="Go on with the run (that of the highest number without --run) from its newest checkpoint that is whole,"
        " if it has any; in mid-epoch too, and with any number of ranks. --resume alone is --resume auto.",
    ),
    click.option(
        "--checkpoint-steps",
        type=int,
        default=Settings.checkpoint_steps,
        metavar="N",
        help="Leave a checkpoint every N steps, in the background. Default: at the end of each epoch only.",
    ),
    click.option(
        "--keep",
        type=int,
        default=Settings.keep,
        show_default=True,
        metavar="N",
        help="Checkpoints to keep: the N newest, and the one with the best accuracy on the validation split (the test"
        " split where there is none).",
    ),
    click.option(
        "--commit-steps",
        type=int,
        default=Settings.commit_steps,
        show_default=True,
        metavar="N",
        help="In an elastic run: steps between commits. A rank that dies costs the steps since the last one.",
    ),
    STALL_TIMEOUT,
    click.option(
        "--device",
        type=click.Choice([AUTO, CPU, GPU]),
        default=AUTO,
        show_default=True,
        help="Where to train: gpu is the GPU with the number of the local rank, and fails where there is none.",
    ),
    click.option(
        "--deterministic", is_flag=True, help="The same weights bit for bit each time, with the same number of ranks."
    ),
    click.option(
        "--audit", is_flag=True, help="Every rank writes down the keys of the examples it consumed, under the run."
    ),
    JSON,
)


def command(start: Callable[[Settings], None]) -> click.Command:
    """The command line; ``start`` is called with the settings."""

    def run(reading: Reading, **values: Any) -> None:
        start(Settings(**values, reading=reading))

    run.__doc__ = """Train a model on the slices of a dataset, on as many ranks as horovodrun starts.

    After each epoch it evaluates on the validation split (the test split where there is none), and leaves a checkpoint
    under ROOT/runs; at the end it evaluates every example of the test split exactly once.

    Elastic, with ranks that come and go: horovodrun -np 4 --min-np 2 --max-np 8 --host-discovery-script SCRIPT
    train/main.py"""
    decorated: Any = reading_options(click_options(ENVIRONMENT_OPTIONS)(run))
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    settings = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": ENVIRONMENT_PREFIX}
    epilog = "Example: horovodrun -np 8 train/main.py --data data/flowers --model cnn --epochs 20"
    return click.command("train/main.py", context_settings=settings, epilog=epilog)(decorated)
