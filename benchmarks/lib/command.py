"""The command line that all benchmarks share: --short, --json FILE, help from the docstring, failures in one line."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from etl.errors import RingsliceError, explain
from etl.options.click_command import ParsedText
from etl.values import parse_bytes, parse_counts
from lib.failure import Failure
from lib.results import Result, check_report, write_report

SHORT, JSON, LEFT_OUT = "short", "json", "left_out"  # keys of the context's meta


class CheckedText(ParsedText):
    """An option's value, checked by its ``parse`` and kept as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        super().convert(value, param, ctx)
        return str(value)


COUNT, SECONDS = click.IntRange(min=1), click.FloatRange(min=0, min_open=True)
NUMBERS, SIZE = CheckedText(parse_counts), CheckedText(parse_bytes)

Measure = Callable[..., Sequence[Result]]


class Benchmark(click.Command):
    """A click command that returns results, writes them for --json, and reports each failure in one line."""

    def invoke(self, ctx: click.Context) -> None:
        path = ctx.meta.get(JSON)
        try:
            if path:
                check_report(path)  # before all that takes long
            results = super().invoke(ctx)
            if path:
                write_report(path, results, ctx.meta.get(LEFT_OUT, ()))
        except Failure as failure:
            failure.script = str(self.name)
            raise
        except (RingsliceError, OSError) as error:
            explained = explain(error)
            if explained is None:
                raise
            click.echo(f"benchmarks/{self.name}: {explained[1]}", err=True)
            ctx.exit(explained[0])


def benchmark(script: str, doc: str | None, short: Mapping[str, Any]) -> Callable[[Measure], Benchmark]:
    """Make the command of ``script``; ``short`` has other defaults, by parameter name, that --short takes."""

    def make(function: Measure) -> Benchmark:
        command = click.command(
            Path(script).name, cls=Benchmark, help=keep_lines(doc or ""), context_settings={"max_content_width": 120}
        )(function)
        return _add_shared_options(command, short)

    return make


def leave_out(missing: Failure) -> None:
    """With --short, print what is left out and go on; otherwise raise ``missing``."""
    context = click.get_current_context()
    if not context.meta.get(SHORT):
        raise missing
    context.meta.setdefault(LEFT_OUT, []).append(missing.message)
    click.echo(f"left out: {missing.message}")


def keep_lines(doc: str) -> str:
    """Mark examples and lists, so that click does not wrap them into one paragraph."""
    return "\n\n".join(f"\b\n{each}" if each.startswith((" ", "- ")) else each for each in doc.strip().split("\n\n"))


def _add_shared_options(command: Benchmark, short: Mapping[str, Any]) -> Benchmark:
    def take_short_defaults(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.meta[SHORT] = True
            context.default_map = dict(short)

    def keep_path(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[JSON] = value

    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    values = [(flags[name], each) for name, given in short.items() for each in _as_list(given)]
    add_short = click.option(
        "--short",
        is_flag=True,
        is_eager=True,  # before the defaults of the other options are looked up
        expose_value=False,
        callback=take_short_defaults,
        help=f"Run for a minute or two, without what is not installed: {' '.join(f'{a} {b}' for a, b in values)}.",
    )
    add_json = click.option(
        "--json",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=keep_path,
        help="Write the results there, too.",
    )
    return add_json(add_short(command))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
