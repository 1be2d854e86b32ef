import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etl.errors import EnvironmentFailure
from etl.images import sandbox
from etl.images.config import MIN_MEMORY_BYTES, Limits, NormalizeConfig
from etl.images.normalize import normalize_image
from etl.images.result import NormalizedImage, Reason, Reject
from etl.images.sandbox import DecodeWorker
from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, run, succeeded, wait_until
from tests.lib.pictures.base import save

pytestmark = pytest.mark.integration

CONFIG = NormalizeConfig(16, 16, format="raw")


def picture(kind: str, side: int = 40, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return save(pixels, kind, **options)


SUSPICIOUS = picture("WEBP")


@pytest.fixture
def worker() -> Iterator[DecodeWorker]:
    with DecodeWorker(CONFIG) as worker:
        yield worker


def process_of(worker: DecodeWorker) -> int | None:
    return None if worker._started is None else worker._started[0].pid


def started(worker: DecodeWorker) -> int:
    """The process of a worker that has decoded an image."""
    assert isinstance(worker.normalize(SUSPICIOUS), NormalizedImage)
    worker_pid = process_of(worker)
    assert worker_pid is not None
    return worker_pid


def reason_of(result: NormalizedImage | Reject) -> Reason | None:
    return result.reason if isinstance(result, Reject) else None


def test_plain_images_need_no_worker_and_others_come_back_as_they_would_here(worker: DecodeWorker) -> None:
    for kind in ("JPEG", "PNG", "PPM"):
        assert worker.normalize(picture(kind)) == normalize_image(picture(kind), CONFIG)
        assert process_of(worker) is None
    suspicious = [picture("JPEG", progressive=True), picture("GIF"), SUSPICIOUS, picture("TIFF"), picture("BMP")]
    for data in (*suspicious, SUSPICIOUS[:200], b"", b"no image"):
        assert worker.normalize(data) == normalize_image(data, CONFIG)
    assert process_of(worker) == started(worker)


@pytest.mark.witness
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGSEGV, Reason.CRASHED), (signal.SIGABRT, Reason.CRASHED), (signal.SIGPROF, Reason.TOO_SLOW)],
)
def test_an_image_that_ends_a_worker_is_a_reject(worker: DecodeWorker, number: signal.Signals, reason: Reason) -> None:
    """The signal comes from outside, in the middle of the image: no decoder at hand is known to crash."""
    worker_pid = started(worker)
    os.kill(worker_pid, signal.SIGSTOP)  # the image waits in the pipe, and whoever sent it for the answer

    def end() -> None:
        os.kill(worker_pid, number)
        with suppress(ProcessLookupError):
            os.kill(worker_pid, signal.SIGCONT)

    timer = threading.Timer(0.2, end)
    timer.start()
    assert reason_of(worker.normalize(SUSPICIOUS)) == reason
    timer.join()
    assert started(worker) != worker_pid


FRAMED = {"GIF", "WEBP", "TIFF", "PNG"}


@pytest.mark.parametrize(
    ("limit", "kept", "refused", "reason"),
    [
        ("pixels", 400, 399, Reason.TOO_MANY_PIXELS),
        ("frames", 3, 2, Reason.TOO_MANY_FRAMES),
        ("aspect", 4.0, 3.9, Reason.BAD_ASPECT),
        ("least_side", 10, 11, Reason.TOO_SMALL),
    ],
)
def test_each_limit_is_held_in_every_format(limit: str, kept: float, refused: float, reason: Reason) -> None:
    """Of three frames of 40x10 where there can be more than one: the very limit is kept, and one less refused."""
    others = [Image.new("RGB", (40, 10), color) for color in ("red", "green", "blue")]
    for value in (kept, refused):
        limits = Limits(**{limit: value})  # type: ignore[arg-type] # of several types
        with DecodeWorker(replace(CONFIG, limits=limits)) as worker:
            for kind in FRAMED | ({"JPEG", "PPM", "BMP", "AVIF", "JPEG2000"} if limit != "frames" else set()):
                frames = {"save_all": True, "append_images": others[1:]} if kind in FRAMED else {}
                result = worker.normalize(save(others[0], kind, **frames))
                assert reason_of(result) == (reason if value != kept else None)


WITH_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (700 << 20, 700 << 20))
from tests.etl.images.test_sandbox import CONFIG, SUSPICIOUS, DecodeWorker
with DecodeWorker(CONFIG) as worker:
    print(type(worker.normalize(SUSPICIOUS)).__name__)
