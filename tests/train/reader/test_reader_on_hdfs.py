"""The reader on a real HDFS, by both drivers: its DataNode dies, connections break or hang, files change or go."""

import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.hadoop.proxy import Proxy, before_datanode
from tests.lib.commands import REPOSITORY, environment
from tests.lib.ranks.read_epoch import CACHE_BYTES
from tests.train.reader.test_reader_faults import make_slices, read_examples, read_manifest
from train.reader.cache import SliceCache

pytestmark = pytest.mark.integration

DRIVERS = (NATIVE, LIBHDFS)
RECORDS = 400  # of 49 KB, in 4 slices
LITTLE_AHEAD = {"lanes": 2, "budget_bytes": 6_000_000}  # of 20 MB
ENDS_WITHIN_S = 60


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


@dataclass
class Reader:
    """A process that reads an epoch, and waits after the first batch until it is told to go on."""

    process: "subprocess.Popen[str]"
    log: Path

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def told(self, line: str) -> bool:
        return line in self.log.read_text()

    def result(self) -> Any:
        out, _ = self.process.communicate(timeout=ENDS_WITHIN_S)
        assert self.process.returncode == 0, self.log.read_text()
        return json.loads(out)


class Readers:
    """Starts readers, which are begun when they are returned; none is left at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # what they leave goes there
        self._started: list[Reader] = []

    def start(self, folder: Place, site: dict[str, str], *drivers: str, **reading: object) -> list[Reader]:
        """One for each of ``drivers``, all reading ``folder`` at once."""
        words = [sys.executable, "-m", "tests.lib.ranks.read_epoch", folder.uri, json.dumps(LITTLE_AHEAD | reading)]
        begun = []
        for driver in drivers:
            log = self.folder / f"reader-{len(self._started)}.log"
            with log.open("w") as errors:
                process = subprocess.Popen(
                    words,
                    cwd=REPOSITORY,
                    env=environment(**site, **{DRIVER_VARIABLE: driver}),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            begun.append(Reader(process, log))
        self._started += begun
        for reader in begun:
            assert reader.process.stdout is not None
            assert reader.process.stdout.readline() == "begun\n", reader.log.read_text()
        return begun

    def end(self) -> None:
        for reader in self._started:
            reader.process.kill()
            reader.process.communicate()


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    readers = Readers(tmp_path)
    yield readers
    readers.end()


def wait_until_told(readers: list[Reader], line: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not all(reader.told(line) for reader in readers):
        assert time.monotonic() < deadline, [reader.log.read_text() for reader in readers]
        time.sleep(0.05)


def names_slice_and_offset(message: str, folder: Place) -> bool:
    return f"{folder}/train/train-0000" in message and ".tfrecord " in message and " at offset " in message


def test_a_datanode_dies_and_comes_back(
    readers: Readers, uploaded: Place, hadoop_alone: Cluster, written: list[list[int]]
) -> None:
    """Those that are patient read on from where they were; one that is not says where it stopped."""
    site = hadoop_alone.environment()
    patient = readers.start(uploaded, site, *DRIVERS)
    (impatient,) = readers.start(uploaded, site, NATIVE, retry_s=1)
    hadoop_alone.kill("datanode")
    for reader in [*patient, impatient]:
        reader.go_on()
    kind, message = impatient.result()["raised"]
    assert kind == "EnvironmentFailure"
    assert "cannot be read at offset" in message
    wait_until_told(patient, "; trying again")
    hadoop_alone.restart("datanode")
    for reader in patient:
        result = reader.result()
        assert result["raised"] is None
        assert sorted(result["examples"]) == written
        assert reader.told(" answers again, after ")


@pytest.fixture
def proxied(hadoop_undisturbed: Cluster, tmp_path: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy before the DataNode, and the site of those who are to meet it."""
    with before_datanode(hadoop_undisturbed, tmp_path) as found:
        yield found


@pytest.mark.parametrize("driver", DRIVERS)
def test_connections_are_reset(
    driver: str, readers: Readers, uploaded: Place, proxied: tuple[Proxy, dict[str, str]], written: list[list[int]]
) -> None:
    """At once, again and again, which clients do not mend; and in the middle, which they may."""
    proxy, site = proxied
    (reader,) = readers.start(uploaded, site, driver, lanes=1)
    assert proxy.passed_bytes > 0
    proxy.reset([1] * 5 + [700_000] * 4)
    reader.go_on()
    result = reader.result()
    assert (result["raised"], sorted(result["examples"])) == (None, written)
    assert proxy.resets == 9
    assert reader.told(" answers again, after ")


def test_a_connection_hangs(
    readers: Readers, uploaded: Place, proxied: tuple[Proxy, dict[str, str]], written: list[list[int]]
) -> None:
    """No bytes for so long end it, with slice and offset; a shorter pause does not."""
    proxy, site = proxied
    begun = readers.start(uploaded, site, *DRIVERS, silence_s=3)
    (patient,) = readers.start(uploaded, site, NATIVE, silence_s=30)
    proxy.stall(after_bytes=3_000_000)
    for reader in [*begun, patient]:
        reader.go_on()
    for reader in begun:
        result = reader.result()
        kind, message = result["raised"]
        assert kind == "EnvironmentFailure"
        assert message.startswith("no bytes of ")
        assert " for 3 s; " in message
        assert names_slice_and_offset(message, uploaded)
        assert 3 <= result["seconds"] < 10
        assert 0 < len(result["examples"]) < RECORDS
    assert proxy.stalled >= 3
    proxy.go_on()
    result = patient.result()
    assert (result["raised"], sorted(result["examples"])) == (None, written)


def test_what_is_cached_does_not_cross_the_network(
    readers: Readers, uploaded: Place, proxied: tuple[Proxy, dict[str, str]], slices: Path, written: list[list[int]]
) -> None:
    proxy, site = proxied
    found = read_manifest(slices).splits["train"]
    with SliceCache(readers.folder / "cache", CACHE_BYTES) as cache:
        for each in found:
            cache.fetch(uploaded, each)
        assert all(cache.place_of(each) for each in found)
    begun = readers.start(uploaded, site, *DRIVERS, cache=str(readers.folder / "cache"))
    for reader in begun:
        reader.go_on()
        assert sorted(reader.result()["examples"]) == written
    assert 0 < proxy.passed_bytes < 100_000  # the manifest, blocks and indices


@pytest.mark.parametrize("harm", ["deleted", "replaced", pytest.param("truncated", marks=pytest.mark.chaos)])
def test_slices_change_while_they_are_read(
    harm: str, readers: Readers, changing: Place, hadoop_undisturbed: Cluster, written: list[list[int]]
) -> None:
    """What was open may be read to its end or not; no example is wrong, and the slice is named."""
    begun = readers.start(changing, hadoop_undisturbed.environment(), *DRIVERS)
    found = [Place(changing.filesystem, info.path) for info in (changing / "train").children()]
    files = [file for file in found if file.name.endswith(".tfrecord")]
    contents = [file.read_bytes() for file in files]
    for file, other in zip(files, contents[1:] + contents[:1], strict=True):
        file.delete()
        if harm != "deleted":
            write(file, other if harm == "replaced" else other[:1_000_000])
    for reader in begun:
        reader.go_on()
    for reader in begun:
        result = reader.result()
        kind, message = result["raised"]
        assert kind == "DataError"
        assert any(file.uri in message for file in files)
        assert (" is missing" if harm == "deleted" else " is damaged at offset ") in message
        assert all(each in written for each in result["examples"])
        assert 0 < len(result["examples"]) < RECORDS
