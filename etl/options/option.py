"""What an option is, and how it comes to click, to argparse and to a child's command line, its values as text."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Option:
    """One option: ``parse`` turns its text into a value and raises ValueError; without ``parse`` it is a flag.

    With ``variable`` its value goes to that environment variable, for this process and all its children.
    """

    flag: str
    help: str
    parse: Callable[[str], Any] | None = str
    default: str | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    variable: str | None = None

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")


class Parsed(click.ParamType[Any]):
    """An option's value, what ``parse`` makes of its text; a ValueError there is wrong use."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class CheckedText(Parsed):
    """An option's value: checked by its ``parse``, handed on as the text it was, for that is what a child is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        super().convert(value, param, ctx)
        return str(value)


def click_options(options: Iterable[Option]) -> Callable[[Any], Any]:
    """A decorator that gives a click command these options; their values arrive as text (flags as bool)."""

    def decorate(command: Any) -> Any:
        for option in reversed(list(options)):
            command = _click_option(option)(command)
        return command

    return decorate


def _click_option(option: Option) -> Callable[[Any], Any]:
    def to_variable(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        del context, parameter
        set_variables([option], {option.name: value})

    to_environment: dict[str, Any] = {"expose_value": False, "callback": to_variable} if option.variable else {}
    if option.parse is None:
        return click.option(option.flag, is_flag=True, help=option.help, **to_environment)
    if option.choices:
        kind: click.ParamType[Any] = click.Choice(option.choices)
    else:
        kind = CheckedText(option.parse)
    return click.option(
        option.flag,
        type=kind,
        default=option.default,
        show_default=option.default is not None,
        metavar=option.metavar,
        help=option.help,
        **to_environment,
    )


def set_variables(options: Iterable[Option], values: Mapping[str, Any]) -> None:
    """Set the environment variables of those ``options`` that were given among ``values``, by name."""
    for option in options:
        if option.variable and (value := values.get(option.name)):
            os.environ[option.variable] = "1" if value is True else str(value)


def add_arguments(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Give an argparse parser these options; their values arrive as text (flags as bool)."""
    for option in options:
        if option.parse is None:
            parser.add_argument(option.flag, action="store_true", help=option.help)
        else:
            parser.add_argument(
                option.flag,
                type=_checked(option),
                default=option.default,
                choices=option.choices or None,
                metavar=option.metavar if not option.choices else None,
                help=option.help + (f" (default: {option.default})" if option.default is not None else ""),
            )


def _checked(option: Option) -> Callable[[str], str]:
    def check(text: str) -> str:
        assert option.parse is not None
        try:
            option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def parse_values(options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option name, each text turned into its value; options that were not given are None."""
    parsed = {}
    for option in options:
        value = values.get(option.name)
        parsed[option.name] = option.parse(value) if option.parse is not None and value is not None else value
    return parsed


def command_line(options: Iterable[Option], values: Mapping[str, Any]) -> list[str]:
    """The words that give a child process the same values."""
    words = []
    for option in options:
        value = values.get(option.name)
        if option.parse is None:
            words += [option.flag] if value else []
        elif value is not None:
            words += [f"{option.flag}={value}"]
    return words
