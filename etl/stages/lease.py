"""Claims: at most one run at work on a stage, and an owner that was replaced stops before it writes.

Each run takes the next number under ``_work/claims``: a file that only one run can make. The highest number owns the
stage. A run that finds another's claim says so and ends where the owner lives; where the owner is dead, it takes the
next number and deletes the folder that the dead one's attempts are written to. From then on nothing of the old owner
can be published, even if it only slept (`etl.storage.atomic`).

On this host a process lives while its number and start time are in ``/proc``. Of an owner on another host only one
thing is known: it touches its claim every `HEARTBEAT_S`. Where that does not move for `PATIENCE_S`, as this process's
own clock has it, the owner is taken for dead. No two hosts' clocks are compared.
"""

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from etl.errors import EnvironmentFailure
from etl.progress import log
from etl.storage.atomic import ReplacedError, TakenError, publish_bytes, withdraw
from etl.storage.json_files import json_bytes
from etl.storage.place import Place

CLAIMS_FOLDER = "claims"
HEARTBEAT_S = 5.0
PATIENCE_S = 20.0
TRIES = 3  # at publishing a claim

_DRIVER = "driver-"
_OF_A_CLAIM = re.compile(r"[a-z]+-(\d{6,})-[0-9a-f]+")  # folders in the work folder

_held: set[str] = set()  # the tokens of the claims that this process holds


class BusyError(EnvironmentFailure):
    """A living run is at work on what was to be claimed."""


@dataclass(frozen=True)
class Owner:
    """A process: its host (with its namespace of process numbers), its number there, and when it started."""

    host: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Self:
        return cls(_host(), os.getpid(), _start_time(os.getpid()))

    @classmethod
    def from_json(cls, claim: Mapping[str, Any]) -> Self:
        return cls(claim["host"], claim["pid"], claim["started"])

    def is_dead_for_sure(self) -> bool:
        """Whether this host can tell that the process is gone."""
        return self.host == _host() and _start_time(self.pid) != self.started

    def is_alive_for_sure(self) -> bool:
        return self.host == _host() and _start_time(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"


def _host() -> str:
    """This machine since it booted, and the namespace that its process numbers belong to (a container has its own)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"


def _start_time(pid: int) -> str:
    """When the process started, in clock ticks since boot (proc(5)); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


class Claim:
    """This process's hold of a stage, from `take` to `release`; ``attempts`` is where it writes."""

    def __init__(self, work: Place, number: int, token: str) -> None:
        self._work = work
        self._place = _place(work, number)
        self.number = number
        self.token = token
        self.attempts = work / f"{_DRIVER}{number:06d}-{token}"
        self._lost = threading.Event()
        self._stopped = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="claim", daemon=True)

    @classmethod
    def take(cls, work: Place, what: str, tick: Callable[[], None] = lambda: None) -> "Claim":
        """Claim the stage whose work folder is ``work``; ``what`` names it to people.

        ``tick`` is called now and then while this waits to see whether an owner is alive.

        Raises BusyError where a living run has it.
        """
        claim = cls(work, _next_number(work, what, tick), secrets.token_hex(4))
        owner = {**asdict(Owner.this_process()), "token": claim.token}
        _held.add(claim.token)  # before another thread can read it
        try:
            claim.attempts.make_folder()
            claim._publish(json_bytes(owner))
            if _highest(work) != claim.number:
                raise TakenError("a higher number was faster")
        except BaseException as error:
            _held.discard(claim.token)
            with suppress(OSError, EnvironmentFailure):  # the first error is the one to tell
                claim.attempts.delete()
                claim._delete_empty()
            if isinstance(error, TakenError):
                raise _busy(what, "a run that began at this moment") from None
            raise
        claim._heart.start()
        claim._delete_predecessors()
        return claim

    def check(self) -> None:
        """Raise EnvironmentFailure where another run has taken over."""
        if self._lost.is_set() or not self.attempts.exists():  # numbers come again, tokens do not
            raise EnvironmentFailure(f"another run has taken over {self._work.parent}; this one stops")

    def stop_beating(self) -> None:
        """Touch the claim no more: it is about to be deleted."""
        _held.discard(self.token)
        self._stopped.set()
        self._heart.join(HEARTBEAT_S)  # a daemon; one that storage holds up fails later, for the claim is gone then

    def release(self) -> None:
        """Give the stage up; nothing of this run stays but what it published.

        Where storage fails now, the claim stays; the next run sees that its owner is dead.
        """
        self.stop_beating()
        for give_up in (lambda: withdraw(self._place, self.attempts), self.attempts.delete):
            with suppress(OSError, EnvironmentFailure):
                give_up()

    def names_to_delete(self) -> list[str]:
        """What lies in the work folder, but for claims, our attempts, and what belongs to a later claim."""
        kept = {CLAIMS_FOLDER, self.attempts.name}
        return [
            info.base_name
            for info in self._work.children()
            if info.base_name not in kept and _number_of(info.base_name) <= self.number
        ]

    def delete_work(self) -> None:
        """Delete the work folder, and with it the claim. A run that begins at this moment keeps what is its own."""
        self.stop_beating()
        with suppress(ReplacedError):  # it is another's by now
            for name in self.names_to_delete():
                withdraw(self._work / name, self.attempts)
            withdraw(self._place, self.attempts)
            self.attempts.delete()
            self._delete_empty()

    def _delete_empty(self) -> None:
        for folder in (self._work / CLAIMS_FOLDER, self._work):
            folder.filesystem.delete_empty(folder.path)

    def _publish(self, owner: bytes) -> None:
        for _ in range(TRIES):
            try:
                publish_bytes(self._place, self.attempts, owner)
                return
            except FileNotFoundError:  # the run before has just deleted the folder of claims, which was empty
                continue
        raise _busy(str(self._work.parent), "a run that ends at this moment")

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                if not self.attempts.exists():
                    raise FileNotFoundError
                self._place.filesystem.touch(self._place.path)
            except FileNotFoundError:
                self._lost.set()
                return
            except (OSError, EnvironmentFailure):  # the next beat may go through; who writes will tell if not
                continue

    def _delete_predecessors(self) -> None:
        """Delete what owners before us could still publish from; their tasks' folders are the stage's to judge.

        Raises ReplacedError where a later one did that to us.
        """
        for name in self.names_to_delete():
            if name.startswith(_DRIVER):
                withdraw(self._work / name, self.attempts)
        for number in _numbers(self._work):
            if number < self.number:
                withdraw(_place(self._work, number), self.attempts)


