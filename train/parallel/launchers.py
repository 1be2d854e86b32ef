"""The launcher of each strategy: its command line, and which of the lines that it prints are a rank's. Pure."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from etl.errors import ERROR_PREFIX, INTERRUPTED, EnvironmentFailure, UsageError
from train.config.settings import HOROVOD, MIRRORED, MULTI_WORKER, OF_TORCH, SERVED
from train.parallel.endings import Endings, describe_exit

HOROVODRUN, TORCHRUN, LAUNCH = "horovodrun", "torchrun", "train/launch.py"
OURS = "ringslice"  # what lines begin with that name their rank, if it matters
FIRST = ("0", "chief 0")


@dataclass(frozen=True)
class Ranks:
    """What to start: a script of train/ in ``count`` ranks, replicas or workers, on ``hosts`` as in ``h1:2,h2:2``.

    None stands for what is not given.
    """

    script: str
    strategy: str = HOROVOD
    count: int | None = None
    servers: int | None = None
    hosts: str | None = None

    def __post_init__(self) -> None:
        if self.servers is not None and self.strategy not in SERVED:
            raise UsageError(f"--servers {self.servers} is for --strategy {' and '.join(SERVED)}. Leave it out")
        if self.hosts is not None:
            self._require_hosts(self.hosts)

    def _require_hosts(self, hosts: str) -> None:
        """Raise UsageError if they are not a list, or are for a launcher that starts no processes on other hosts."""
        if not re.fullmatch(r"[^\s:,]+:[1-9]\d*(,[^\s:,]+:[1-9]\d*)*", hosts):
            raise UsageError(f"--hosts {hosts!r} is not a list of hosts with ranks. Give HOST:RANKS,…, as in h1:2,h2:2")
        if self.count is not None and self.count > self.slots:
            raise UsageError(f"--ranks {self.count} is more than --hosts {hosts} has ({self.slots}). Leave --ranks out")
        first, *others = hosts.split(",")
        host, _, ranks = first.partition(":")
        if self.strategy == MIRRORED:
            remedy = f"Leave it out (one host only), or give --strategy {MULTI_WORKER}"
        elif self.strategy not in OF_TORCH:
            remedy = f"Start on each host, with TF_CONFIG of all: train/{self.script} --strategy {self.strategy}"
        else:
            remedy = (
                f"Start on each host: torchrun --nnodes {len(others) + 1} --nproc-per-node {ranks} --rdzv-backend c10d"
                f" --rdzv-endpoint {host}:29500 -- train/{self.script} --strategy {self.strategy}"
            )
        if self.strategy != HOROVOD:
            raise UsageError(f"--hosts is for --strategy {HOROVOD}, not for {self.strategy}. {remedy}")

    @property
    def number(self) -> int:
        """The count; by default the `slots`."""
        return self.slots if self.count is None else self.count

    @property
    def slots(self) -> int:
        """The ranks that the hosts have; 1 if none are given."""
        return sum(map(int, re.findall(r":(\d+)", self.hosts or ":1")))

    @property
    def processes(self) -> int:
        """The ranks, replicas or workers; with parameter servers also these (one by default) and the chief."""
        return self.number + (1 + (self.servers or 1) if self.strategy in SERVED else 0)

    @property
    def modules(self) -> tuple[str, ...]:
        """The packages without which it cannot start."""
        if self.strategy == HOROVOD:
            return "tensorflow", "horovod"
        return ("torch",) if self.strategy in OF_TORCH else ("tensorflow",)

    @property
    def launcher(self) -> str:
        """What starts the ranks: `HOROVODRUN`, `TORCHRUN` or `LAUNCH`; empty for a single process without one."""
        if self.strategy == MIRRORED:
            return ""
        if self.strategy not in (HOROVOD, *OF_TORCH):
            return LAUNCH
        if self.number == 1 and not self.hosts:
            return ""
        return HOROVODRUN if self.strategy == HOROVOD else TORCHRUN

    def command_line(self, python: str, folder: str, words: Sequence[str]) -> list[str]:
        """Start the script, of the ``folder`` train, with ``words``, by the interpreter ``python``."""
        ranked, count = [f"{folder}/{self.script}", *words], str(self.number)
        if self.launcher == HOROVODRUN:
            hosts = ("-H", self.hosts) if self.hosts else ()
            return [python, "-P", "-m", "horovod.runner.launch", "-np", count, *hosts, python, *ranked]
        if self.launcher == TORCHRUN:
            options = ("--standalone", "--nproc-per-node", count, "--")  # without the --, --run is taken for its own
            return [python, "-P", "-m", "torch.distributed.run", *options, *ranked]
        if self.launcher == LAUNCH:
            served = ("--workers", count, "--servers", str(self.servers or 1))
            return [python, f"{folder}/launch.py", *(served if self.strategy in SERVED else ("-np", count)), *ranked]
        return [python, *ranked, *(("--replicas", count) if self.strategy == MIRRORED and self.count else ())]


HOROVOD_LINE = re.compile(r"\[(\d+)\]<std(?:out|err)>:")  # horovod.runner.common.util.safe_shell_exec
SHELL_LINES = {signal.strsignal(number) for number in signal.valid_signals()}  # of the shell of a rank: "Killed"
LAUNCH_LINE = re.compile(r"\[(\d+|[a-z]+ \d+)\] ")  # train/launch.py
TORCH_LOG = re.compile(r"\[?[IWEF]\d{4} [\d:.]+ ")  # of torchrun, and of c10d in the ranks
TORCH_END = ("Traceback (most recent call last):", '  File "<frozen runpy>"')  # how torchrun, run by -m, ends
_FAILURES = {  # the first one: rank and exit status
    HOROVODRUN: re.compile(r"Process name: (\d+)\nExit code: (\d+)"),  # horovod.runner.gloo_run
    TORCHRUN: re.compile(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL),  # ChildFailedError
}

_NO_SSH = re.compile(
    r"^ssh not successful for host (\S+):\n((?!ssh not successful)\S.*)?", re.MULTILINE
)  # horovod.runner.launch


@dataclass
class RankLines:
    """The lines of a launcher: `take` each, of each of its streams, then ask for its `ending`."""

    launcher: str
    kept: list[str] = field(default_factory=list)  # the launcher's own
    _endings: Endings = field(default_factory=Endings)
    _has_traceback: bool = False
    _pending: dict[str, str] = field(default_factory=dict)  # by stream
    _is_torch_ending: bool = False

    @property
    def is_explained(self) -> bool:
        """True if a rank reported why it ended."""
        return self._endings.is_explained or self._has_traceback

    def take(self, line: str, stream: str) -> list[str]:
        """The lines to show, of ranks, now that the launcher printed ``line`` to the ``stream``."""
        if self.launcher == TORCHRUN:
            return self._take_of_torch(line, stream)
        found = (HOROVOD_LINE if self.launcher == HOROVODRUN else LAUNCH_LINE).match(line)
        if found and self.launcher == HOROVODRUN and line[found.end() :].rstrip() in SHELL_LINES:
            return self._keep([line])
        if found:
            return self._of_rank(found[1], line[found.end() :])
        return self._keep([line]) if self.launcher == HOROVODRUN else self._of_rank(FIRST[0], line)

    def _take_of_torch(self, line: str, stream: str) -> list[str]:
        if line.startswith(TORCH_END[0]) and not self._is_torch_ending:
            self._pending[stream] = line  # until the next line says whose it is
            return []
        lines = [line]
        if stream in self._pending:
            lines.insert(0, self._pending.pop(stream))
            self._is_torch_ending |= line.startswith(TORCH_END[1])
        if self._is_torch_ending or TORCH_LOG.match(line):
            return self._keep(lines)
        return [shown for each in lines for shown in self._of_rank(FIRST[0], each)]

    def _keep(self, lines: Sequence[str]) -> list[str]:
        self.kept.extend(lines)
        return []

    def _of_rank(self, rank: str, line: str) -> list[str]:
        """As it is if it is of the first rank, or one of ours; else with its rank before it."""
        if not self._endings.is_shown(line):
            return []
        self._has_traceback |= line.startswith(TORCH_END[0])
        return [line if rank in FIRST or line.startswith(OURS) else f"[{rank}] {line}"]

    def ending(self, status: int) -> tuple[int, list[str]]:
        """The exit status of the rank that failed first, of a launcher that ended with ``status``; lines to show.

        A rank that was killed is named, and hosts that ssh does not reach. If no rank reported why it ended, the
        launcher's own lines are shown.
        """
        first, who = status, self.launcher or "rank 0"
        found = _FAILURES[self.launcher].search("".join(self.kept)) if self.launcher in _FAILURES else None
        if found:
            first, who = int(found[2]), f"rank {found[1]}"
            first = 128 - first if first < 0 else first
        elif status < 0:
            first = 128 - status
        elif status and self.launcher in _FAILURES:
            first = EnvironmentFailure.status
        if (found or status < 0) and first > 128 and first != INTERRUPTED:
            return first, [f"{ERROR_PREFIX}{who} {describe_exit(128 - first)}\n"]
        if first and self._endings.kept and not self.is_explained:
            return first, [self._endings.kept]
        if not first or self.is_explained or self.launcher not in _FAILURES:
            return first, []
        if unreachable := _NO_SSH.findall("".join(self.kept)):
            hosts = ", ".join(host for host, _ in unreachable)
            reason = unreachable[0][1].rstrip() or "ssh failed"
            return first, [
                f"{ERROR_PREFIX}--hosts: {hosts} ({reason}). Make this work without a password: ssh HOST true\n"
            ]
        last = f"{ERROR_PREFIX}{who} ended with status {first}; above is what {self.launcher} printed\n"
        return first, [*self._pending.values(), *self.kept, last]
