"""Ranks of a training in simulated time: the real heartbeats and stall detectors, a store in memory, and a script of
what each rank does. A collective ends when all ranks are in it. And single beats for tests.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from train.monitor.heartbeat import READING, Beat, Status
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import KVStoreClient
from train.monitor.notes import Note, Verdict
from train.monitor.stall_detector import Stalls, Timeouts


def beat(rank: int, **fields: object) -> Beat:
    """One of ``rank``, of four, in its 10th phase, without progress for 46 s, but for ``fields``."""
    of_process = {"rank": rank, "size": 4, "generation": 0, "host": f"host{rank}", "pid": 100, "number": 50}
    place = {"epoch": 1, "step": 14, "phase": "reading", "slice": "train-00003-of-00008", "offset": 123_456}
    return Beat(**{**of_process, **place, "count": 10, "alone": False, "idle_s": 46.0, **fields})  # type: ignore[arg-type]


TIMEOUTS = Timeouts(20.0)
EPOCHS, STEPS, BATCHES = 2, 2, 2


@dataclass
class Action:
    """For ``seconds`` a rank uses ``cores``, and sees bytes every ``ticks_s``; as a collective it waits for all."""

    seconds: float = 0.0
    cores: float = 0.0
    ticks_s: float = float("inf")
    is_collective: bool = False


MEET = Action(is_collective=True)
Script = Iterator[Action]


class MemoryStore(KVStoreClient):
    """The launcher's store without the launcher."""

    def __init__(self) -> None:
        super().__init__("", 0)
        self.requests, self._notes = 0, dict[tuple[str, str], bytes]()

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        self.requests += 1
        if body is not None:
            self._notes[scope, key] = body
        return self._notes.get((scope, key))


class MemoryBoard:
    """What `train.monitor.host_board.HostBoard` does, for ranks of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: dict[str, tuple[float, dict[str, Any]]] = {}

    def put(self, name: str, note: dict[str, Any]) -> None:
        self._notes[name] = self._clock(), note

    def get(self, name: str, max_age_s: float = float("inf")) -> dict[str, Any] | None:
        at, note = self._notes.get(name, (0.0, None))
        return note if self._clock() - at < max_age_s else None

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._notes if name.startswith(prefix)]


class SimulatedRank:
    """A rank with a heartbeat and a detector of its own, in the time of ``ring``."""

    def __init__(self, ring: "SimulatedRing", rank: int, script: Callable[[Status, int], Script], board: Any) -> None:
        self._ring, self._cpu_s = ring, 0.0
        self.status = Status(ring.clock, lambda: self._cpu_s)
        self.status.joined(rank, ring.size)
        self._notes = HostNotes(ring.store, board, ring.timeouts.stall_s / 2, ring.clock)
        self._stalls = Stalls(self._notes, ring.timeouts, lambda: True, ring.clock)
        self._script = script(self.status, rank)
        self._action, self._left, self._ticked = Action(), 0.0, 0.0
        self.met, self.is_done = 0, False

    def go_on(self, seconds: float) -> None:
        """Follow the script for so long."""
        while seconds > 0 and not self.is_done:
            if self._left <= 0 and not self._begin_next():
                return
            spent = min(seconds, self._left)
            self._left -= spent
            seconds -= spent
            self._cpu_s += self._action.cores * spent
            self._ticked += spent
            if self._ticked >= self._action.ticks_s:
                self._ticked = 0.0
                self.status.progress()

    def _begin_next(self) -> bool:
        if self._action.is_collective and self._ring.arrived[self.met] < self._ring.size:
            return False  # a rank has not come to it yet
        try:
            self._action = next(self._script)
        except StopIteration:
            self.is_done = True
            return False
        if self._action.is_collective:
            self.met += 1
            self._ring.arrived[self.met] += 1
        self._left, self._ticked = self._action.seconds or 1e-9, 0.0
        return True

    def beat(self) -> Verdict | None:
        """What the watch does every second."""
        self.status.sample(self._ring.timeouts.computing_s)
        beat = self.status.beat()
        self._notes.put(Note(beat))
        return self._stalls.verdict(beat, "")


class SimulatedRing:
    """All ranks, and their time. With ``local`` that many ranks share a host and its board."""

    def __init__(
        self, script: Callable[[Status, int], Script], size: int = 3, local: int = 0, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        self.now, self.size, self.store, self.timeouts = 1000.0, size, MemoryStore(), timeouts
        self.arrived = Counter[int]()  # ranks, by collective
        boards = [MemoryBoard(self.clock) for _ in range(0, size, local)] if local else []
        self.ranks = [
            SimulatedRank(self, rank, script, boards[rank // local] if local else None) for rank in range(size)
        ]

    def clock(self) -> float:
        return self.now

    def run(self, limit_s: float, pauses: tuple[tuple[float, float], ...] = ()) -> Verdict | None:
        """The first verdict; None if all ranks come to their end. At each of ``pauses`` all stand still for so long."""
        pending = list(pauses)
        for second in range(int(limit_s)):
            if pending and second >= pending[0][0]:
                self.now += pending.pop(0)[1]
            self.now += 1
            for rank in self.ranks:
                rank.go_on(1)
            for rank in self.ranks:
                if (verdict := rank.beat()) is not None:
                    return verdict
            if all(rank.is_done for rank in self.ranks):
                return None
        raise AssertionError("the script does not come to an end")


def training(seed: int, hang: tuple[int, str] | None, status: Status, rank: int) -> Script:
    """The phases of a training with seeded durations, a few of them slow; in ``hang`` a rank sleeps for ever."""
    chance = random.Random(f"{seed} {rank}")

    def busy(phase: str, slow: float) -> Action:
        if hang == (rank, phase):
            return Action(seconds=1e9)
        seconds = chance.uniform(21, 80) if chance.random() < slow else chance.uniform(0.1, 2)
        return Action(seconds, cores=chance.uniform(0.4, 2))

    def reading(phase: str) -> Action:
        if hang == (rank, phase):
            return Action(seconds=1e9, cores=0.6)  # as decoders or a JVM may use, of which no byte comes
        return Action(chance.choice([0.2, 0.5, 12]), cores=0.5, ticks_s=chance.uniform(1, 6))

    status.phase("gathering from all ranks")
    yield MEET
    status.local_phase("building the model")
    yield busy("building the model", 0.5)
    status.phase("waiting for rank 0")
    yield MEET
    for epoch in range(1, EPOCHS + 1):
        for step in range(1, STEPS + 1):
            status.phase(READING, epoch, step)
            yield reading(READING)
            status.phase("stepping")
            yield busy("stepping", 0.1)
            yield MEET
        status.phase(f"{READING} test")
        for _ in range(BATCHES):
            yield reading(f"{READING} test")
            status.local_phase("evaluating test")
            yield busy("evaluating test", 0.2)
            status.local_phase(f"{READING} test")
        status.phase("summing over all ranks")
        yield MEET
        if rank == 0:
            status.local_phase("waiting for the last checkpoint to be written")
            yield Action(chance.choice([1, 30, 60]), cores=0.02, ticks_s=chance.uniform(1, 8))
        status.phase("waiting for rank 0")
        yield MEET