"""


def test_a_limit_of_the_caller_that_is_lower_holds() -> None:
    assert succeeded(run("python", "-c", WITH_LIMIT)).stdout == "NormalizedImage\n"


def test_an_image_that_takes_too_much_processor_time_is_a_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_WALL_RATIO", 30_000)  # of the limit, however late the worker has its processor
    slow = picture("PNG", side=1500, compress_level=1, icc_profile=b"x")
    with DecodeWorker(NormalizeConfig(16, 16, limits=Limits(seconds=0.01))) as worker:
        result = worker.normalize(slow)
        assert result == Reject(Reason.TOO_SLOW, "more than 0.01 s of processor time")


@pytest.mark.witness
@pytest.mark.parametrize("side", [40, 1200])
def test_a_worker_that_hangs_is_ended(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that fits into the buffers of a socket, and one that does not."""
    image = picture("TIFF", side)
    with DecodeWorker(CONFIG) as worker:
        worker_pid = started(worker)
        os.kill(worker_pid, signal.SIGSTOP)
        monkeypatch.setattr(sandbox, "MAX_WALL_RATIO", 0.02)  # of the limit of 10 s
        assert worker.normalize(image) == Reject(Reason.TOO_SLOW, "no answer in 0.2 s")
        assert not Path(f"/proc/{worker_pid}").exists()


def test_images_that_take_too_much_memory_are_rejects_whatever_decodes_them() -> None:
    """Some libraries say that the file is broken then. One worker serves them all."""
    ways: dict[str, dict[str, object]] = {"PNG": {"icc_profile": b"x"}, "TIFF": {"compression": "tiff_lzw"}}
    ways["WEBP"] = {"lossless": True, "quality": 0}
    limits = Limits(memory_bytes=MIN_MEMORY_BYTES)
    with DecodeWorker(replace(CONFIG, limits=limits)) as worker:
        assert reason_of(worker.normalize(SUSPICIOUS + bytes(MIN_MEMORY_BYTES))) == Reason.OUT_OF_MEMORY, "the file"
        for kind in (*ways, "GIF", "BMP", "JPEG2000", "AVIF"):
            side = 2600 if kind in ("WEBP", "JPEG2000") else 3400
            flat = Image.new("RGB", (side, side))
            result = worker.normalize(save(flat, kind, **ways.get(kind, {})))
            assert result == Reject(Reason.OUT_OF_MEMORY, f"more than {MIN_MEMORY_BYTES} bytes"), kind
            assert isinstance(worker.normalize(picture(kind)), NormalizedImage)


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("PNG", "I;16"), ("TIFF", "RGB")])
def test_the_default_memory_is_enough_for_as_many_pixels(kind: str, mode: str) -> None:
    """A PNG of 97 megapixels was within the default --max-pixels, and beyond the default --max-memory."""
    side = 3500
    data = save(Image.new(mode, (side, side)), kind)
    memory_bytes = Limits.default_memory(100_000_000, 0) * side * side // 100_000_000 + len(data)
    with DecodeWorker(replace(CONFIG, limits=Limits(memory_bytes=memory_bytes))) as worker:
        assert isinstance(worker.normalize(data), NormalizedImage)


@pytest.mark.parametrize(("number", "is_same"), [(signal.SIGKILL, False), (signal.SIGINT, True)])
def test_a_signal_from_others_costs_no_image(worker: DecodeWorker, number: signal.Signals, is_same: bool) -> None:
    """A worker that was killed is started again; Ctrl-C, which its owner handles, does not reach it."""
    worker_pid = started(worker)
    os.kill(worker_pid, number)
    assert (started(worker) == worker_pid) is is_same


def test_one_that_others_end_again_and_again_is_a_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(DecodeWorker):
        def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
            process, connection = super()._start()
            process.kill()
            return process, connection

    with Ended(CONFIG) as worker, pytest.raises(EnvironmentFailure, match="was ended twice"):
        worker.normalize(SUSPICIOUS)
    monkeypatch.setattr(sandbox, "START_TIMEOUT_S", 0)  # it is killed while it starts
    with DecodeWorker(CONFIG) as another, pytest.raises(EnvironmentFailure, match="cannot start"):
        another.normalize(SUSPICIOUS)


def test_the_worker_ends_with_its_owner(worker: DecodeWorker) -> None:
    worker_pid = started(worker)
    os.kill(worker_pid, signal.SIGSTOP)  # in the middle of an image that takes for ever, say
    worker.__exit__()
    assert not Path(f"/proc/{worker_pid}").exists()


OWNER = """
import time
from tests.etl.images.test_sandbox import CONFIG, SUSPICIOUS, DecodeWorker
worker = DecodeWorker(CONFIG)
worker.normalize(SUSPICIOUS)
print(worker._started[0].pid, flush=True)
time.sleep(60)
"""


def test_the_worker_ends_with_an_owner_that_is_killed() -> None:
    words = [sys.executable, "-c", OWNER]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        worker_pid = int(process.stdout.readline())
        os.kill(worker_pid, signal.SIGSTOP)  # it sees no end of its pipe
        process.kill()
    wait_until(lambda: Process.find(worker_pid) is None)
