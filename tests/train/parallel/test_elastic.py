"""Elastic runs of real processes: workers that are killed, that fail, that join, and what every example comes to."""

import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import HOROVODRUN, flip_bit
from tests.lib.ranks.audits import committed_keys, keys_of_split, require_each_key_once
from tests.lib.ranks.running import metric_lines, started, wait_until

pytestmark = pytest.mark.integration

HOSTS = ("localhost", "127.0.0.1", "127.1", "127.0.1")  # names of this machine, each taken for a host of one slot
COMMIT_STEPS = 5
STRETCH = re.compile(r"epoch-\d+-steps-(\d+)-to-(\d+)-rank-(\d+)-of-(\d+)\.txt")


class ElasticRun:
    """A run that is going on, and the hosts that its launcher finds."""

    def __init__(self, folder: Path, root: Path, epochs: int, hosts: int, more: tuple[object, ...]) -> None:
        self.root, self.run, self.epochs = root, root / "runs" / "elastic", epochs
        self.log = folder / "log"
        self._hosts, self._discovery = folder / "hosts", folder / "discover.sh"
        self._discovery.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        self._discovery.chmod(0o755)
        self.offer(hosts)
        self.words = (
            *(*HOROVODRUN, "-np", hosts, "--min-np", 2, "--max-np", len(HOSTS), "--network-interface", "lo"),
            *("--host-discovery-script", self._discovery, "--blacklist-cooldown-range", 2, 3),
            *(
                "train/main.py",
                "--data",
                root,
                "--run",
                "elastic",
                "--model",
                "tests.lib.ranks.tiny:tiny",
                "--batch",
                8,
            ),
            *("--lr", 0.005, "--epochs", epochs, "--audit", "--commit-steps", COMMIT_STEPS),
            *more,
        )

    def offer(self, hosts: int) -> None:
        """So many hosts are there from now on."""
        self._hosts.with_suffix(".new").write_text("".join(f"{host}:1\n" for host in HOSTS[:hosts]))
        self._hosts.with_suffix(".new").rename(self._hosts)

    def ranks(self) -> list[Process]:
        """Its processes that train."""
        return find_all(
            lambda words, variables: (
                b"train/main.py" in words
                and str(self.root).encode() in words
                and any(each.startswith(b"HOROVOD_RANK=") for each in variables)
                and not words[0].endswith((b"sh", b"env"))
            )
        )

    def stretches(self) -> list[tuple[int, int, int, int]]:
        """First and last step, rank and world size, of all that was published."""
        found = (STRETCH.fullmatch(path.name) for path in (self.run / "audit").glob("*.txt"))
        return sorted((int(each[1]), int(each[2]), int(each[3]), int(each[4])) for each in found if each)

    @property
    def step(self) -> int:
        return max((last for _, last, _, _ in self.stretches()), default=0)

    def has_ring_of(self, size: int, after: int) -> bool:
        """Whether a ring of ``size`` ranks has committed steps after step ``after``."""
        return any(first > after and ring == size for first, _, _, ring in self.stretches())

    def require_exact(self) -> dict[str, object]:
        require_each_key_once(self.run, self.root / "slices" / "default", self.epochs)
        result: dict[str, object] = json.loads((self.run / "result.json").read_text())
        assert not (self.run / "_work").exists()
        return result


@contextmanager
def running(
    folder: Path, digits_root: Path, epochs: int, hosts: int, more: tuple[object, ...] = ()
) -> Iterator[tuple[ElasticRun, "subprocess.Popen[str]"]]:
    shutil.copytree(digits_root / "slices", folder / "root" / "slices")
    elastic = ElasticRun(folder, folder / "root", epochs, hosts, more)
    with started(*elastic.words, log=elastic.log, HOROVOD_GLOO_TIMEOUT_SECONDS="30") as process:
        yield elastic, process


def test_a_killed_worker_is_done_without_and_a_new_one_is_used(digits_root: Path, tmp_path: Path) -> None:
    with running(tmp_path, digits_root, epochs=8, hosts=3) as (elastic, process):
        wait_until(lambda: elastic.step >= 20, process)
        victim = elastic.ranks()[-1]
        before = elastic.step
        victim.send(signal.SIGKILL)
        wait_until(lambda: elastic.has_ring_of(2, before), process)
        elastic.offer(4)
        wait_until(lambda: elastic.has_ring_of(4, before), process)
        assert process.wait(300) == 0, elastic.log.read_text()
    result = elastic.require_exact()
    assert 0 <= int(str(result["rolled_back_steps"])) <= COMMIT_STEPS
    steps = [line for line in metric_lines(elastic.run) if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, int(str(result["steps"])) + 1))
    assert {line["ranks"] for line in steps} >= {2, 3, 4}  # of each ring
    assert len(re.findall(r"was killed or died without a word in epoch \d+, step \d+", elastic.log.read_text())) == 1
    by_stretch: dict[tuple[int, int], list[int]] = {}
    for path in (elastic.run / "audit").glob("*-of-0004.txt"):
        found = STRETCH.fullmatch(path.name)
        assert found is not None
        by_stretch.setdefault((int(found[1]), int(found[2])), []).append(len(path.read_text().splitlines()))
    assert all(len(each) == 4 and max(each) - min(each) <= 1 for each in by_stretch.values())


