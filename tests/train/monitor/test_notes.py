"""Notes of ranks by the launcher's own store, a real one, and by boards of their hosts."""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from horovod.runner.http.http_server import RendezvousServer

from tests.lib.ranks.simulated_ring import beat
from tests.train.monitor.conftest import Clock, CountingStore
from train.monitor import host_board, messages, watchdog_process
from train.monitor.host_board import HostBoard
from train.monitor.host_notes import FRESH_S, REQUESTS_PER_S, HostNotes
from train.monitor.kv_store import KVStoreClient
from train.monitor.notes import ExitNotice, Note, Verdict, host_note, key, notes_of, scope
from train.monitor.peers import AFTER_ALL, Peers, observes


def test_the_last_note_stays_and_no_proxy_is_used(
    client: KVStoreClient, server: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert client.get("ringslice-0", "beat-1") is None
    client.put("ringslice-0", "beat-1", {"number": 1})
    client.put("ringslice-0", "beat-1", {"number": 2, "text": "é\n"})
    client.put("ringslice-1", "beat-1", {"number": 3})
    assert client.get("ringslice-0", "beat-1") == {"number": 2, "text": "é\n"}
    for other in (b"\x80pickle", b"[1]"):
        server._httpd.cache["ringslice-0"] = {"beat-1": other}
        assert client.get("ringslice-0", "beat-1") is None


def test_a_launcher_that_is_gone_or_hangs_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it takes connections, and never answers
        port = listening.getsockname()[1]
        with pytest.raises(OSError):
            KVStoreClient("127.0.0.1", port).get("ringslice-0", "beat-1")
    with pytest.raises(OSError):
        KVStoreClient("127.0.0.1", port).put("ringslice-0", "beat-1", {})


def test_ranks_see_who_moves_who_ended_and_who_is_silent(client: KVStoreClient, clock: Clock) -> None:
    peers = Peers(HostNotes(client), 0, 4, 0, clock)
    for rank in (1, 2):
        Note(beat(rank, number=1), f"log-{rank}").put_into(client)
    peers.look(lambda: True)
    assert sorted(peers.beats) == [1, 2]
    assert peers.silent == [1, 2, 3]
    Note(beat(1, number=2)).put_into(client)
    Note(beat(3, number=9), "", ExitNotice(0)).put_into(client)
    clock.now += 7
    peers.look(lambda: True)
    assert (peers.silent, peers.moving, peers.without_exit_notice) == ([2], [1], [1, 2])
    assert peers.silent_s == {1: 0, 2: 7}
    assert peers.beats[3].count == AFTER_ALL
    assert peers.notes[2].log == "log-2"
    peers.begin_to_look()
    assert peers.silent_s[2] == 0


def test_a_rank_that_leaves_its_hosts_board_is_found_by_its_own_note(client: KVStoreClient, clock: Clock) -> None:
    peers = Peers(HostNotes(client), 0, 3, 0, clock)
    client.put(scope(0), key(1), host_note([Note(beat(1, number=1)), Note(beat(2, number=1))]))
    peers.look(lambda: True)
    client.put(scope(0), key(1), host_note([Note(beat(1, number=2))]))
    Note(beat(2, number=2)).put_into(client)
    for _ in range(2):
        peers.look(lambda: True)
    assert peers.notes[2].beat.number == 2


NOTES = {rank: Note(beat(rank)) for rank in (1, 2, 3)}
FAILED, STOPPED = ExitNotice(1, "ringslice: error: no"), ExitNotice(130)


def test_the_lost_are_those_that_failed_else_the_dead_else_those_that_left() -> None:
    left = replace(NOTES[1], exit_notice=STOPPED)
    failed = replace(NOTES[2], exit_notice=FAILED)
    found = messages.find_lost({1: left, 2: failed, 3: NOTES[3]}, silent=[3])
    assert [(each.rank, each.host, each.status, each.line) for each in found] == [(2, "host2", 1, FAILED.line)]
    found = messages.find_lost({1: left, 2: NOTES[2], 3: NOTES[3]}, silent=[3])
    assert [(each.rank, each.status) for each in found] == [(3, None)]
    assert [each.rank for each in messages.find_lost({1: left, 2: NOTES[2]}, silent=[])] == [1]
    assert messages.find_lost({2: NOTES[2]}, silent=[]) == []
    assert messages.leaving({1: STOPPED, 2: FAILED, 3: ExitNotice(0)}, size=4) == [1]


def test_of_a_large_ring_few_ranks_observe_and_not_one_hosts_alone() -> None:
    assert [rank for rank in range(15) if observes(rank, 15)] == list(range(15))
    assert [rank for rank in range(64) if observes(rank, 64)] == list(range(0, 64, 8))
    assert all(8 <= sum(observes(rank, size) for rank in range(size)) <= 15 for size in range(8, 2000))
    assert messages.leaving({8: STOPPED, 9: STOPPED}, size=64) == [8]


def test_messages_name_rank_host_slice_and_step() -> None:
    unknown = messages.find_lost({}, silent=[1, 2])
    assert messages.died(unknown, "x") == "rank 1 was killed or died without a word at its start (and ranks 2); x"
    assert messages.late(beat(0), [2, 3], NOTES, {}) == (
        "rank 2 on host2 is late (so are ranks 3): epoch 1, step 14, reading train-00003-of-00008 at offset 123,456,"
        " without progress for 46 s"
    )
    assert "is late: silent for 60 s, last seen in epoch 1" in messages.late(beat(0), [2], NOTES, {2: 60.0})
    assert messages.late(beat(0), [2], {}, {2: 30.0}) == "rank 2 is late: it has sent no heartbeat for 30 s"
    assert messages.prefix_of(beat(0, epoch=None, step=None), is_ranked=False) == ""


SIZE = 4
NotesOn = Callable[[str], HostNotes]


@pytest.fixture
def notes_on(tmp_path: Path, client: CountingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotesOn]:
    """Notes of a rank on a host of this name."""
    monkeypatch.setattr("train.monitor.host_board.time.monotonic", clock)
    made: list[HostNotes] = []

    def make(host: str) -> HostNotes:
        made.append(HostNotes(client, HostBoard(tmp_path / host), 20.0, clock))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_the_lowest_living_rank_puts_the_note_of_its_host(
    notes_on: NotesOn, client: CountingStore, clock: Clock
) -> None:
    first, second = notes_on("a"), notes_on("a")
    first.put(Note(beat(2, number=1)))
    second.put(Note(beat(3, number=1)))
    assert (first.is_reporter, second.is_reporter) == (True, False)
    assert [note.beat.rank for note in notes_of(client.get(scope(0), key(2)))] == [2]
    clock.now += 1
    first.put(Note(beat(2, number=2)))
    assert [note.beat.rank for note in notes_of(client.get(scope(0), key(2)))] == [2, 3]
    clock.now += FRESH_S  # the first one hangs, or was killed
    second.put(Note(beat(3, number=9)))
    assert second.is_reporter
    found = notes_of(client.get(scope(0), key(2)))
    assert [(note.beat.rank, note.beat.number) for note in found] == [(2, 2), (3, 9)]


def test_a_watchdogs_note_is_put_by_another_rank(notes_on: NotesOn, client: CountingStore, clock: Clock) -> None:
    first, second = notes_on("a"), notes_on("a")
    first.put(Note(beat(2, number=5)))
    ending = Note(beat(2, number=5), "", ExitNotice(3, "killed"))
    assert first.exit_messages(ending)["store"] is not None  # it is alone on its host
    second.put(Note(beat(3, number=5)))
    first.put(Note(beat(2, number=6)), at_once=True)
    words = first.exit_messages(ending)
    assert words["store"] is None
    watchdog_process._leave_note(words)
    clock.now += 1
    second.put(Note(beat(3, number=7)))
    assert second.is_reporter
    peers = Peers(second, 3, SIZE, 0)
    peers.look(lambda: True, [2])
    assert peers.exit_notices == {2: ExitNotice(3, "killed")}


def test_the_ranks_of_a_host_need_no_store_for_notes_and_verdicts(notes_on: NotesOn, client: CountingStore) -> None:
    first, second, other = notes_on("a"), notes_on("a"), notes_on("b")
    other.put(Note(beat(2)))
    first.put(Note(beat(0)))
    second.put(Note(beat(1)))
    client.requests = 0
    peers = Peers(second, 1, SIZE, 0)
    peers.look(lambda: True, [0])
    assert (sorted(peers.notes), client.requests) == ([0], 0)
    peers.look(lambda: True)
    assert (sorted(peers.notes), client.requests) == ([0, 2], 2)  # of rank 3 there is nothing
    assert first.verdict(0, asks=True) is None
    verdict = Verdict(2, (1,), "late", (0,))
    Peers(other, 2, SIZE, 0).judge(verdict)
    assert second.verdict(0, asks=False) is None
    assert Peers(first, 0, SIZE, 0).verdict() == verdict
    client.requests = 0
    assert second.verdict(0, asks=False) == verdict
    assert client.requests == 0
    assert Peers(first, 0, SIZE, 1).verdict() is None


def test_the_hosts_of_a_large_ring_take_turns(notes_on: NotesOn, client: CountingStore, clock: Clock) -> None:
    """A host that has stalled reports it out of turn, and an exit at once."""
    size, notes, put_at = 1024, notes_on("a"), list[int]()
    turn_s = size / REQUESTS_PER_S
    for second in range(200):
        client.requests = 0
        notes.put(Note(beat(512, size=size, idle_s=max(0.0, second - 120.0), number=second)))
        put_at += [second] * client.requests
        clock.now += 1
    first, again, stalled, *_ = put_at
    assert [first, again - first] == pytest.approx([turn_s / 2, turn_s], abs=1)
    assert 120 + 2 * 20 <= stalled <= 120 + 2.5 * 20 + 1
    client.requests = 0
    notes.put(Note(beat(512, size=size, idle_s=0.0), "", ExitNotice(3)))
    assert client.requests == 1


def test_exit_notices_that_are_put_at_the_same_time_are_all_read(
    notes_on: NotesOn, client: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = notes_on("a"), notes_on("a")
    second.put(Note(beat(1)))
    put = client.put

    def put_after_the_other(*words: Any) -> None:
        """What is put now was gathered before the other's exit notice."""
        monkeypatch.setattr(client, "put", put)
        second.put(Note(beat(1), "", ExitNotice(3)), at_once=True)
        put(*words)

    monkeypatch.setattr(client, "put", put_after_the_other)
    first.put(Note(beat(0), "", ExitNotice(3)), at_once=True)
    found = notes_of(client.get(scope(0), key(0)))
    assert [note.beat.rank for note in found if note.exit_notice is not None] == [0, 1]


def test_what_a_job_that_was_killed_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place, and elsewhere; that of a job that is alive stays."""
    monkeypatch.setattr(host_board, "MEMORY", tmp_path)
    monkeypatch.setenv("HOROVOD_HOSTNAME", "host1")
    own, killed, living = (tmp_path / f"ringslice-{os.getuid()}-host1-127.0.0.1-{port}" for port in (1, 2, 3))
    for folder in (own, killed):
        folder.mkdir()
        (folder / "0-0").write_text("{}")
    other, board = HostBoard(living), HostBoard.of_job("127.0.0.1", 1)
    other.put("0-0", {})
    assert board is not None
    assert (board.names(""), other.names("")) == ([], ["0-0"])
    assert sorted(tmp_path.iterdir()) == [own, living]
    for each in (other, board):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_no_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.monitor.host_board.os.getuid", lambda: 12345)
    with pytest.raises(OSError, match="is not this user's"):
        HostBoard(tmp_path / "a")


def test_a_board_that_is_full_is_left(client: CountingStore, tmp_path: Path) -> None:
    board = HostBoard(tmp_path / "a")
    notes = HostNotes(client, board)
    notes.put(Note(beat(0)))
    with mock.patch.object(board, "put", side_effect=OSError("no space left")):
        notes.put(Note(beat(0, number=51)), at_once=True)
    assert [note.beat.number for note in notes_of(client.get(scope(0), key(0)))] == [51]
    assert notes.local(0) == []
    assert not (tmp_path / "a").exists()
