"""A failure that a benchmark reports in one line."""

import sys
from pathlib import Path
from typing import IO, Any

import click


class Failure(click.ClickException):
    """Something is missing or failed; shown as ``benchmarks/NAME: WHAT: VALUE (REASON). FIX.`` on standard error."""

    exit_code = 3
    script = Path(sys.argv[0]).name

    def __init__(self, what: str, value: object, reason: str, fix: str) -> None:
        super().__init__(f"{what}: {value} ({reason}). {fix}.")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"benchmarks/{self.script}: {self.format_message()}", file=file, err=True)
