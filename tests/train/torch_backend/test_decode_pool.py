"""Batches decoded in processes beside those decoded in threads. The module imports no PyTorch."""

import signal
import sys

import numpy as np
import pytest

from etl.errors import DataError, EnvironmentFailure
from tests.lib.commands import REPOSITORY, run
from tests.lib.examples import EVERYTHING, batch_of, example, manifest_of
from train.reader.batches import RecordBatch
from train.torch_backend.decode import Decoder
from train.torch_backend.decode_pool import DecodeProcesses, DecodeThreads, Seeds

pytestmark = [pytest.mark.integration, pytest.mark.witness]

DECODER = Decoder(manifest_of("PNG"), (24, 24), EVERYTHING)
SEEDS: Seeds = [(3, 0), (3, 1), None, (3, 3), (3, 0)]

KILLED = """
import os, signal
from tests.train.torch_backend.test_decode_pool import DECODER, SEEDS, numbered
from train.torch_backend.decode_pool import DecodeProcesses
print(DecodeProcesses(DECODER, 2, 1).begin(numbered(2), SEEDS[:2]).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def numbered(count: int) -> RecordBatch:
    return batch_of([example(number, "PNG") for number in range(count)])


def test_pixels_are_those_of_threads() -> None:
    """The second batch is in memory that has grown, the third in that of the first, whose pixels nobody wanted."""
    processes = DecodeProcesses(DECODER, 2, 2)
    expected = DecodeThreads(DECODER, 3).begin(numbered(5), SEEDS)
    labels_and_keys = expected.result()
    processes.begin(numbered(2), SEEDS[:2]).cancel()
    for _ in range(2):
        begun = processes.begin(numbered(5), SEEDS)
        assert begun.result() == labels_and_keys
        assert np.array_equal(begun.pixels, expected.pixels)
    assert not np.array_equal(expected.pixels[0], expected.pixels[4])


def test_a_picture_that_cannot_be_decoded_is_named() -> None:
    examples = [example(0, "PNG"), example(1, "RAW")]
    for pool in (DecodeThreads(DECODER, 2), DecodeProcesses(DECODER, 2, 1)):
        begun = pool.begin(batch_of(examples), SEEDS[:2])
        with pytest.raises(DataError, match=r"^0001: its slice has a picture that cannot be decoded"):
            begun.result()
        begun.cancel()
        assert pool.begin(batch_of(examples[:1]), SEEDS[:1]).result() == [(0, b"0000")]


def test_a_process_that_is_lost_is_named() -> None:
    pool = DecodeProcesses(DECODER, 1, 1)
    begun = pool.begin(numbered(1), SEEDS[:1])
    assert begun.result()
    begun.cancel()
    lost = pool._idle.get()
    assert lost._started is not None
    lost._started[0].kill()
    pool._idle.put(lost)
    with pytest.raises(EnvironmentFailure, match="ended with status -9"):
        pool.begin(numbered(1), SEEDS[:1]).result()


def test_processes_end_with_the_one_that_started_them() -> None:
    """They have its output, which is at its end only when all of them have ended."""
    killed = run(sys.executable, "-c", KILLED, PYTHONPATH=str(REPOSITORY))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == "[(0, b'0000'), (1, b'0001')]\n"