def test_the_twin_whose_rollback_is_forgotten_repeats_examples(tmp_path: Path, digits_root: Path) -> None:
    """What holds the audits together finds a stretch that was taken twice, and one that was lost."""
    slices = digits_root / "slices" / "default"
    keys = keys_of_split(slices)
    audit = tmp_path / "audit"
    audit.mkdir()
    (audit / "epoch-0001-steps-00000001-to-00000010-rank-0000-of-0002.txt").write_text("\n".join(keys[:700]))
    (audit / "epoch-0001-steps-00000001-to-00000010-rank-0001-of-0002.txt").write_text("\n".join(keys[700:]))
    require_each_key_once(tmp_path, slices, epochs=1)
    (audit / "epoch-0001-steps-00000006-to-00000010-rank-0000-of-0003.txt").write_text("\n".join(keys[40:60]))
    with pytest.raises(AssertionError, match="20 keys more than once"):
        require_each_key_once(tmp_path, slices, epochs=1)
    for path in audit.glob("*-of-0002.txt"):
        path.unlink()
    assert len(committed_keys(tmp_path, 1)) == 20
    with pytest.raises(AssertionError, match=f"{len(keys) - 20} keys are missing"):
        require_each_key_once(tmp_path, slices, epochs=1)


@pytest.mark.chaos
def test_a_stopped_worker_is_ended_and_done_without(digits_root: Path, tmp_path: Path) -> None:
    with running(tmp_path, digits_root, epochs=6, hosts=3, more=("--stall-timeout", 9)) as (elastic, process):
        wait_until(lambda: elastic.step >= 20, process)
        stopped = elastic.ranks()[1]
        before = elastic.step
        stopped.send(signal.SIGSTOP)
        wait_until(lambda: elastic.has_ring_of(2, before), process)
        assert not stopped.lives
        assert process.wait(200) == 0, elastic.log.read_text()
    assert "was silent for 6 s, stopped or hung in epoch" in elastic.log.read_text()
    assert int(str(elastic.require_exact()["rolled_back_steps"])) <= COMMIT_STEPS


@pytest.mark.chaos
def test_bad_data_ends_all_workers(digits_root: Path, tmp_path: Path) -> None:
    """Another would meet the same: they do not go down one after the other."""
    with running(tmp_path, digits_root, epochs=1000, hosts=3) as (elastic, process):
        wait_until(lambda: elastic.step >= 20, process)
        damaged = elastic.root / "slices/default/train/train-00003-of-00008.tfrecord"
        flip_bit(damaged, 5000)
        assert process.wait(60) != 0
    told = elastic.log.read_text()
    lines = [line for line in told.splitlines() if "ringslice: error:" in line]
    assert len(lines) == 1, told
    assert f"{damaged} is damaged at offset" in lines[0]
    assert not elastic.ranks()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_changes_at_seeded_points(seed: int, digits_root: Path, tmp_path: Path) -> None:
    """Workers are killed, hosts come and go; the run goes on, and every epoch has each example once."""
    generator = random.Random(seed)
    killed = 0
    with running(tmp_path, digits_root, epochs=40, hosts=3) as (elastic, process):
        hosts = 3
        for _ in range(10):
            point = elastic.step + generator.randrange(5, 60)
            wait_until(lambda point=point: elastic.step >= point, process)  # type: ignore[misc]
            ranks = elastic.ranks()
            change = generator.choice(["kill", "kill", "add", "remove"])
            if change == "kill" and len(ranks) > 2:
                generator.choice(ranks).send(signal.SIGKILL)
                killed += 1
            elif change == "remove" and hosts > 3:
                hosts -= 1
                elastic.offer(hosts)
            else:
                hosts = min(len(HOSTS), hosts + 1)
                elastic.offer(hosts)
        assert process.wait(400) == 0, elastic.log.read_text()
    result = elastic.require_exact()
    assert killed >= 3
    assert int(str(result["rolled_back_steps"])) <= COMMIT_STEPS * killed
