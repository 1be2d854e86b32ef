"""What a check of `ringslice doctor` is, the context that it gets, and how all of them are run and shown."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from etl.errors import ERROR_PREFIX, EnvironmentFailure, explain
from etl.storage.hdfs_settings import HdfsSettings
from etl.storage.place import open_place

KILL_TIMEOUT_S = 5.0

OK, NOTE, WARNING, FAILS = "ok", "note", "warning", "fails"

# Group, name, and the function that returns one line if all is well, and raises what is not, with the remedy.
Check = tuple[str, str, Callable[[], str]]


class SkippedCheck(Exception):
    """Ends a check as a note, or as a warning."""

    def __init__(self, text: str, state: str = NOTE) -> None:
        super().__init__(text)
        self.state = state


@dataclass
class Context:
    """What the checks depend on: the options, and the states of the checks before, by name."""

    uri: str
    queue: str | None = None
    python_bin: str | None = None
    states: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raises UsageError for a place that there is no filesystem for."""
        self.settings = HdfsSettings.from_environment()
        with suppress(EnvironmentFailure, OSError):  # of the site's configuration, which has a check of its own
            open_place(self.uri)


def run(
    words: Sequence[str],
    timeout_s: float,
    remedy: str,
    variables: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> str:
    """Run a program that may crash or hang, and return what it prints; ``variables`` are its whole environment.

    After ``timeout_s`` or an interrupt it and its children are killed. Raises EnvironmentFailure with the reason and
    the ``remedy`` if it fails, FileNotFoundError if there is no such program.
    """
    child = subprocess.Popen(
        words,
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # what it starts is killed with it, and Ctrl-C does not reach it
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # also if it has ended: its children may hold its output
        with suppress(subprocess.TimeoutExpired):  # it may be stuck in the kernel (a dead NFS)
            child.communicate(timeout=KILL_TIMEOUT_S)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        reason = f"did not end within {timeout_s:.0f} s"
    else:
        if child.returncode == 0:
            return output
        reason = _reason(child.returncode, errors or output)
    raise EnvironmentFailure(f"{os.path.basename(words[0])} {reason}; {remedy}")


def run_python(words: Sequence[str], timeout_s: float, remedy: str, **variables: str) -> str:
    """Run this Python in this environment with ``variables`` added, as `run` does."""
    return run([sys.executable, "-P", *words], timeout_s, remedy, os.environ | variables)


def _reason(status: int, errors: str) -> str:
    """Why a program failed: its own error line, if it has one, else its last."""
    if status < 0:
        return f"crashed ({signal.Signals(-status).name})"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(ERROR_PREFIX)]
    last = (own or lines or [f"ended with status {status} and no message"])[-1]
    return f"failed ({last.removeprefix(ERROR_PREFIX)})"


def run_checks(context: Context, checks: Iterable[Check], groups: Sequence[str], as_json: bool) -> int:
    """Run the checks of these groups, and print each finding, or all as one line of JSON; returns 0, or 3 for failures.

    Checks are asked for one by one, because the next ones depend on the states of those before.
    """
    findings = []
    for group, name, check in checks:
        if group not in groups:
            continue
        state, text = _run_one(check)
        context.states[name] = state
        findings.append({"group": group, "check": name, "state": state, "text": text})
        if not as_json:
            print(f"{state:<8} {group}: {name}: {text}", flush=True)
    failed = sum(finding["state"] == FAILS for finding in findings)
    if as_json:
        facts = {"place": context.uri, "healthy": not failed, "checks": findings}
        print(json.dumps(facts, ensure_ascii=False, allow_nan=False), flush=True)
    else:
        print(f"{failed} of {len(findings)} checks failed" if failed else "nothing fails", flush=True)
    return EnvironmentFailure.status if failed else 0


def _run_one(check: Callable[[], str]) -> tuple[str, str]:
    """State and text of a check, whatever it raises: no failure of a check ends the others."""
    try:
        state, text = OK, check()
    except SkippedCheck as skipped:
        state, text = skipped.state, str(skipped)
    except Exception as error:
        explained = explain(error)
        state, text = FAILS, explained[1] if explained else f"the check failed: {type(error).__name__}: {error}"
    return state, " ".join(text.split())
