"""Recipes: checked, read from TOML, overridden by flags, and written again as TOML."""

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import UsageError
from train.config.recipe import Recipe
from train.config.recipe_options import known_recipes, read_recipe, to_toml
from train.config.settings import Settings, command
from train.config.stopping import Stopping, epochs_without_progress, scores_of


def settings_of(*words: object, **variables: str) -> Settings:
    """What the command line gives."""
    started: list[Settings] = []
    parsed = command(lambda settings, monitor: started.append(settings))
    result = CliRunner().invoke(parsed, ["--data", "d", *map(str, words)], env=variables)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return started[0]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"batch": 0}, "--batch 0 is out of range; give a number from 1 to 1000000000"),
        ({"accumulate": 0}, "--accumulate 0 is out of range; give a number from 1 to 1000000000"),
        ({"lr": 0.0}, "--lr 0.0 is out of range; give a number above 0"),
        ({"momentum": 1.0}, "--momentum 1.0 is out of range; give a number from 0 to below 1"),
        ({"warmup_epochs": -1.0}, "--warmup-epochs -1.0 is out of range; give at least 0"),
        ({"decay": "step", "decay_until": 7.0}, "--decay-until 7 has no effect with --decay step; leave it out"),
        ({"decay_until": 0.0}, "--decay-until 0.0 is out of range; give a number above 0"),
        ({"crop_area": 0.0}, "--crop-area 0.0 is out of range"),
        ({"seed": -1}, "--seed -1 is out of range; give a number from 0 to 4294967295"),
        ({"batch": 10**400}, "is out of range; give a number from 1 to 1000000000"),
        ({"optimizer": "rmsprop"}, "--optimizer 'rmsprop': give sgd or lars or adam or adamw"),
        (
            {"augment": "crop,spin"},
            "--augment 'crop,spin': there is no 'spin'; give none, or some of crop, flip, colour",
        ),
        ({"crop": 0}, "--crop 0 is out of range; give at least 1"),
        ({"decay": "step", "decay_epochs": "60,30"}, "--decay-epochs '60,30' are not ascending epochs"),
        ({"xla": True, "batch_norm": "synchronised"}, "--xla and --batch-norm synchronised do not go together"),
    ],
)
def test_what_is_out_of_range_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        Recipe(**settings)


@pytest.mark.parametrize(
    ("examples", "ranks", "more", "batch"),
    [
        (1437, 1, {}, 64),
        (1437, 8, {}, 8),  # 23 steps
        (1437, 8, {"accumulate": 2}, 4),
        (1437, 8, {"batch": 64}, 64),
        (19 * 64 + 1, 1, {}, 64),  # 20 steps
        (19 * 64, 1, {}, 32),
        (20 * 64 - 1, 1, {"drop_last": True}, 32),
        (100, 8, {}, 4),
        (20, 8, {}, 2),  # a rank's share
    ],
)
def test_the_default_batch_leaves_steps_in_an_epoch(
    examples: int, ranks: int, more: dict[str, Any], batch: int
) -> None:
    assert Recipe(**more).with_batch(examples, ranks).batch == batch


def test_flags_override_variables_and_these_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('model = "mlp"\nbatch = 8\nlr = 1\nseed = 5\nepochs = 7\nxla = true\n')
    settings = settings_of("--recipe", tmp_path / "mine.toml", "--batch", 16, RINGSLICE_SEED="6")
    assert settings.recipe == Recipe(model="mlp", batch=16, lr=1.0, seed=6, xla=True)
    assert settings.stopping == Stopping(epochs=7)


@pytest.mark.parametrize("name", known_recipes())
def test_recipes_that_come_along_are_sound(name: str) -> None:
    result = read_recipe(name)
    settings = settings_of("--recipe", name)
    for key, value in result.items():
        assert {**settings.recipe.to_json(), **asdict(settings.stopping)}[key] == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bach = 8", "has no setting 'bach'; known: accumulate, augment, batch"),
        ('batch = "8"', 'batch = "8" is not a whole number'),
        ("batch = true", "batch = true is not a whole number"),
        ("xla = 1", "xla = 1 is not true or false"),
        ("model = 3", "model = 3 is not a text in quotes"),
        ("[train]\nbatch = 8", "has no setting 'train'"),
        ("batch = ", "is not TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=f"mine.toml.*{line}") as raised:
        read_recipe(str(tmp_path / "mine.toml"))
    assert "\n" not in str(raised.value)


def test_a_missing_recipe_is_reported() -> None:
    with pytest.raises(
        UsageError, match=r"--recipe 'resnet51': No such file or directory; give a TOML file, or one of"
    ):
        read_recipe("resnet51")


def test_what_is_stored_is_a_recipe_again(tmp_path: Path) -> None:
    settings = settings_of("--model", 'a:"b"\\é', "--lr", 1e-9, "--crop", 7, "--patience", 3, "--max-time", "90m")
    (tmp_path / "again.toml").write_text(settings.as_recipe())
    assert settings_of("--recipe", tmp_path / "again.toml") == settings


@given(
    st.dictionaries(
        st.from_regex("[a-z]+", fullmatch=True), st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    )
)
def test_toml_is_toml(settings: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(settings)) == settings


@pytest.mark.parametrize(
    ("stopping", "step", "scores", "seconds", "why"),
    [
        (Stopping(2), 9, [0.1], 0, ""),
        (Stopping(2), 9, [0.1, 0.2], 0, "epochs"),
        (Stopping(9, max_steps=10), 9, [], 0, ""),
        (Stopping(9, max_steps=9), 9, [], 0, "steps"),
        (Stopping(9, until_accuracy=0.9), 9, [0.95, 0.89], 0, ""),
        (Stopping(9, until_accuracy=0.9), 9, [0.1, 0.9], 0, "accuracy"),
        (Stopping(9, patience=2), 9, [0.3, 0.2, 0.3], 0, "no progress"),
        (Stopping(9, patience=2), 9, [0.3, 0.2, 0.31], 0, ""),
        (Stopping(3, patience=2), 9, [0.3, 0.2, 0.3], 0, "no progress"),
        (Stopping(9, max_time_s=5), 9, [], 4.9, ""),
        (Stopping(9, max_time_s=5), 9, [], 5, "time"),
    ],
)
def test_a_run_is_over(stopping: Stopping, step: int, scores: list[float], seconds: float, why: str) -> None:
    history = [{"epoch": number, "test_accuracy": score} for number, score in enumerate(scores, 1)]
    assert stopping.why(len(history) + 1, step, scores_of(history, "test"), seconds) == why


@given(st.lists(st.floats(0, 1)))
def test_progress_is_a_new_best(scores: list[float]) -> None:
    stale = epochs_without_progress(scores)
    until = len(scores) - stale
    assert all(score <= max(scores[:until]) for score in scores[until:])
    assert not scores or scores[until - 1] == max(scores)


@pytest.mark.parametrize(
    "values", [{"epochs": 0}, {"epochs": 10**400}, {"epochs": 1, "max_steps": 0}, {"epochs": 1, "until_accuracy": 1.5}]
)
def test_a_condition_that_is_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is out of range; give"):
        Stopping(**values)
