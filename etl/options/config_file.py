"""Defaults of options from a TOML file: the option ``--config``."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

PIPELINE = "pipeline"  # also reads the tables of its stages
PIPELINE_TABLES = ("ingest", "normalize", "shard", PIPELINE)


def _read_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Take defaults from the tables of the TOML file that are named after the command; keys are options."""
    if path is None:
        return
    group = context.find_root().command
    content = _read_tables(group.commands if isinstance(group, click.Group) else {}, path)
    command = context.info_name or ""
    known = {option.name or "" for option in context.command.params} - {parameter.name}
    defaults = {}
    for table in PIPELINE_TABLES if command == PIPELINE else (command,):
        for option, value in content.get(table, {}).items():
            name = option.replace("-", "_")
            if name not in known:
                raise click.BadParameter(
                    f"{path}: [{table}] has no option {option!r} of {command}; known: {', '.join(sorted(known))}"
                )
            defaults[name] = str(value)  # checked like a word of the command line
    context.default_map = {**(context.default_map or {}), **defaults}


def _read_tables(commands: Mapping[str, click.Command], path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, each named after a command that has --config."""
    try:
        content = tomllib.loads(path.read_text())
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
    return content


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    help="TOML file with defaults for these options, in a table named after the command.",
)
