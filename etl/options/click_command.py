"""Options of click commands: their types, how a command gets them, and how a command becomes a process."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import click

from etl.errors import UsageError
from etl.values import parse_bytes, parse_color, parse_counts, parse_numbers, parse_size

Option = Callable[[Any], Any]  # what `click.option` returns


class Parsed(click.ParamType[Any]):
    """The type of an option whose text ``parse`` turns into its value; a ValueError there is a wrong value."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


BYTES, SIZE, COLOR = Parsed(parse_bytes), Parsed(parse_size), Parsed(parse_color)
NUMBERS, COUNTS = Parsed(parse_numbers), Parsed(parse_counts)
COUNT = click.IntRange(min=1)
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

    def callback() -> None:
        """The context alone is needed."""

    command: click.Command = click.command()(add_options(*options)(callback))
    return command.make_context("", list(words)).params


def invoke(command: click.Command, name: str, context: object = None, words: Sequence[str] | None = None) -> int:
    """Run ``command`` on ``words``, by default this process's; returns its exit status. ``context`` is click's ``obj``.

    Raises UsageError for what click finds wrong, and whatever the command raises.
    """
    try:
        result = command.main(words, standalone_mode=False, prog_name=name, obj=context)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UsageError.status
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else name
        raise UsageError(f"{error.format_message()} (see: {path} --help)") from None
    return result if isinstance(result, int) else 0
