"""Start the project's commands, and functions in child processes, as a user's shell does."""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from etl.errors import DEBUG_VARIABLE
from lib.failure import Failure

BENCHMARKS = Path(__file__).resolve().parent.parent
REPOSITORY = BENCHMARKS.parent


def environment() -> dict[str, str]:
    """This process's environment, with the programs of its Python first on PATH."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def with_repository(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment with which a child process imports `lib` and the project's packages."""
    folders = [str(BENCHMARKS), str(REPOSITORY), variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run_quietly(*words: object) -> None:
    """Run a command without its standard output. Raises Failure."""
    command = [str(word) for word in words]
    status = subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL).returncode
    if status:
        raise command_failure(command, status)


def command_failure(command: Sequence[object], status: int) -> Failure:
    words = " ".join(map(str, command))
    return Failure("command", words, f"it exited with status {status}", "Read its own message above")


def run_ranks(
    ranks: int, script: str, *words: object, variables: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run ``lib/ways/SCRIPT`` under horovodrun; the lines of JSON that its ranks print. Raises Failure."""
    command = ["horovodrun", "-np", str(ranks), sys.executable, str(BENCHMARKS / "lib/ways" / script), *map(str, words)]
    done = subprocess.run(
        command, env=with_repository(environment()) | dict(variables or {}), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise command_failure(command[:5], done.returncode)
    return [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if line.endswith("}")]


def require_program(name: str, fix: str) -> None:
    """Raises Failure if there is no such program on the commands' PATH."""
    if shutil.which(name, path=environment()["PATH"]) is None:
        raise Failure("program", name, "not found on PATH", fix)


def child_words(function: str, *arguments: Any, python: Path | None = None) -> list[str]:
    """The command that runs a generator function, ``MODULE:FUNCTION``, in the environment of `with_repository`."""
    return [str(python or sys.executable), "-P", "-m", "lib.child", function, json.dumps(arguments)]


def call(
    function: str, *arguments: Any, variables: Mapping[str, str] | None = None, python: Path | None = None
) -> list[Any]:
    """All values that a generator function, ``MODULE:FUNCTION``, yields in a process of its own. Raises Failure."""
    words = child_words(function, *arguments, python=python)
    done = subprocess.run(
        words, env=with_repository(environment() | dict(variables or {})), capture_output=True, text=True
    )
    if done.returncode:
        if os.environ.get(DEBUG_VARIABLE):
            click.echo(done.stderr, err=True)
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise Failure("child process", function, reason, f"Set {DEBUG_VARIABLE}=1 to see all that it printed")
    return [json.loads(line) for line in done.stdout.splitlines()]


def describe_machine(packages: Iterable[str]) -> str:
    """The versions that matter, and the number of cores."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"Python {platform.python_version()}, {versions}; {len(os.sched_getaffinity(0))} cores"
