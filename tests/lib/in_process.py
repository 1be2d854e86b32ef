"""Commands in this process: what they print and how they end, as `tests.lib.commands` has it, without their start.

What only a process has is left out: signals, the exit itself, and what is written to file descriptors.
"""

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, nullcontext, redirect_stdout
from pathlib import Path
from unittest import mock

import click
from click.testing import CliRunner

from etl import cli
from etl.errors import report
from etl.options.click_command import invoke
from mapreduce.jobs.stage_job import StageJob
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.lib.commands import REPOSITORY, Finished, environment

JOBS: dict[str, type[StageJob]] = {
    "mapreduce.normalize": Normalize,
    "mapreduce.shard": Shard,
    "mapreduce.verify": Verify,
}


def call(main: Callable[[], int], name: str, *words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``main`` as the process ``name words`` in the folder ``cwd``, with its environment and its own streams.

    A failure becomes the line and the status that `etl.errors.run_reporting` gives it. Afterwards the environment is
    as it was, and modules from ``cwd`` are forgotten.
    """
    arguments = [name, *map(str, words)]

    @click.command()
    def process() -> None:
        try:
            status = main()
        except Exception as error:
            status = report(error)
        sys.exit(status)

    with (
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        mock.patch.object(sys, "argv", arguments),
        chdir(cwd),
    ):
        result = CliRunner().invoke(process)
    _forget_modules(cwd)
    return Finished(arguments, result.exit_code, result.stdout, result.stderr)


def call_command(
    command: click.Command, name: str, *words: object, cwd: Path = REPOSITORY, **variables: str
) -> Finished:
    return call(lambda: invoke(command, name), name, *words, cwd=cwd, **variables)


def ringslice_here(*words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``ringslice``; its jobs run in this process, too, and with ``-r inline`` their tasks."""
    with mock.patch.object(cli, "run_module", _run_module):
        return call_command(cli.cli, "ringslice", *words, cwd=cwd, **variables)


def job_here(job: type[StageJob], *words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run the script of a job."""

    def main() -> int:
        job().execute()
        return 0

    return call(main, f"mapreduce/{job.__name__.lower()}.py", *words, cwd=cwd, **variables)


def _run_module(module: str, arguments: Sequence[str], capture: bool = False) -> tuple[int, str]:
    """Stand in for `etl.processes.run_module`: errors are raised, for the one process to report."""
    output = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(output, write_through=True)) if capture else nullcontext():
        if module in JOBS:
            JOBS[module](list(arguments)).execute()
        else:
            with mock.patch.object(sys, "argv", [module, *arguments]):
                invoke(importlib.import_module(module).command, module)
        return 0, output.getvalue().decode()


def _forget_modules(folder: Path) -> None:
    """Forget the modules imported from ``folder``: a test has a module of the same name in another folder."""
    if folder == REPOSITORY:
        return
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
