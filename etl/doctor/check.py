"""What a look at this machine finds: one line per check, for people, for logs and for programs."""

import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.text import Text

from etl.errors import EnvironmentFailure, explain

OK, NOTE, WARNING, FAILS = STATES = ("ok", "note", "warning", "fails")

_STYLES = {OK: "green", NOTE: "dim", WARNING: "yellow", FAILS: "bold red"}


class Notice(Exception):
    """What a check raises in order to end as a note or a warning."""

    def __init__(self, text: str, state: str = NOTE) -> None:
        super().__init__(text)
        self.state = state


@dataclass(frozen=True)
class Finding:
    """What a check found; ``text`` is one line, with the remedy where there is something to do."""

    group: str
    check: str
    state: str
    text: str


@dataclass
class Check:
    """One thing to look at: ``look`` returns what is told of it where all is well, and raises what is not."""

    group: str
    name: str
    look: Callable[[], str]
    finding: Finding | None = field(default=None, init=False)

    @property
    def passed(self) -> bool:
        return self.finding is not None and self.finding.state in (OK, WARNING)

    @property
    def failed(self) -> bool:
        return self.finding is not None and self.finding.state == FAILS

    def run(self) -> Finding:
        """Look, whatever comes of it: no failure of a check ends the others."""
        state, text = OK, ""
        try:
            text = self.look()
        except Notice as notice:
            state, text = notice.state, str(notice)
        except subprocess.TimeoutExpired as error:
            state, text = FAILS, f"{_command(error.cmd)} did not end within {error.timeout:.0f} s"
        except Exception as error:
            explained = explain(error)
            state, text = FAILS, explained[1] if explained else f"the check broke off: {type(error).__name__}: {error}"
        self.finding = Finding(self.group, self.name, state, " ".join(text.split()))
        return self.finding


def _command(words: object) -> str:
    return words if isinstance(words, str) else " ".join(map(str, words)) if isinstance(words, list) else "a program"


def run_checks(checks: Iterable[Check], as_json: bool, **about: str) -> int:
    """Run the checks, show each finding as it comes, and return the exit status.

    Checks are asked for one by one: which come next may depend on what those before have found.
    """
    console = Console()
    findings: list[Finding] = []
    for check in checks:
        with Console(stderr=True).status(f"{check.group}: {check.name}"):  # on a terminal only
            finding = check.run()
        if not as_json:
            _show(console, finding, is_first=not findings or findings[-1].group != finding.group)
        findings.append(finding)
    failures = sum(finding.state == FAILS for finding in findings)
    if as_json:
        told = {**about, "healthy": not failures, "checks": [asdict(finding) for finding in findings]}
        print(json.dumps(told, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        _show_sum(console, failures, len(findings))
    return EnvironmentFailure.status if failures else 0


def _show(console: Console, finding: Finding, is_first: bool) -> None:
    if not console.is_terminal:
        print(f"{finding.state:<8} {finding.group}: {finding.check}: {finding.text}", flush=True)
        return
    if is_first:
        console.print(Text(finding.group, style="bold"))
    state = Text(f"  {finding.state:<8}", style=_STYLES[finding.state])
    console.print(Text.assemble(state, (f"{finding.check}: ", "bold"), finding.text))


def _show_sum(console: Console, failures: int, total: int) -> None:
    line = f"{failures} of {total} checks {'fails' if failures == 1 else 'fail'}" if failures else "nothing fails"
    if console.is_terminal:
        console.print(Text(line, style=_STYLES[FAILS if failures else OK]))
    else:
        print(line, flush=True)
