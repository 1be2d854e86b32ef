"""Recipes, schedules and settings: checked before TensorFlow is loaded, read from TOML, written again."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from etl.errors import UsageError
from train import evaluate, export, predict, promote
from train.config.recipe import Recipe
from train.config.recipe_options import known_recipes, read_recipe
from train.config.run_options import command
from train.config.schedule import Schedule
from train.config.settings import Settings
from train.config.stopping import Stopping, Time, scores_of
from train.reader.cache import SliceCache
from train.reader.config import ReaderOptions


def settings_of(*words: object, **variables: str) -> Settings:
    """What the command line gives."""
    started: list[Settings] = []
    parsed = command(lambda settings, monitor: started.append(settings))
    result = CliRunner().invoke(parsed, ["--data", "d", *map(str, words)], env=variables, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return started[0]


BOTH = Recipe(accumulate=2, batch_norm="synchronised")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Recipe(batch=0), "--batch 0 is out of range; give a number from 1 to 1000000000"),
        (lambda: Recipe(batch=10**400), "is out of range; give a number from 1 to 1000000000"),
        (lambda: Recipe(lr=0.0), "--lr 0.0 is out of range; give a number above 0"),
        (lambda: Recipe(momentum=1.0), "--momentum 1.0 is out of range; give a number from 0 to below 1"),
        (lambda: Recipe(warmup_epochs=-1.0), "--warmup-epochs -1.0 is out of range; give at least 0"),
        (lambda: Recipe(crop_area=0.0), "--crop-area 0.0 is out of range"),
        (lambda: Recipe(crop=0), "--crop 0 is out of range; give at least 1"),
        (lambda: Recipe(decay="step", decay_epochs="60,30"), "--decay-epochs '60,30' are not ascending epochs"),
        (lambda: Recipe(optimizer="rmsprop"), "--optimizer 'rmsprop': give sgd or lars or adam or adamw"),
        (lambda: Recipe(augment="crop,spin"), "there is no 'spin'; give none, or some of crop, flip, colour"),
        (lambda: Recipe(xla=True, batch_norm="synchronised"), "--xla and --batch-norm synchronised do not go together"),
        (lambda: Stopping(epochs=0), "is out of range; give"),
        (lambda: Stopping(epochs=1, until_accuracy=1.5), "is out of range; give"),
        (lambda: ReaderOptions(silence_s=0), "--read-timeout 0 is out of range; give more than 0"),
        (lambda: Settings("d", replicas=2), "--replicas 2 is for --strategy mirrored"),
        (lambda: Settings("d", BOTH, strategy="mirrored"), "--accumulate 2 is not supported .* with --batch-norm"),
        (lambda: Settings("d", strategy="ddp", micro_batches=8), "--micro-batches 8 is for --strategy pipeline"),
        (lambda: Settings("d", strategy="ddp", pipeline_schedule="gpipe"), "is for --strategy pipeline"),
        (lambda: Settings("d", strategy="ddp", model_ranks=2), "--model-ranks 2 is for --strategy pipeline"),
        (lambda: Settings("d", strategy="pipeline", micro_batches=0), "--micro-batches 0 is out of range"),
        (lambda: Settings("d", strategy="pipeline", model_ranks=1), "--model-ranks 1 is out of range"),
        (lambda: settings_of("--decay", "none", "--decay-until", 7), "--decay-until has no effect without --decay cos"),
        (lambda: settings_of("--decay-epochs", 1), "--decay-epochs has no effect without --decay step"),
        (lambda: settings_of("--lars-coefficient", 1), "--lars-coefficient has no effect without --optimizer lars"),
        (lambda: settings_of("--crop-area", 0.5), "--crop-area has no effect without --augment crop"),
        (lambda: settings_of("--cache-size", "1GB"), "--cache-size has no effect without --cache"),
        (lambda: settings_of("--skip-limit", 3), "--skip-limit has no effect without --on-damage skip"),
        (lambda: settings_of("--cache", "hdfs://h/cache"), "--cache 'hdfs://h/cache' is not a folder of a local disk"),
        (lambda: settings_of("--cache", ""), "--cache '' is not a folder of a local disk. Give one"),
    ],
)
def test_what_is_out_of_range_or_does_not_go_together_is_refused(make: Callable[[], object], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        make()


@pytest.mark.parametrize(
    ("examples", "ranks", "more", "batch"),
    [
        (1437, 8, {}, 8),  # 23 steps
        (1437, 8, {"accumulate": 2}, 4),
        (1437, 8, {"batch": 64}, 64),
        (19 * 64 + 1, 1, {}, 64),  # 20 steps
        (19 * 64, 1, {}, 32),
        (20 * 64 - 1, 1, {"drop_last": True}, 32),
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
    environment = {"RINGSLICE_MAX_TIME": "90m", "RINGSLICE_STALL_TIMEOUT": "7", "RINGSLICE_READER_MEMORY": "1MB"}
    settings = settings_of(**environment)  # of options that are not called like their parameters
    assert (settings.stopping.max_time_s, settings.stall_timeout_s) == (5400, 7)
    assert settings.reading.budget_bytes == 10**6


def test_every_option_comes_from_the_variable_of_its_name() -> None:
    """But for the batch of predictions, because RINGSLICE_BATCH is that of a training."""
    training = command(lambda settings, monitor: None)
    without = []
    for scripted in (training, evaluate.command, promote.command, export.command, predict.command):
        for option in scripted.params:
            if not isinstance(option, click.Option) or option.hidden:
                continue
            name = max(option.opts, key=len).removeprefix("--").replace("-", "_")
            if not option.allow_from_autoenv:
                without.append((scripted, name))
            else:
                assert option.name == name or option.envvar == f"RINGSLICE_{name.upper()}", option.opts
    assert without == [(predict.command, "batch")]


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
        ("xla = 1", "xla = 1 is not true or false"),
        ("model = 3", "model = 3 is not a text in quotes"),
        ("batch = ", "is not TOML"),
        (None, "No such file or directory; give a TOML file, or one of"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(text: str | None, line: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=f"mine.toml.*{line}") as raised:
        read_recipe(str(tmp_path / "mine.toml"))
    assert "\n" not in str(raised.value)


def test_what_is_stored_is_a_recipe_again(tmp_path: Path) -> None:
    settings = settings_of("--model", 'a:"b"\\é\x7f', "--lr", 1e-9, "--crop", 7, "--patience", 3, "--max-time", "90m")
    (tmp_path / "again.toml").write_text(settings.as_recipe())
    assert settings_of("--recipe", tmp_path / "again.toml") == settings


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
    assert stopping.reason(len(history) + 1, step, scores_of(history, "test"), seconds) == why


COSINE = Schedule(0.1, warmup_epochs=1, until=11)


@pytest.mark.parametrize(
    ("schedule", "global_batch", "rates"),
    [
        (COSINE, 8 * 256, {0: 0.1, 0.5: 0.45, 1: 0.8, 3.5: 0.4 * (1 + 0.5**0.5), 6: 0.4, 11: 0, 12: 0}),
        (COSINE, 4 * 256, {6: 0.2}),  # it follows the world size
        (COSINE, 128, {0: 0.005, 0.5: 0.0275, 1: 0.05}),  # a small batch warms up from a tenth
        (Schedule(0.1, 5, 90, "step", (30, 60, 80)), 8192, {5: 3.2, 29.9: 3.2, 30: 0.32, 60: 0.032, 89: 0.0032}),
        (Schedule(0.1, 0, 1, "none"), 512, {0.9: 0.2}),
    ],
)
def test_the_rate_warms_up_to_the_scaled_one_and_decays(
    schedule: Schedule, global_batch: int, rates: dict[float, float]
) -> None:
    assert {done: schedule.rate(done, global_batch) for done in rates} == pytest.approx(rates)


def test_what_is_given_precedes_the_schedule_that_a_run_was_begun_with() -> None:
    """By default a run leaves the warm-up in a fifth of its epochs, or 1, and a cosine ends with the epochs."""
    for epochs, warmup_epochs in ((1, 0.2), (10, 1)):
        schedule = Schedule.of(Recipe().resolved(epochs))
        assert (schedule.warmup_epochs, schedule.until) == (warmup_epochs, epochs)
    given = Recipe(lr=0.1, warmup_epochs=5, decay_until=2.5)
    assert given.resolved(10, {"warmup_epochs": 1.0, "decay_until": 10.0}) == given
    assert Recipe(warmup_epochs=0).resolved(10).warmup_epochs == 0
    assert Recipe(decay_until=2.5).resolved(10).warmup_epochs == 0.5
    begun = Recipe().resolved(3)
    assert Recipe().resolved(20, begun.to_json()) == begun
    assert Recipe(decay="none").resolved(20, Recipe(decay="none").resolved(3).to_json()).warmup_epochs == 0.6
    assert Schedule.of(Recipe(decay="none").resolved(10)).until == math.inf


def test_a_time_has_a_unit_or_none() -> None:
    for text, seconds in (("90", 90), ("90s", 90), ("1.5m", 90), (" 2h ", 7200)):
        assert Time().convert(text, None, None) == seconds
    for text in ("500ms", "s", "nan", "-3m", "0"):
        with pytest.raises(click.BadParameter, match="is not a time; give seconds"):
            Time().convert(text, None, None)


def test_a_cache_reports_on_one_rank_of_a_host_and_is_not_of_the_training(tmp_path: Path) -> None:
    words = ("--cache", tmp_path, "--cache-size", "2GB")
    for rank, is_quiet in (("0", False), ("1", True)):
        cache = settings_of(*words, HOROVOD_LOCAL_RANK=rank).reading.cache
        assert isinstance(cache, SliceCache)
        assert (cache._files.path, cache._files.limit_bytes, cache._quiet) == (tmp_path, 2 * 10**9, is_quiet)
    assert settings_of(*words).training_settings() == settings_of().training_settings()
    cache = settings_of("--cache", "~/cache", HOME=str(tmp_path)).reading.cache
    assert isinstance(cache, SliceCache)
    assert cache._files.path == tmp_path / "cache"


NOT_OF_SERVERS = {"precision": "float16", "batch_norm": "synchronised", "device": "gpu", "deterministic": True}


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("mirrored", {"compression": "fp16", "xla": True}),
        ("tensor-parallel", {"accumulate": 2, "precision": "float16", "batch_norm": "synchronised"}),
        ("synchronous-parameter-server", NOT_OF_SERVERS),
        ("parameter-server", {**NOT_OF_SERVERS, "accumulate": 2}),
    ],
)
def test_what_a_strategy_does_not_support_is_refused(strategy: str, options: dict[str, Any]) -> None:
    """And what it supports is accepted."""
    assert Settings("d", BOTH).recipe == BOTH
    Settings("d", strategy="pipeline", micro_batches=8, pipeline_schedule="gpipe", model_ranks=2)
    for name, value in options.items():
        settings = {name: value} if name in ("device", "deterministic") else {"recipe": Recipe(**{name: value})}
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}.* is not supported by --strategy {strategy}"):
            Settings("d", strategy=strategy, **settings)
