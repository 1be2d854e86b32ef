"""The reader on a real HDFS, by both drivers: its DataNode dies, connections break or hang, files change or go."""

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.hadoop.proxy import Proxy, before_datanode
from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, wait_until
from tests.train.reader.test_reader_faults import make_slices, read_examples

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
    root = make_slices(few, f"train={RECORDS},test=rest", 4, "--size", 128, "--color", "rgb")
    return root / "slices" / "default"


@pytest.fixture(scope="module")
def written(slices: Path) -> list[list[int]]:
    """Number and CRC32C of every example."""
    return sorted([number, crc32c(example)] for number, example in read_examples(slices).items())


@pytest.fixture(scope="module")
def uploaded(slices: Path, hadoop: Cluster) -> Iterator[Place]:
    """The same on HDFS."""
    with hadoop.undisturbed():
        place = upload(slices, hadoop)
    yield place


@pytest.fixture
def changing(slices: Path, hadoop_undisturbed: Cluster) -> Place:
    """The same on HDFS, for one test to change."""
    return upload(slices, hadoop_undisturbed)


def upload(slices: Path, cluster: Cluster) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        folder = open_place(f"{cluster.uri}/tests/{uuid.uuid4().hex}")
        (folder / "train").make_folder()
        (folder / "test").make_folder()
        files = [path for path in slices.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(len(files)) as pool:  # most of the time goes into closing them
            list(pool.map(lambda path: write(folder / str(path.relative_to(slices)), path.read_bytes()), files))
    return folder


def write(place: Place, data: bytes) -> None:
    with place.filesystem.open_new(place.path) as file:
        file.write(data)


class Reader:
    """A process that reads an epoch, and waits after the first batch until it is to resume."""

    def __init__(self, log: Path, folder: Place, site: dict[str, str], driver: str, reading: dict[str, object]) -> None:
        self.log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lib.ranks.read_epoch", folder.uri, json.dumps(LITTLE_AHEAD | reading)],
                cwd=REPOSITORY,
                env=environment(**site, **{DRIVER_VARIABLE: driver}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_for_first_batch(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n", self.log.read_text()

    def resume(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait_for_line(self, line: str) -> None:
        wait_until(lambda: line in self.log.read_text(), self.log.read_text)

    def result(self) -> Any:
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, self.log.read_text()
        return json.loads(out)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Readers:
    """Starts readers of what was ``written``; none is left at the end."""

    def __init__(self, folder: Path, written: list[list[int]]) -> None:
        self._folder, self._written = folder, written
        self.started: list[Reader] = []

    def start(self, folder: Place, site: dict[str, str], *drivers: str, **reading: object) -> list[Reader]:
        """One for each driver, all at once; returns when each has its first batch."""
        begun = [
            Reader(self._folder / f"reader-{number}.log", folder, site, driver, reading)
            for number, driver in enumerate(drivers, len(self.started))
        ]
        self.started += begun
        for reader in begun:
            reader.wait_for_first_batch()
        return begun

    def require_all(self, reader: Reader) -> None:
        result = reader.result()
        assert (result["raised"], sorted(result["examples"])) == (None, self._written)

    def require_some(self, reader: Reader, error: str, after_s: float = 0) -> str:
        """It ended with this error, no sooner than that; returns the message."""
        result = reader.result()
        kind, message = result["raised"]
        assert kind == error
        assert 0 < len(result["examples"]) < RECORDS
        assert all(each in self._written for each in result["examples"])
        assert result["seconds"] >= after_s
        return str(message)


@pytest.fixture
def readers(tmp_path: Path, written: list[list[int]]) -> Iterator[Readers]:
    readers = Readers(tmp_path, written)
    yield readers
    for reader in readers.started:
        reader.kill()


def test_a_datanode_dies_and_comes_back(readers: Readers, uploaded: Place, hadoop_alone: Cluster) -> None:
    """A reader within its time for retries reads on from where it was; one after it reports where it stopped."""
    site = hadoop_alone.environment()
    patient = readers.start(uploaded, site, *DRIVERS)
    (impatient,) = readers.start(uploaded, site, NATIVE, retry_s=1)
    hadoop_alone.kill("datanode")
    for reader in [*patient, impatient]:
        reader.resume()
    assert "cannot be read at offset" in readers.require_some(impatient, "EnvironmentFailure")
    for reader in patient:
        reader.wait_for_line("; trying again")
    hadoop_alone.restart("datanode")
    for reader in patient:
        readers.require_all(reader)
        reader.wait_for_line(" answers again, after ")


@pytest.fixture
def proxied(hadoop_undisturbed: Cluster, tmp_path: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy before the DataNode, and the site of those who are to meet it."""
    with before_datanode(hadoop_undisturbed, tmp_path) as found:
        yield found


@pytest.mark.parametrize("driver", DRIVERS)
def test_connections_are_reset(
    driver: str, readers: Readers, uploaded: Place, proxied: tuple[Proxy, dict[str, str]]
) -> None:
    """At once, again and again, which clients do not mend; and in the middle, which they may."""
    proxy, site = proxied
    (reader,) = readers.start(uploaded, site, driver, lanes=1)
    assert proxy.passed_bytes > 0
    proxy.reset([1] * 5 + [700_000] * 4)
    reader.resume()
    readers.require_all(reader)
    assert proxy.resets == 9
    reader.wait_for_line(" answers again, after ")


def test_a_connection_hangs(readers: Readers, uploaded: Place, proxied: tuple[Proxy, dict[str, str]]) -> None:
    """After so long without a byte the error names slice and offset; a shorter pause is none."""
    proxy, site = proxied
    begun = readers.start(uploaded, site, *DRIVERS, silence_s=3)
    (patient,) = readers.start(uploaded, site, NATIVE, silence_s=10 * PATIENCE_S)
    proxy.stall(after_bytes=3_000_000)
    for reader in [*begun, patient]:
        reader.resume()
    for reader in begun:
        message = readers.require_some(reader, "EnvironmentFailure", after_s=3)
        assert message.startswith(f"no bytes of {uploaded}/train/train-0000")
        assert ".tfrecord at offset " in message and " for 3 s; " in message
    assert proxy.stalled >= 3
    proxy.go_on()
    readers.require_all(patient)


@pytest.mark.parametrize("harm", ["deleted", "replaced"])
def test_slices_change_while_they_are_read(
    harm: str, readers: Readers, changing: Place, hadoop_undisturbed: Cluster
) -> None:
    """What was open may be read to its end or not; no example is wrong, and the slice is named."""
    begun = readers.start(changing, hadoop_undisturbed.environment(), *DRIVERS)
    found = [Place(changing.filesystem, info.path) for info in (changing / "train").children()]
    files = [file for file in found if file.name.endswith(".tfrecord")]
    contents = [file.read_bytes() for file in files]
    for file, other in zip(files, contents[1:] + contents[:1], strict=True):
        file.delete()
        if harm == "replaced":
            write(file, other)
    for reader in begun:
        reader.resume()
    for reader in begun:
        message = readers.require_some(reader, "DataError")
        assert any(file.uri in message for file in files)
        assert (" is missing" if harm == "deleted" else " is damaged at offset ") in message
