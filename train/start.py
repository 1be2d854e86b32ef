"""``ringslice train``, ``evaluate``, ``promote`` and ``export``: the launcher of a strategy, and its ranks' lines."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import click

from etl.errors import INTERRUPTED, DataError, UsageError
from etl.options.click_command import run_command
from etl.processes import end_with_parent
from train.config.run_options import ENVIRONMENT_PREFIX, EVALUATION_STRATEGY, STRATEGIES
from train.config.settings import HOROVOD
from train.parallel.endings import INTERRUPTION, REMEDIES
from train.parallel.launchers import RankLines, Ranks
from train.parallel.startup import not_installed

STOP_TIMEOUT_S, LEFT_TIMEOUT_S = 12.0, 3.0  # within the minute after which schedulers kill us
POLL_S = 0.05
MAX_RANKS_PER_CPU = 16  # on this host: more is a mistake that would take its memory
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LIBC = ctypes.CDLL(None)

# the first line of a summary, see `etl.stages.summary`
_JSON_SUMMARY = '{"stage": '
_SUMMARY = re.compile(rf"{re.escape(_JSON_SUMMARY)}|\w+: (done|was done before)\s*$")
ranks_option = click.option(
    "--ranks", type=click.IntRange(1), metavar="N", help="Ranks, workers, or replicas of mirrored. Default: 1."
)
hosts_option = click.option(
    "--hosts",
    metavar="HOST:RANKS,…",
    help=f"With --strategy {HOROVOD}: the hosts, each with the number of its ranks. Default: this one.",
)
words_argument = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ROOT] [OPTIONS]…")


class PassingCommand(click.Command):
    """A command that passes on what it does not know. -h is its own as a whole word only: -oh_x is -o with a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--help" if word == "-h" else word for word in args])


@click.group(context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX})
def command() -> None:
    """Start ranks."""


def passing(example: str) -> Callable[[Callable[..., int]], click.Command]:
    """A decorator that makes a command of `command` which passes on what it does not know."""
    settings = {
        "ignore_unknown_options": True,
        "help_option_names": ["--help"],
        "auto_envvar_prefix": ENVIRONMENT_PREFIX,
    }
    return command.command(cls=PassingCommand, context_settings=settings, epilog=f"Example: {example}")


@passing("ringslice train data/flowers --strategy ddp --ranks 2 --recipe digits --epochs 4 --run nightly")
@click.option("--strategy", type=STRATEGIES, default=HOROVOD, show_default=True, help="How to train in parallel.")
@ranks_option
@click.option("--servers", type=click.IntRange(1), metavar="P", help="Parameter servers, beside workers. Default: 1.")
@hosts_option
@words_argument
def train(strategy: str, ranks: int | None, servers: int | None, hosts: str | None, words: tuple[str, ...]) -> int:
    """Train a model on the slices of ROOT, on ranks that the strategy's launcher starts.

    All other options are those of train/main.py and go to it as they are: --recipe and its settings, --epochs, --run,
    --resume, --json and more (see: train/main.py --help).
    """
    return start(Ranks("main.py", strategy, ranks, servers, hosts), ["--strategy", strategy, *with_data(words)])


@passing("ringslice evaluate data/flowers --ranks 2 --run nightly --min-accuracy 0.9")
@EVALUATION_STRATEGY
@ranks_option
@hosts_option
@words_argument
def evaluate(strategy: str, ranks: int | None, hosts: str | None, words: tuple[str, ...]) -> int:
    """Evaluate a checkpoint of a run of ROOT, on ranks that the strategy's launcher starts.

    All other options are those of train/evaluate.py and go to it as they are: --run, --split, --checkpoint,
    --min-accuracy, --json and more (see: train/evaluate.py --help).
    """
    return start(Ranks("evaluate.py", strategy, ranks, hosts=hosts), ["--strategy", strategy, *with_data(words)])


@passing("ringslice promote data/flowers nightly --min-accuracy 0.9")
@EVALUATION_STRATEGY
@ranks_option
@hosts_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="ROOT RUN... [OPTIONS]…")
def promote(strategy: str, ranks: int | None, hosts: str | None, words: tuple[str, ...]) -> int:
    """Make a run of ROOT the champion if it is better than the one before by a paired test.

    All other options are those of train/promote.py and go to it as they are: --min-accuracy, --max-p,
    --max-class-drop, --rollback, --json and more (see: train/promote.py --help).
    """
    return start(Ranks("promote.py", strategy, ranks, hosts=hosts), ["--strategy", strategy, *with_data(words)])


@passing("ringslice export data/flowers --run champion")
@words_argument
def export(words: tuple[str, ...]) -> int:
    """Export a checkpoint of a run of ROOT as a SavedModel that takes image files.

    All options are those of train/export.py and go to it as they are: --run, --checkpoint, --output, --json and more
    (see: train/export.py --help).
    """
    return start(Ranks("export.py"), with_data(words))


def with_data(words: Sequence[str]) -> list[str]:
    """The options of a script, of words that begin with ROOT; without it the script takes its default."""
    has_root = bool(words) and not words[0].startswith("-")
    return ["--data", *words] if has_root else list(words)


