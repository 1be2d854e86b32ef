"""Defaults of options from a TOML file: the option ``--config``."""

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

Commands = Callable[[], Mapping[str, click.Command]]


def config_file_option(commands: Commands) -> Callable[[Any], Any]:
    """A decorator that gives a command the option; ``commands`` returns all by name, once they are known."""
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=partial(_read_config, commands),
        is_eager=True,
        expose_value=False,
        help="TOML file with defaults for these options, in a table named after the command.",
    )


def _read_config(commands: Commands, context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Take defaults from a TOML file: a table for each command (a pipeline takes its stages' too), keys as options."""
    if path is None:
        return
    content = _read_tables(commands(), path)
    command = context.info_name or ""
    known = {option.name or "" for option in context.command.params} - {parameter.name}
    defaults = {}
    for table in ("ingest", "normalize", "shard", command) if command == "pipeline" else (command,):
        for option, value in content.get(table, {}).items():
            name = option.replace("-", "_")
            if name not in known:
                raise click.BadParameter(
                    f"{path}: [{table}] has no option {option!r} of {command}; known: {', '.join(sorted(known))}"
                )
            defaults[name] = value
    context.default_map = {**(context.default_map or {}), **defaults}


def _read_tables(commands: Mapping[str, click.Command], path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, each named after a command that takes --config."""
    try:
        content = tomllib.loads(path.read_text())
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path}: it is no text; give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from None
    known = [name for name, each in commands.items() if "config" in {option.name for option in each.params}]
    for name, value in content.items():
        if name not in known:
            raise click.BadParameter(f"{path}: no command reads {name!r}; give tables of {', '.join(known)}")
        if not isinstance(value, dict):
            raise click.BadParameter(f"{path}: {name} = {value!r} is no table; put options below a line [{name}]")
    return content
