"""Options of click commands: their types, defaults from a TOML file, and how a command becomes a process."""

import errno
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from etl.entry_point import end_process, run_reporting
from etl.errors import UsageError
from etl.values import parse_bytes, parse_color, parse_counts, parse_numbers, parse_size

PIPELINE = "pipeline"  # also reads the tables of its stages
PIPELINE_TABLES = ("ingest", "normalize", "shard", PIPELINE)

Option = Callable[[Any], Any]  # what `click.option` returns


class ParsedText(click.ParamType[Any]):
    """The type of an option whose text ``parse`` turns into its value; a ValueError there is a wrong value."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any], metavar: str = "TEXT") -> None:
        """``metavar`` is what the help calls a value."""
        self._parse, self.metavar = parse, metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity."""

    metavar = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class IntegerRange(click.IntRange):
    """A range of integers."""

    metavar = "N"


BYTES, SIZE, COLOR = ParsedText(parse_bytes, "SIZE"), ParsedText(parse_size, "N|HxW"), ParsedText(parse_color, "COLOR")
NUMBERS, COUNTS = ParsedText(parse_numbers, "X[,Y,Z]"), ParsedText(parse_counts, "N,…")
INTEGER, COUNT = IntegerRange(min=0), IntegerRange(min=1)
FRACTION = FiniteRange(0, 1)
SECONDS = FiniteRange(min=0, min_open=True)


def add_options(*options: Option) -> Option:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def option_values(options: Sequence[Option], *words: str) -> dict[str, Any]:
    """The values, by name, that a command with these options takes from ``words``, with the defaults of the others.

    Raises click.UsageError.
    """
    command: click.Command = click.command()(add_options(*options)(lambda: None))
    return command.make_context("", list(words)).params


def invoke(command: click.Command, name: str, context: object = None, words: Sequence[str] | None = None) -> int:
    """Run ``command`` on ``words``, by default this process's; returns its exit status. ``context`` is click's ``obj``.

    Raises UsageError for what click finds wrong, and whatever the command raises.
    """
    output = sys.stdout
    try:
        result = command.main(words, standalone_mode=False, prog_name=name, obj=context)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UsageError.status
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:
        if sys.stdout is not output:  # click has replaced it, for a broken pipe, and ends with 1
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        raise
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else name
        raise UsageError(f"{error.format_message()} (see: {path} --help)") from None
    return result if isinstance(result, int) else 0


def run_command(command: click.Command, name: str) -> NoReturn:
    """Run ``command`` as this process; exits with its status: 0, 1, 2, 3 or 130."""
    end_process(run_reporting(lambda: invoke(command, name)))


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Take defaults from the tables of the TOML file that are named after the command; keys are options."""
    if path is None:
        return
    group = context.find_root().command
    content = _read_tables(group.commands if isinstance(group, click.Group) else {}, path)
    command = context.info_name or ""
    known = {option.name or "" for option in context.command.params} - {parameter.name}
    defaults = {}
    if command == PIPELINE and isinstance(group, click.Group):
        _reject_options_of_one_stage(group.commands, content, path)
    for table in PIPELINE_TABLES if command == PIPELINE else (command,):
        for option, value in content.get(table, {}).items():
            name = option.replace("-", "_")
            if name not in known:
                raise click.BadParameter(
                    f"{path}: [{table}] has no option {option!r} of {command}; known: {', '.join(sorted(known))}"
                )
            defaults[name] = str(value)  # checked like a word of the command line
    context.default_map = {**(context.default_map or {}), **defaults}


def _reject_options_of_one_stage(
    commands: Mapping[str, click.Command], content: Mapping[str, Mapping[str, Any]], path: Path
) -> None:
    """Raise click.BadParameter for an option of a stage's table that `pipeline` would give to its other stages, too."""
    stages = [name for name in PIPELINE_TABLES if name != PIPELINE]
    tables = {
        table: {option.replace("-", "_"): str(value) for option, value in content.get(table, {}).items()}
        for table in PIPELINE_TABLES
    }
    for stage in stages:
        for name, value in tables[stage].items():
            having = [each for each in stages if name in {option.name for option in commands[each].params}]
            others = [each for each in having if tables[each].get(name) != value]
            if others and name not in tables[PIPELINE]:
                raise click.BadParameter(
                    f"{path}: {name} of [{stage}] would go to {' and '.join(others)}, too; for pipeline, give it in"
                    f" [{PIPELINE}]"
                )


def _read_tables(commands: Mapping[str, click.Command], path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, each named after a command that has --config."""
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not text; give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from None
    known = [name for name, each in commands.items() if "config" in {option.name for option in each.params}]
    for name, value in content.items():
        if name not in known:
            raise click.BadParameter(f"{path}: no command reads {name!r}; give tables of {', '.join(known)}")
        if not isinstance(value, dict):
            raise click.BadParameter(f"{path}: {name} = {value!r} is not a table; put options below a line [{name}]")
        for option, each in value.items():
            if isinstance(each, dict | list):
                raise click.BadParameter(f"{path}: [{name}] {option} = {each!r} is not one value; give it as a text")
    return content


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    help="TOML file with defaults for these options, in a table named after the command.",
)
