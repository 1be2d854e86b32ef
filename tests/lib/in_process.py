"""Commands in this process: what they print and how they end, as `tests.lib.commands` has it, without their start.

What only a process has is left out: signals, the exit itself, and what is written to file descriptors.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from typing import NoReturn
from unittest import mock

import click
from click.testing import CliRunner

from etl.errors import report
from etl.options.click_command import invoke
from mapreduce import cli
from mapreduce.jobs.stage_job import StageJob, script_command
from tests.lib.commands import REPOSITORY, Finished, environment


def call(main: Callable[[], int], name: str, *words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    """Run ``main`` as the process ``name words`` in the folder ``cwd``, with its environment and its own streams.

    A failure becomes the line and the status that `etl.entry_point.run_reporting` gives it. Afterwards the environment
    is as it was, and modules from ``cwd`` are forgotten.
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
    """Run ``ringslice``; programs that take its place run in this process, and with ``-r inline`` tasks of jobs."""
    with mock.patch.object(cli, "exec_module", _run_module):
        return call_command(cli.cli, "ringslice", *words, cwd=cwd, **variables)


def job_here(job: type[StageJob], *words: object, cwd: Path = REPOSITORY, **variables: str) -> Finished:
    return call_command(script_command(job), f"mapreduce/{job.__name__.lower()}.py", *words, cwd=cwd, **variables)


def _run_module(module: str, arguments: Sequence[str]) -> NoReturn:
    with mock.patch.object(sys, "argv", [module, *arguments]):
        sys.exit(invoke(importlib.import_module(module).command, module))


def _forget_modules(folder: Path) -> None:
    """Forget the modules imported from ``folder``: a test has a module of the same name in another folder."""
    if folder == REPOSITORY:
        return
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
