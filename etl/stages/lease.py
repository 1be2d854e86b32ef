"""Leases: at most one run at work on a stage, and a holder that was replaced stops before it writes.

A lease is a file ``_work/claims/NUMBER.json``, which only one run can make. A run that finds the lease of a living
holder fails. If all that it finds are of dead holders, it publishes its own with the next number, and looks again: if
another run began meanwhile, it withdraws its own and tries once more; if not, it has the stage, and deletes the leases
and the staging folders of the dead. From then on nothing of theirs can be published, even if one only slept
(`etl.storage.atomic`).

On this host a process lives while its number and start time are in ``/proc``. Of a holder on another host only one
thing is known: it renews its lease every `RENEWAL_INTERVAL_S`. If the lease is not renewed for `LEASE_TIMEOUT_S`, by
this process's own clock, the holder is taken for dead. No two hosts' clocks are compared.
"""

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from etl.errors import DataError, EnvironmentFailure
from etl.progress import log
from etl.storage.atomic import ReplacedError, TakenError, publish_bytes, withdraw
from etl.storage.place import Place, json_bytes

LEASES_FOLDER = "claims"
RENEWAL_INTERVAL_S = 5.0
LEASE_TIMEOUT_S = 20.0
MAX_TRIES = 3  # at publishing a lease
TASKS = "tasks-"  # begins the names of the folders of tasks

_STAGING = "driver-"
_OF_A_LEASE = re.compile(r"[a-z]+-(\d{6,})-[0-9a-f]+")  # folders in the work folder


class BusyError(EnvironmentFailure):
    """A living run has the lease."""


@dataclass(frozen=True)
class Owner:
    """A process: its host (with its namespace of process numbers), its number there, and when it started."""

    host: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Self:
        """The owner that this process is."""
        return cls(_host(), os.getpid(), _start_time(os.getpid()))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"


def _host() -> str:
    """This machine since it booted, and the namespace that its process numbers belong to (a container has its own)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"


def _start_time(pid: int) -> str:
    """When the process started, in clock ticks since boot (proc(5)); empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


class Lease:
    """This process's lease of a stage, from `take` to `release`; ``staging`` is where it writes, ``tasks`` where its
    tasks do.
    """

    def __init__(self, work: Place, number: int, token: str) -> None:
        self._work = work
        self._place = _place(work, number)
        self.number = number
        self.staging = work / f"{_STAGING}{number:06d}-{token}"
        self.tasks = work / f"{TASKS}{number:06d}-{token}"
        self._lost = threading.Event()
        self._stopped = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="lease", daemon=True)

    @classmethod
    def take(cls, work: Place, what: str, progress: Callable[[], None] = lambda: None) -> "Lease":
        """Lease the stage whose work folder is ``work``; ``what`` names it to people.

        ``progress`` is called now and then while this waits to see whether a holder is alive.

        Raises BusyError if a living run has it.
        """
        for _ in range(MAX_TRIES):
            with suppress(TakenError):
                return cls._take_once(work, what, progress)
        raise _busy(what, "a run that began at this moment")

    @classmethod
    def _take_once(cls, work: Place, what: str, progress: Callable[[], None]) -> "Lease":
        """Raises TakenError if another one began meanwhile, which may have it now, or have given up, too."""
        number, dead = _require_dead(work, what, progress)
        token = secrets.token_hex(4)
        lease = cls(work, number, token)
        # with its token, no other lease has the same bytes, so that one which is in place is not taken for this one
        own = json_bytes({**asdict(Owner.this_process()), "token": token})
        try:
            lease._publish(own)
            lease.staging.make_folder()  # only now: staging without a lease is what another run has left
            if set(_leases(work).values()) - dead != {own}:
                raise TakenError("another one began")
            lease._renewer.start()
            lease._delete_predecessors()
            return lease
        except BaseException:
            lease._stopped.set()
            for undo in (lambda: lease._withdraw(own), lease.staging.delete, lease._delete_empty):
                with suppress(OSError, EnvironmentFailure):  # the first error is the one to report
                    undo()
            raise

    def check(self) -> None:
        """Raise EnvironmentFailure if another run has taken over."""
        if self._lost.is_set() or not self.staging.exists():  # numbers come again, tokens do not
            raise EnvironmentFailure(f"another run has taken over {self._work.parent}; this one stops")

    def stop_renewing(self) -> None:
        """Renew the lease no more: it is about to be deleted."""
        self._stopped.set()
        self._renewer.join(RENEWAL_INTERVAL_S)  # a daemon; if storage delays it, it fails later: the lease is gone then

    def release(self) -> None:
        """Give the stage up; nothing of this run stays but what it published.

        If storage fails now, the lease stays until this process ends; the next run sees that its holder is dead.
        """
        self.stop_renewing()
        for give_up in (lambda: withdraw(self._place, self.staging), self.staging.delete):
            with suppress(OSError, EnvironmentFailure):
                give_up()

    def names_to_delete(self) -> list[str]:
        """What lies in the work folder, but for leases, our staging, and what belongs to a later lease."""
        kept = {LEASES_FOLDER, self.staging.name}
        return [
            info.base_name
            for info in self._work.children()
            if info.base_name not in kept and _number_of(info.base_name) <= self.number
        ]

    def delete_work(self) -> None:
        """Delete the work folder, and with it the lease. A run that begins at this moment keeps what is its own."""
        self.stop_renewing()
        with suppress(ReplacedError):  # it is another's by now
            for name in self.names_to_delete():
                withdraw(self._work / name, self.staging)
            withdraw(self._place, self.staging)
            self.staging.delete()
            self._delete_empty()

    def _delete_empty(self) -> None:
        for folder in (self._work / LEASES_FOLDER, self._work):
            folder.filesystem.delete_empty(folder.path)

    def _publish(self, owner: bytes) -> None:
        for _ in range(MAX_TRIES):
            with suppress(FileNotFoundError, ReplacedError):  # the run before has just deleted these folders
                publish_bytes(self._place, self._work.make_folder(), owner)
                return
        raise _busy(str(self._work.parent), "a run that ends at this moment")

    def _withdraw(self, own: bytes) -> None:
        """Delete the lease, which is ``own``, of a run that does not begin."""
        self.staging.make_folder()  # before it looks: who takes over deletes it
        with suppress(FileNotFoundError):
            if self._place.read_bytes() == own:
                withdraw(self._place, self.staging)

    def _renew(self) -> None:
        while not self._stopped.wait(RENEWAL_INTERVAL_S):
            try:
                if not self.staging.exists():
                    raise FileNotFoundError
                self._place.filesystem.touch(self._place.path)
            except FileNotFoundError:
                self._lost.set()
                return
            except (OSError, EnvironmentFailure):  # the next one may succeed; if not, the next write fails
                continue

    def _delete_predecessors(self) -> None:
        """Delete what holders before us could still publish from; their tasks' folders are the stage's to judge.

        Raises ReplacedError if a later one did that to us.
        """
        for name in self.names_to_delete():
            if name.startswith(_STAGING):
                withdraw(self._work / name, self.staging)
        for number in _numbers(self._work):
            if number < self.number:
                withdraw(_place(self._work, number), self.staging)


