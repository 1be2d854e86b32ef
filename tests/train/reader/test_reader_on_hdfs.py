"""The reader on a real HDFS, by both drivers: its DataNode dies and comes back, and connections hang."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from tests.hadoop.cluster import Cluster
from tests.hadoop.proxy import start_proxy
from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, wait_until
from tests.lib.on_hadoop import put
from tests.train.reader.test_reader import make_slices, read_examples

pytestmark = pytest.mark.integration

DRIVERS = (NATIVE, LIBHDFS)
RECORDS = 400  # of 49 KB, in 4 slices
LITTLE_AHEAD = {"lanes": 2, "budget_bytes": 6_000_000}  # of 20 MB


@pytest.fixture(scope="module")
def slices(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Local slices."""
    few = tmp_path_factory.mktemp("large") / "source"
    for label in "012":
        shutil.copytree(digits / label, few / label)
    return make_slices(few, f"train={RECORDS},test=rest", 4, "--size", 128, "--color", "rgb")


@pytest.fixture(scope="module")
def written(slices: Path) -> list[list[int]]:
    """Number and CRC32C of every example."""
    return sorted([number, crc32c(example)] for number, example in read_examples(slices).items())


@pytest.fixture(scope="module")
def uploaded(slices: Path, hadoop: Cluster) -> str:
    """The URI of the same on HDFS."""
    return f"{put(hadoop, slices)}/{slices.name}"


class Reader:
    """A process that reads an epoch of what was ``written``, and waits after the first batch until it is to resume."""

    def __init__(self, log: Path, written: list[list[int]], words: tuple[str, ...], variables: dict[str, str]) -> None:
        self._log, self._written = log, written
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lib.ranks.read_epoch", *words],
                cwd=REPOSITORY,
                env=environment(**variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_for_first_batch(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n", self._log.read_text()

    def resume(self) -> None:
        print(file=self._process.stdin, flush=True)

    def wait_for_line(self, line: str) -> None:
        wait_until(lambda: line in self._log.read_text(), message=self._log.read_text)

    def require_all(self) -> None:
        result = self._result()
        assert (result["raised"], sorted(result["examples"])) == (None, self._written)

    def require_some(self) -> str:
        """It ended with an error; returns the message."""
        result = self._result()
        kind, message = result["raised"]
        assert kind == "EnvironmentFailure"
        assert 0 < len(result["examples"]) < RECORDS
        assert all(each in self._written for each in result["examples"])
        return str(message)

    def _result(self) -> Any:
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, self._log.read_text()
        return json.loads(out)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


Start = Callable[..., list[Reader]]


@pytest.fixture
def start(uploaded: str, written: list[list[int]], tmp_path: Path) -> Iterator[Start]:
    """Starts a reader by each of these drivers, all at once, which have their first batch then; none is left."""
    started: list[Reader] = []

    def start(site: dict[str, str], *drivers: str, **reading: object) -> list[Reader]:
        words = (uploaded, json.dumps(LITTLE_AHEAD | reading))
        begun = [
            Reader(tmp_path / f"{len(started)}-{driver}.log", written, words, {**site, DRIVER_VARIABLE: driver})
            for driver in drivers
        ]
        started.extend(begun)
        for reader in begun:
            reader.wait_for_first_batch()
        return begun

    yield start
    for reader in started:
        reader.kill()


def test_a_datanode_dies_and_comes_back(start: Start, hadoop_alone: Cluster) -> None:
    """A reader within its time for retries reads on from where it was; one after it reports where it stopped."""
    site = hadoop_alone.environment()
    patient = start(site, *DRIVERS)
    (impatient,) = start(site, NATIVE, retry_s=1)
    hadoop_alone.kill("datanode")
    for reader in [*patient, impatient]:
        reader.resume()
    assert "cannot be read at offset" in impatient.require_some()
    for reader in patient:
        reader.wait_for_line("; trying again")
    hadoop_alone.restart("datanode")
    for reader in patient:
        reader.require_all()
        reader.wait_for_line(" answers again, after ")


def test_a_connection_hangs(start: Start, uploaded: str, hadoop: Cluster, tmp_path: Path) -> None:
    """After so long without a byte the error names slice and offset; a shorter pause is none."""
    with start_proxy(hadoop, tmp_path) as (proxy, site):
        begun = start(site, *DRIVERS, silence_s=6)
        (patient,) = start(site, NATIVE, silence_s=10 * PATIENCE_S)
        proxy.stall(after_bytes=3_000_000)
        for reader in [*begun, patient]:
            reader.resume()
        for reader in begun:
            message = reader.require_some()
            assert message.startswith(f"no bytes of {uploaded}/train/train-0000")
            assert ".tfrecord at offset " in message and " for 6 s; " in message
        assert proxy.stalled >= 3  # connections
        proxy.go_on()
        patient.require_all()
