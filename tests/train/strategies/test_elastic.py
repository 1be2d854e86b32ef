"""Elastic runs of real processes: workers that are killed, that fail, that join, and what every example comes to."""

import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import HOROVODRUN, PATIENCE_S, flip_bit, wait_until
from tests.lib.ranks.outcomes import keys_of_split, require_each_key_once
from tests.lib.ranks.running import metric_lines, spawn

pytestmark = pytest.mark.integration

HOSTS = ("localhost", "127.0.0.1", "127.1", "127.0.1")  # names of this machine, each taken for a host of one slot
COMMIT_STEPS = 5
STANDSTILL_S = 900  # without a step: on a busy machine, a new rank loads for minutes
STRETCH = re.compile(r"epoch-\d+-steps-(\d+)-to-(\d+)-rank-(\d+)-of-(\d+)\.txt")


class ElasticRun:
    """A run in progress, and the hosts that its launcher finds."""

    def __init__(self, folder: Path, epochs: int, hosts: int, away_s: tuple[int, int]) -> None:
        """A host of which a rank died is not used for ``away_s``."""
        self.root, self.epochs = folder / "root", epochs
        self.run, self.log = self.root / "runs" / "elastic", folder / "log"
        self.released = folder / "released"  # without it steps are slow
        self._hosts = folder / "hosts"
        discovery = folder / "discover.sh"
        discovery.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        discovery.chmod(0o755)
        self.offer(hosts)
        self.words = (
            *(*HOROVODRUN, "-np", hosts, "--min-np", 2, "--max-np", len(HOSTS), "--network-interface", "lo"),
            *("--host-discovery-script", discovery, "--blacklist-cooldown-range", *away_s),
            *("train/main.py", "--data", self.root, "--run", "elastic", "--model", "tests.lib.ranks.tiny:paced"),
            *("--batch", 8, "--lr", 0.005, "--epochs", epochs, "--audit", "--commit-steps", COMMIT_STEPS),
        )

    def offer(self, hosts: int) -> None:
        """This many hosts are there from now on."""
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:1\n" for host in HOSTS[:hosts]))
        new.rename(self._hosts)

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

    def wait_until(self, holds: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
        """As `wait_until`, but without a limit while the run commits steps: a busy machine only slows it down."""
        while not holds():
            step = self.step
            wait_until(lambda step=step: holds() or self.step > step, process, STANDSTILL_S)  # type: ignore[misc]

    def wait_for_end(self, process: "subprocess.Popen[str]") -> int:
        """Its exit status."""
        self.wait_until(lambda: process.poll() is not None)
        return process.wait()

    def has_ring_of(self, size: int, after: int) -> bool:
        """True if a ring of ``size`` ranks has committed steps after step ``after``."""
        return any(first > after and ring == size for first, _, _, ring in self.stretches())

    def require_exact(self, rolled_back: int = COMMIT_STEPS) -> int:
        """Each example once in each epoch, and at most so many steps taken again. Returns the number of steps."""
        require_each_key_once(self.run, self.root / "slices/default", self.epochs)
        result = json.loads((self.run / "result.json").read_text())
        assert 0 <= result["rolled_back_steps"] <= rolled_back
        assert not (self.run / "_work").exists()
        return int(result["steps"])


@contextmanager
def run_elastic(
    folder: Path, digits_root: Path, epochs: int, hosts: int, away_s: tuple[int, int] = (2, 3)
) -> Iterator[tuple[ElasticRun, "subprocess.Popen[str]"]]:
    shutil.copytree(digits_root / "slices", folder / "root" / "slices")
    elastic = ElasticRun(folder, epochs, hosts, away_s)
    variables = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30", "RELEASED": str(elastic.released)}
    with spawn(*elastic.words, log=elastic.log, **variables) as process:
        yield elastic, process


def test_a_new_worker_is_used_and_a_killed_one_is_done_without(digits_root: Path, tmp_path: Path) -> None:
    with run_elastic(tmp_path, digits_root, epochs=4, hosts=2, away_s=(900, 1000)) as (elastic, process):
        elastic.wait_until(lambda: elastic.step >= 20, process)
        elastic.offer(3)
        elastic.wait_until(lambda: elastic.has_ring_of(3, 0), process)
        before = elastic.step
        elastic.ranks()[-1].send(signal.SIGKILL)
        elastic.wait_until(lambda: elastic.has_ring_of(2, before), process)
        elastic.released.touch()
        assert elastic.wait_for_end(process) == 0, elastic.log.read_text()
    steps = [line for line in metric_lines(elastic.run) if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, elastic.require_exact() + 1))
    assert {line["ranks"] for line in steps} >= {2, 3}
    assert len(re.findall(r"was killed or died without a word in epoch \d+, step \d+", elastic.log.read_text())) == 1


def test_an_audit_with_a_stretch_twice_or_lost_is_found(tmp_path: Path, digits_root: Path) -> None:
    """Negative control of what these tests assert."""
    slices, audit = digits_root / "slices" / "default", tmp_path / "audit"
    keys = keys_of_split(slices)
    audit.mkdir()
    (audit / "epoch-0001-first.txt").write_text("\n".join(keys[:700]))
    (audit / "epoch-0001-second.txt").write_text("\n".join(keys[700:]))
    require_each_key_once(tmp_path, slices, epochs=1)
    (audit / "epoch-0001-first.txt").write_text("\n".join(keys[:720]))
    with pytest.raises(AssertionError, match="20 keys more than once"):
        require_each_key_once(tmp_path, slices, epochs=1)
    (audit / "epoch-0001-first.txt").unlink()
    with pytest.raises(AssertionError, match="700 keys are missing"):
        require_each_key_once(tmp_path, slices, epochs=1)


@pytest.mark.chaos
def test_bad_data_ends_all_workers(digits_root: Path, tmp_path: Path) -> None:
    """Another would meet the same: they do not go down one after the other."""
    with run_elastic(tmp_path, digits_root, epochs=1000, hosts=3) as (elastic, process):
        elastic.wait_until(lambda: elastic.step >= 20, process)
        damaged = elastic.root / "slices/default/train/train-00003-of-00008.tfrecord"
        flip_bit(damaged, 5000)
        assert process.wait(PATIENCE_S) != 0
    outcome = elastic.log.read_text()
    lines = [line for line in outcome.splitlines() if "ringslice: error:" in line]
    assert len(lines) == 1, outcome
    assert f"{damaged} is damaged at offset" in lines[0]
    assert not elastic.ranks()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_changes_at_seeded_points(seed: int, digits_root: Path, tmp_path: Path) -> None:
    """Workers are killed, hosts come and go; the run goes on, and every epoch has each example once."""
    generator = random.Random(seed)
    killed = 0
    with run_elastic(tmp_path, digits_root, epochs=20, hosts=3) as (elastic, process):
        hosts = 3
        for _ in range(10):
            point = elastic.step + generator.randrange(5, 60)
            elastic.wait_until(lambda point=point: elastic.step >= point, process)  # type: ignore[misc]
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
        elastic.released.touch()
        assert elastic.wait_for_end(process) == 0, elastic.log.read_text()
    assert killed >= 3
    elastic.require_exact(rolled_back=COMMIT_STEPS * killed)
