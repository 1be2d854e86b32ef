"""The command line of a recipe, and recipes in TOML files: those of `RECIPES`, or the user's own; flags override."""

import json
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import click

from etl.errors import UsageError
from train.config.reader_options import refuse_without_effect
from train.config.recipe import (
    ADAM,
    CHOICES,
    COSINE,
    LARS,
    MAX_BATCH,
    MIN_BATCH,
    MIN_STEPS,
    RATES,
    SGD,
    STEP,
    Recipe,
    option_of,
)
from train.config.stopping import Stopping

RECIPES = Path(__file__).parent / "recipes"
KINDS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
NAMES = {"int": "a whole number", "float": "a number", "str": "a text in quotes", "bool": "true or false"}


def known_recipes() -> list[str]:
    """The names of the recipes that come along."""
    return sorted(each.stem for each in RECIPES.glob("*.toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe by name: one of `known_recipes`, or a TOML file.

    Raises UsageError, naming the file, for a file that is not TOML, an unknown key and a value of another type.
    """
    path = RECIPES / f"{name}.toml" if name in known_recipes() else Path(name)
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"--recipe {name!r}: {why}; give a TOML file, or one of {', '.join(known_recipes())}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--recipe {path} is not TOML: {error}") from None
    kinds = {key: kind_of(of, key).__name__ for of in (Recipe, Stopping) for key in get_type_hints(of)}
    for key, value in settings.items():
        if key not in kinds:
            raise UsageError(f"--recipe {path} has no setting {key!r}; known: {', '.join(sorted(kinds))}")
        kind = kinds[key]
        if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise UsageError(f"--recipe {path}: {key} = {json.dumps(value, default=str)} is not {NAMES[kind]}")
    return settings


def kind_of(of: type, name: str) -> type:
    """The type of a setting's value, if it has one: int of ``int | None``."""
    hint = get_type_hints(of)[name]
    return getattr(hint, "__args__", (hint,))[0]


def to_toml(settings: dict[str, Any]) -> str:
    """The settings as a recipe's file; those that are None stay out of it.

    Numbers and texts are as in JSON, but for the character DEL, which TOML has escaped.
    """
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in settings.items() if value is not None}
    return "".join(f"{name} = {value}\n" for name, value in texts.items()).replace("\x7f", "\\u007f")


def refuse_given_without_effect(recipe: Recipe) -> None:
    """Raise UsageError if an option on the command line has no effect in ``recipe``; a recipe's file may have it."""
    refuse_without_effect("decay_until", recipe.decay == COSINE, f"--decay {COSINE}")
    refuse_without_effect("decay_epochs", recipe.decay == STEP, f"--decay {STEP}")
    refuse_without_effect("lars_coefficient", recipe.optimizer == LARS, f"--optimizer {LARS}")
    refuse_without_effect("crop_area", "crop" in recipe.augmentations, "--augment crop")


def _take_defaults(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Options that are not given have the recipe's values."""
    del parameter
    if name is not None:
        context.default_map = {**(context.default_map or {}), **read_recipe(name)}


def option(of: type, name: str, help_text: str, **more: Any) -> Any:
    """The option of a field of ``of``: a setting of a recipe, of `Stopping` or of a run, with its type and default."""
    flag, kind = option_of(name), kind_of(of, name)
    names = (f"{flag}/--no-{flag[2:]}",) if kind is bool else (flag,)
    typed = {} if kind is bool else {"type": click.Choice(CHOICES[name]) if name in CHOICES else kind}
    settings = {"default": getattr(of, name, None), "show_default": True, **typed, **more}
    return click.option(*names, help=help_text, **settings)


_option = partial(option, Recipe)


RECIPE_OPTIONS = (
    click.option(
        "--recipe",
        callback=_take_defaults,
        is_eager=True,
        expose_value=False,
        metavar="NAME|FILE",
        help=f"Settings from a TOML file, or one that comes along: {', '.join(known_recipes())}. Flags override it.",
    ),
    _option(
        "model",
        "mlp, cnn, resnet50, googlenet (of PyTorch), or module:function, a function of (image shape, classes) that"
        " gives a model of logits, of the strategy's framework.",
    ),
    _option(
        "batch",
        "Examples at a time on each rank; the global batch is this times --accumulate times the ranks. Default: the"
        f" largest power of two up to {MAX_BATCH} that leaves {MIN_STEPS} steps in an epoch, but at least {MIN_BATCH}."
        " A run that is resumed keeps its own.",
        metavar="N",
    ),
    _option(
        "accumulate",
        "Batches of each rank in a step: their gradients are added before the all-reduce.",
        metavar="N",
    ),
    _option(
        "optimizer",
        "SGD with Nesterov momentum; lars brings the step of each layer into proportion to its weights, for large"
        " batches; adam; adamw, whose weight decay is not part of the gradient.",
    ),
    _option(
        "lr",
        "Learning rate for a global batch of 256; it is scaled with the global batch. Default:"
        f" {RATES[SGD]:g}; {RATES[ADAM]:g} with adam and adamw.",
        metavar="RATE",
    ),
    _option("momentum", "Nesterov momentum; with adam and adamw, the decay of the mean gradient (beta 1)."),
    _option(
        "warmup_epochs",
        "Epochs over which the rate grows, step by step, to its full size. Default: 1, but no more than a fifth of the"
        " epochs until the end of the decay.",
        metavar="EPOCHS",
    ),
    _option("decay", "How the rate falls after that."),
    _option(
        "decay_until",
        "With --decay cosine: epochs after which the rate is 0, with a fraction if wanted. Default: --epochs of the"
        " first start of the run. --max-steps and --max-time do not change it.",
        metavar="EPOCHS",
    ),
    _option("decay_epochs", "With --decay step: the epochs after which the rate falls to a tenth.", metavar="LIST"),
    _option("weight_decay", "Part of each weight that is added to its gradient; not for biases and batch norm."),
    _option("lars_coefficient", "With --optimizer lars: the trust coefficient."),
    _option("label_smoothing", "What all classes share of the probability of an example's label."),
    _option("clip_norm", "Largest norm of all gradients together; 0: any."),
    _option("precision", "What layers compute in; weights stay float32, and float16 has its loss scaled."),
    _option("compression", "What gradients are sent as: fp16 halves the bytes sent."),
    _option("batch_norm", "Statistics of each rank's own batch, or of all ranks' together."),
    _option("xla", "Compile the forward and backward pass with XLA."),
    _option(
        "augment",
        "What to do at random to training pictures: some of crop (a part of the picture, resized), flip (left for"
        " right) and colour (brightness, contrast, saturation), as in crop,flip.",
        metavar="LIST",
    ),
    _option(
        "crop",
        "Side of the pictures that the model sees, in pixels; cut from the middle without --augment crop, and for"
        " evaluation. Default: the slices' size.",
        metavar="SIZE",
    ),
    _option("crop_area", "With --augment crop: the least part of a picture that is cut out.", metavar="FRACTION"),
    _option(
        "drop_last",
        "Leave out what does not fill a step on every rank, instead of spreading all over steps of nearly equal size.",
    ),
    _option("seed", "Seed of the first weights and of the order of examples."),
)