@contextmanager
def lease_folder(work: Place, what: str, progress: Callable[[], None] = lambda: None) -> Iterator[Lease]:
    """Hold a lease during the block, as `Lease.take` does; after it nothing is left of the work folder.

    If the block raises, what earlier runs left stays.
    """
    lease = Lease.take(work, what, progress)
    try:
        yield lease
    except BaseException:
        lease.release()
        raise
    lease.delete_work()


def require_free(work: Place, what: str) -> None:
    """Raise BusyError if a living run has the lease of ``work``, named ``what`` to people. Takes nothing."""
    _require_dead(work, what, lambda: None)


def _require_dead(work: Place, what: str, progress: Callable[[], None]) -> tuple[int, set[bytes]]:
    """The next number, above those of all that is there, and the leases that are in place, all of dead holders.

    Raises BusyError if a holder lives.
    """
    left = [_number_of(info.base_name) for info in work.children()]  # before the leases, which those at work have
    leases = _leases(work)
    for number, content in leases.items():
        place = _place(work, number)
        try:
            found = place.parse_json(content)
            owner = Owner(found["host"], found["pid"], found["started"])
        except (DataError, KeyError, TypeError):
            raise EnvironmentFailure(f"{place} is damaged; if nothing is at work on {what}, delete it") from None
        is_here = owner.host == _host()
        if not (_start_time(owner.pid) != owner.started if is_here else _is_stale(place, owner, progress)):
            raise _busy(what, str(owner))
    return 1 + max([0, *left, *leases]), set(leases.values())


def _is_stale(lease: Place, owner: Owner, progress: Callable[[], None]) -> bool:
    """True if the lease is not renewed for `LEASE_TIMEOUT_S`, or is given up."""
    if (before := lease.info().mtime_ns) is None:
        return True  # its holder has ended
    log("lease", f"{lease} is held by {owner}; waiting up to {LEASE_TIMEOUT_S:.0f} s to see whether it is alive")
    deadline = time.monotonic() + LEASE_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(RENEWAL_INTERVAL_S / 5)
        progress()
        if (now := lease.info().mtime_ns) != before:
            return now is None  # its holder has ended
    return True


def _busy(what: str, owner: str) -> BusyError:
    return BusyError(f"{what} is locked by {owner}; wait for it, or stop it, and run again")


def _place(work: Place, number: int) -> Place:
    return work / LEASES_FOLDER / f"{number:06d}.json"


def _number_of(name: str) -> int:
    """The number of the lease that a file or folder in the work folder belongs to; 0 if it is not a lease's."""
    found = _OF_A_LEASE.fullmatch(name)
    return int(found[1]) if found else 0


def _leases(work: Place) -> dict[int, bytes]:
    """The leases that are in place, by their numbers, the highest one first."""
    leases = dict[int, bytes]()
    for number in reversed(_numbers(work)):
        with suppress(FileNotFoundError):  # given up this moment
            leases[number] = _place(work, number).read_bytes()
    return leases


def _numbers(work: Place) -> list[int]:
    names = [info.base_name.removesuffix(".json") for info in (work / LEASES_FOLDER).children()]
    return sorted(int(name) for name in names if name.isdigit())
