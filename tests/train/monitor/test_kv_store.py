"""Notes through the launcher's own store, a real one; and what each rank makes of the others' notes."""

import socket
from dataclasses import replace

import pytest
from horovod.runner.http.http_server import RendezvousServer

from tests.lib.ranks.beats import beat
from tests.train.monitor.conftest import Clock
from train.monitor import messages
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import Letterbox
from train.monitor.notes import ExitNotice, Note, key, scope
from train.monitor.peers import AFTER_ALL, Peers, observes


def always() -> bool:
    return True


def test_a_note_is_the_last_one_put_and_goes_by_no_proxy(
    letterbox: Letterbox, server: RendezvousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert letterbox.get("ringslice-0", "beat-1") is None
    letterbox.put("ringslice-0", "beat-1", {"number": 1})
    letterbox.put("ringslice-0", "beat-1", {"number": 2, "text": "é\n"})
    letterbox.put("ringslice-1", "beat-1", {"number": 3})
    assert letterbox.get("ringslice-0", "beat-1") == {"number": 2, "text": "é\n"}
    for other in (b"\x80pickle", b"[1]"):
        server._httpd.cache["ringslice-0"] = {"beat-1": other}
        assert letterbox.get("ringslice-0", "beat-1") is None


def test_a_launcher_that_is_gone_or_hangs_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it takes connections, and never answers
        port = listening.getsockname()[1]
        with pytest.raises(OSError):
            Letterbox("127.0.0.1", port).get("ringslice-0", "beat-1")
    with pytest.raises(OSError):
        Letterbox("127.0.0.1", port).put("ringslice-0", "beat-1", {})


def test_there_is_none_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    assert Letterbox.of_launcher() is None
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "4711")
    letterbox = Letterbox.of_launcher()
    assert letterbox is not None
    assert (letterbox.host, letterbox.port) == ("10.0.0.1", 4711)


def test_ranks_see_who_moves_who_ended_and_who_is_silent(letterbox: Letterbox, clock: Clock) -> None:
    peers = Peers(HostNotes(letterbox), 0, 4, 0, clock)
    for rank in (1, 2):
        Note(beat(rank, number=1), f"log-{rank}").put_into(letterbox)
    peers.look(always)
    assert sorted(peers.beats) == [1, 2]
    assert peers.silent == [1, 2, 3]
    Note(beat(1, number=2)).put_into(letterbox)
    Note(beat(3, number=9), "", ExitNotice(0)).put_into(letterbox)
    clock.now += 7
    peers.look(always)
    assert (peers.silent, peers.moving, peers.without_exit_notice) == ([2], [1], [1, 2])
    assert peers.silent_s == {1: 0, 2: 7}
    assert peers.beats[3].count == AFTER_ALL
    assert peers.notes[2].log == "log-2"
    peers.begin_to_look()
    assert peers.silent_s[2] == 0


def test_a_store_that_was_emptied_fills_again(letterbox: Letterbox, server: RendezvousServer) -> None:
    peers = Peers(HostNotes(letterbox), 0, 4, 0)
    Note(beat(1)).put_into(letterbox)
    peers.look(always)
    server.init([])
    peers.look(always)
    assert letterbox.get(scope(0), key(1)) is None
    Note(beat(1, number=51)).put_into(letterbox)
    peers.look(always)
    assert peers.moving == [1]


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


def test_the_words_name_rank_host_slice_and_step() -> None:
    [lost] = messages.find_lost(NOTES, silent=[2])
    assert messages.died([lost], "--resume goes on") == (
        "rank 2 on host2 was killed or died without a word in epoch 1, step 14, reading train-00003-of-00008"
        " at offset 123,456; --resume goes on"
    )
    unknown = messages.find_lost({}, silent=[1, 2])
    assert messages.died(unknown, "x") == "rank 1 was killed or died without a word at its start (and ranks 2); x"
    assert messages.late(beat(0), [2, 3], NOTES, {}) == (
        "rank 2 on host2 is late (so are ranks 3): epoch 1, step 14, reading train-00003-of-00008 at offset 123,456,"
        " without progress for 46 s"
    )
    assert "is late: silent for 60 s, last seen in epoch 1" in messages.late(beat(0), [2], NOTES, {2: 60.0})
    assert messages.late(beat(0), [2], {}, {2: 30.0}) == "rank 2 is late: it has sent no heartbeat for 30 s"
    assert messages.prefix_of(beat(2), is_ranked=True) == (
        "rank 2 on host2, epoch 1, step 14 (reading train-00003-of-00008 at offset 123,456): "
    )
    assert messages.prefix_of(beat(0, epoch=None, step=None), is_ranked=False) == ""
