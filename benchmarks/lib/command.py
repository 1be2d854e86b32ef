"""The command line that all benchmarks share: --short, --json FILE, help from the docstring, failures in one line."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from etl.errors import RingsliceError, explain
from lib.failure import Failure
from lib.results import Result, write_report

SHORT, LEFT_OUT = "short", "left_out"  # keys of the context's meta

Measure = Callable[..., Sequence[Result]]


class Benchmark(click.Command):
    """A click command that returns results, writes them for --json, and reports each failure in one line."""

    def invoke(self, ctx: click.Context) -> None:
        try:
            results = super().invoke(ctx)
        except Failure as failure:
            failure.script = str(self.name)
            raise
        except (RingsliceError, OSError) as error:
            explained = explain(error)
            if explained is None:
                raise
            click.echo(f"benchmarks/{self.name}: {explained[1]}", err=True)
            ctx.exit(explained[0])
        if path := ctx.meta.get("json"):
            write_report(path, results, ctx.meta.get(LEFT_OUT, ()))


def benchmark(script: str, doc: str | None, short: Mapping[str, Any]) -> Callable[[Measure], Benchmark]:
    """Make the command of ``script``; ``short`` has other defaults, by parameter name, that --short takes."""

    def make(function: Measure) -> Benchmark:
        command = click.command(
            Path(script).name, cls=Benchmark, help=keep_lines(doc or ""), context_settings={"max_content_width": 120}
        )(function)
        command.params += _shared_options(command, short)
        return command

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


def _shared_options(command: click.Command, short: Mapping[str, Any]) -> list[click.Parameter]:
    def take_short_defaults(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.meta[SHORT] = True
            context.default_map = dict(short)

    def keep_path(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta["json"] = value

    names = {parameter.name: parameter.opts[0] for parameter in command.params}
    words = [
        f"{names[name]} {each}"
        for name, values in short.items()
        for each in (values if isinstance(values, list) else [values])
    ]
    help_short = f"Run in a minute or two, leave out what is not installed: {' '.join(words)}."
    return [
        click.Option(
            ["--short"],
            is_flag=True,
            is_eager=True,  # before the defaults of the other options are looked up
            expose_value=False,
            callback=take_short_defaults,
            help=help_short,
        ),
        click.Option(
            ["--json"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            expose_value=False,
            callback=keep_path,
            help="Write the results there, too.",
        ),
    ]