def start(ranks: Ranks, words: Sequence[str]) -> int:
    """Run the ranks to their end; returns the exit status of the one that failed first."""
    cpus = len(os.sched_getaffinity(0))
    if not ranks.hosts and ranks.processes > cpus * MAX_RANKS_PER_CPU:
        raise UsageError(
            f"{ranks.processes} processes or replicas are more than {MAX_RANKS_PER_CPU} for each CPU of this host,"
            f" which has {cpus}. Give fewer --ranks or --servers"
        )
    for module in ranks.modules:
        if find_spec(module) is None:
            raise not_installed(f"--strategy {ranks.strategy}", module)
    line = ranks.command_line(sys.executable, str(Path(__file__).parent), words)
    return Launcher(line, ranks, is_json(words, os.environ)).run()


def is_json(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """True if the ranks are asked for a summary as JSON, by an option or a variable. Pure.

    Raises UsageError for a variable that is neither yes nor no.
    """
    variable = f"{ENVIRONMENT_PREFIX}_JSON"
    try:
        return "--json" in words or bool(click.BOOL(environment.get(variable) or "no"))
    except click.BadParameter as error:
        raise UsageError(f"{variable}: {error.message}") from None


class Launcher:
    """A launcher of ranks, or one rank without it, as a child process in a session of its own; it ends with us."""

    def __init__(self, line: Sequence[str], ranks: Ranks, as_json: bool) -> None:
        self._lines, self._lock = RankLines(ranks.launcher), threading.Lock()
        self._script, self._as_json, self._has_summary = ranks.script, as_json, False
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what outlives the launcher becomes our child
        self._others = frozenset(descendants(os.getpid()))  # of the program that became this one
        share = max(1, len(os.sched_getaffinity(0)) // ranks.number)
        self._process = subprocess.Popen(
            line,
            env={"OMP_NUM_THREADS": str(share), **os.environ} if "torch" in ranks.modules else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if ranks.launcher else None,  # without one, a terminal shows a bar
            text=True,
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C is for us
            preexec_fn=partial(end_with_parent, signal.SIGTERM, os.getpid()),  # there is no other thread yet
        )
        streams = (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        self._threads = [threading.Thread(target=self._forward, args=each, daemon=True) for each in streams if each[1]]

    def run(self) -> int:
        """Forward the lines until the launcher ends, and end what is left of its processes."""
        is_done = True
        try:
            for thread in self._threads:
                thread.start()
            self._process.wait()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first one is enough: nothing is left behind
            is_done = self._stop()
        self._finish()
        status = self._process.wait()
        if not is_done:
            is_explained = self._lines.is_explained if self._lines.launcher else status >= 0
            if not is_explained:
                print(f"{INTERRUPTION}; {REMEDIES[self._script]}", file=sys.stderr)
            return INTERRUPTED
        status, lines = self._lines.ending(status)
        for line in lines:
            print(line, end="", file=sys.stderr)
        if status == 0 and not self._has_summary:
            raise DataError(f"{self._script} ended before its work was done: the code of --model may have ended it")
        return status

    def _stop(self) -> bool:
        """End the launcher after an interrupt; True if its work was done, and its exit status counts.

        Once the summary is out, it ends by itself. A process without a launcher may be done without our notice.
        """
        if self._has_summary:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
                return True
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(STOP_TIMEOUT_S)
            return not self._lines.launcher and status >= 0 and status != INTERRUPTED
        return False

    def _finish(self) -> None:
        """Return once no process is left, and all that they printed is forwarded.

        One that waits for a broken device cannot be killed, and is left behind.
        """
        kill_at = time.monotonic() + LEFT_TIMEOUT_S
        give_up_at = kill_at + STOP_TIMEOUT_S
        while (left := self._left()) and time.monotonic() < give_up_at:
            if time.monotonic() > kill_at:
                for process in left:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            time.sleep(POLL_S)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_TIMEOUT_S)  # no process is left that could write

    def _left(self) -> list[int]:
        """The processes that the launcher has started."""
        return descendants(os.getpid(), self._others)

    def _forward(self, name: str, stream: IO[str]) -> None:
        for line in stream:
            with self._lock, suppress(OSError):
                for shown in self._lines.take(line, name):
                    is_result = name == "stdout" and (not self._as_json or shown.startswith(_JSON_SUMMARY))
                    self._has_summary |= is_result and bool(_SUMMARY.match(shown))
                    print(shown, end="", file=sys.stdout if is_result else sys.stderr, flush=True)


def descendants(parent: int, foreign: Set[int] = frozenset()) -> list[int]:
    """The processes below ``parent``, except those of which only the exit status is left, and ``foreign`` ones with all
    below them.
    """
    below: dict[int, list[int]] = {}
    states = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                states[int(entry.name)] = state
                if int(entry.name) not in foreign:
                    below.setdefault(int(above), []).append(int(entry.name))
    found = list(below.get(parent, ()))
    for process in found:  # which grows
        found += below.get(process, ())
    return [process for process in found if states[process] not in "ZX"]


if __name__ == "__main__":
    run_command(command, "ringslice")
