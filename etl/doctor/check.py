"""What a check of `ringslice doctor` is, the context that it gets, and how all of them are run and shown."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from etl.errors import ERROR_PREFIX, EnvironmentFailure, explain
from etl.hadoop.site_config import SITE_VARIABLES, site_configuration
from etl.storage.hdfs_settings import LIBHDFS, HdfsSettings
from etl.storage.place import Place, open_place

KILL_TIMEOUT_S = 5.0

OK, NOTE, WARNING, FAILS = "ok", "note", "warning", "fails"

# Group, name, and the function that returns one line if all is well, and raises what is not, with the remedy.
Check = tuple[str, str, Callable[[], str]]
Checks = Iterator[Check]


class Skipped(Exception):
    """Ends a check as a note, or as a warning."""

    def __init__(self, text: str, state: str = NOTE) -> None:
        super().__init__(text)
        self.state = state


@dataclass
class Context:
    """What the checks depend on: the options, the site's configuration, and the states of the checks before, by name.

    ``place`` is None if the configuration that it depends on cannot be read, which is ``site_problem`` then.
    """

    uri: str
    queue: str | None = None
    python_bin: str | None = None
    place: Place | None = field(default=None, init=False)
    site: dict[str, str] = field(default_factory=dict, init=False)
    site_problem: str = field(default="", init=False)
    states: dict[str, str] = field(default_factory=dict, init=False)
    hangs: bool = field(default=False, init=False)  # the place

    def __post_init__(self) -> None:
        """Raises UsageError for a place that there is no filesystem for."""
        self.settings = HdfsSettings.from_environment()
        try:
            self.site = site_configuration()
            self.place = open_place(self.uri)
        except (EnvironmentFailure, OSError) as error:
            self.site_problem = str(error)

    @property
    def has_site(self) -> bool:
        """True if this machine is configured for a Hadoop site."""
        return any(os.environ.get(name) for name in SITE_VARIABLES)

    @property
    def is_on_hdfs(self) -> bool:
        return self.uri.lower().startswith("hdfs://")

    @property
    def needs_java(self) -> bool:
        """True if a missing Java is a failure; HDFS alone needs none, with hdfs-native."""
        return self.has_site or (self.is_on_hdfs and self.settings.driver == LIBHDFS)

    def has_passed(self, name: str) -> bool:
        return self.states.get(name) in (OK, WARNING)

    def require_site(self) -> None:
        """Raise Skipped if the site's configuration cannot be read, which one check reports as a failure."""
        if self.site_problem:
            raise Skipped("not checked, because Hadoop's configuration cannot be read; correct that first")


@dataclass(frozen=True)
class Result:
    """How a child process ended; ``status`` is negative after a signal, also after that of its timeout."""

    status: int
    output: str
    errors: str
    timeout_s: float | None = None

    @property
    def reason(self) -> str:
        """Why it failed: its own error line, if it has one."""
        if self.timeout_s is not None:
            return f"did not end within {self.timeout_s:.0f} s"
        if self.status < 0:
            return f"crashed ({signal.Signals(-self.status).name})"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        own = [line for line in lines if line.startswith(ERROR_PREFIX)]
        last = (own or lines or [f"ended with status {self.status} and no message"])[-1]
        return last.removeprefix(ERROR_PREFIX)


def run(
    words: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None, cwd: str | None = None
) -> Result:
    """Run a program that may crash or hang; after ``timeout_s`` or an interrupt it and its children are killed.

    ``variables`` are its whole environment. Raises FileNotFoundError if there is no such program.
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
        return Result(child.returncode, output, errors)
    except subprocess.TimeoutExpired:
        return Result(-signal.SIGKILL, *_kill(child), timeout_s)
    except BaseException:
        _kill(child)
        raise


def _kill(child: "subprocess.Popen[str]") -> tuple[str, str]:
    """Kill it and what it started; returns what it printed, nothing if it is stuck in the kernel (a dead NFS)."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=KILL_TIMEOUT_S)
    return "", ""


def run_python(words: Sequence[str], timeout_s: float, **variables: str) -> Result:
    """Run this Python in this environment with ``variables`` added."""
    return run([sys.executable, "-P", *words], timeout_s, os.environ | variables)


def run_checks(context: Context, checks: Iterable[Check], as_json: bool) -> int:
    """Run the checks and print each finding, or all as one line of JSON; returns the exit status: 0, or 3 for failures.

    Checks are asked for one by one, because the next ones depend on the states of those before.
    """
    findings = []
    for group, name, check in checks:
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
    except Skipped as skipped:
        state, text = skipped.state, str(skipped)
    except Exception as error:
        explained = explain(error)
        state, text = FAILS, explained[1] if explained else f"the check failed: {type(error).__name__}: {error}"
    return state, " ".join(text.split())