def require_unclaimed(work: Place, what: str) -> None:
    """Raise BusyError if a living run has claimed ``work``, named ``what`` to people. Claims nothing."""
    _next_number(work, what, lambda: None)


def _next_number(work: Place, what: str, tick: Callable[[], None]) -> int:
    highest = _highest(work)
    if highest is None:
        return 1
    try:
        told = _place(work, highest).read_json()
        owner = Owner.from_json(told)
    except FileNotFoundError:  # released this moment
        return highest + 1
    if owner == Owner.this_process() and told["token"] not in _held:  # given up, though storage failed to delete it
        return highest + 1
    if owner.is_alive_for_sure() or not (owner.is_dead_for_sure() or _stands_still(_place(work, highest), owner, tick)):
        raise _busy(what, str(owner))
    return highest + 1


def _stands_still(claim: Place, owner: Owner, tick: Callable[[], None]) -> bool:
    """Whether nobody touches the claim for `PATIENCE_S`."""
    log("claim", f"{claim} is held by {owner}; waiting up to {PATIENCE_S:.0f} s to see whether it is alive")
    before = claim.info().mtime_ns
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT_S / 5)
        tick()
        if claim.info().mtime_ns != before:
            return False
    return True


def _busy(what: str, owner: str) -> BusyError:
    return BusyError(f"{what} is at work already ({owner}); wait for it, or end it, and run again")


def _place(work: Place, number: int) -> Place:
    return work / CLAIMS_FOLDER / f"{number:06d}.json"


def _number_of(name: str) -> int:
    """The number of the claim that a file or folder in the work folder belongs to; 0 where it is no claim's."""
    found = _OF_A_CLAIM.fullmatch(name)
    return int(found[1]) if found else 0


def _numbers(work: Place) -> list[int]:
    names: list[Any] = [info.base_name.removesuffix(".json") for info in (work / CLAIMS_FOLDER).children()]
    return sorted(int(name) for name in names if name.isdigit())


def _highest(work: Place) -> int | None:
    return max(_numbers(work), default=None)
