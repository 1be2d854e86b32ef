import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etl.config import NormalizeConfig
from etl.errors import EnvironmentFailure
from etl.image_helper import ImageHelper
from etl.images import Normalized, normalize_image
from etl.limits import Limits
from etl.rejects import Reason, Reject

CONFIG = NormalizeConfig(16, 16, format="raw")


def picture(kind: str, side: int = 40, **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


SUSPICIOUS = picture("WEBP")


@pytest.fixture
def helper() -> Iterator[ImageHelper]:
    with ImageHelper(CONFIG) as helper:
        yield helper


def process_of(helper: ImageHelper) -> int | None:
    return None if helper._process is None else helper._process.pid


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PPM"])
def test_plain_images_need_no_helper(helper: ImageHelper, kind: str) -> None:
    assert helper.normalize(picture(kind)) == normalize_image(picture(kind), CONFIG)
    assert process_of(helper) is None


def test_others_come_back_from_one_process_as_they_would_here(helper: ImageHelper) -> None:
    suspicious = [picture("JPEG", progressive=True), picture("GIF"), SUSPICIOUS, picture("TIFF"), picture("BMP")]
    for data in (*suspicious, SUSPICIOUS[:200], b"", b"no image"):
        assert helper.normalize(data) == normalize_image(data, CONFIG)
    first = process_of(helper)
    assert first is not None
    assert isinstance(helper.normalize(SUSPICIOUS), Normalized)
    assert process_of(helper) == first


def test_what_passes_byte_for_byte_comes_back_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.image_helper.MOST_PIXELS_HERE", 1000)
    config = NormalizeConfig(40, 40, format="png", pass_through=True)
    data = picture("PNG", side=40)
    with ImageHelper(config) as helper:
        result = helper.normalize(data)
        assert process_of(helper) is not None
    assert isinstance(result, Normalized)
    assert result.encoded == data


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGSEGV, Reason.CRASHED),
        (signal.SIGABRT, Reason.CRASHED),
        (signal.SIGPROF, Reason.TOO_SLOW),
    ],
)
def test_an_image_that_ends_the_helper_is_a_reject_and_the_next_one_is_not(
    helper: ImageHelper, number: signal.Signals, reason: Reason
) -> None:
    """The signal comes from outside: no decoder at hand is known to crash."""
    helper.normalize(SUSPICIOUS)
    helper_pid = process_of(helper)
    assert helper_pid is not None
    os.kill(helper_pid, number)
    result = helper.normalize(SUSPICIOUS)
    assert isinstance(result, Reject)
    assert result.reason == reason
    assert isinstance(helper.normalize(SUSPICIOUS), Normalized)
    assert process_of(helper) != helper_pid


def test_an_image_that_takes_too_much_processor_time_is_a_reject() -> None:
    slow = picture("PNG", side=1500, compress_level=1, icc_profile=b"x")
    with ImageHelper(NormalizeConfig(16, 16, limits=Limits(seconds=0.01))) as helper:
        result = helper.normalize(slow)
        assert result == Reject(Reason.TOO_SLOW, "more than 0.01 s of processor time")


def test_a_helper_that_hangs_is_ended() -> None:
    with ImageHelper(NormalizeConfig(16, 16, limits=Limits(seconds=0.2))) as helper:
        helper.normalize(SUSPICIOUS)
        helper_pid = process_of(helper)
        assert helper_pid is not None
        os.kill(helper_pid, signal.SIGSTOP)
        began = time.monotonic()
        result = helper.normalize(SUSPICIOUS)
        assert isinstance(result, Reject)
        assert result.reason == Reason.TOO_SLOW
        assert time.monotonic() - began < 10
        assert not Path(f"/proc/{helper_pid}").exists()


def test_an_image_that_takes_too_much_memory_is_a_reject() -> None:
    large = b"GIF89a" + picture("GIF", side=8)[6:]
    buffer = io.BytesIO()
    Image.new("P", (9000, 9000)).save(buffer, "GIF")
    limits = Limits(memory_bytes=100 << 20)
    with ImageHelper(NormalizeConfig(16, 16, format="raw", limits=limits)) as helper:
        result = helper.normalize(buffer.getvalue())
        assert isinstance(result, Reject)
        assert result.reason == Reason.OUT_OF_MEMORY
        assert isinstance(helper.normalize(large), Normalized)


def test_a_helper_that_others_end_is_started_again(helper: ImageHelper) -> None:
    helper.normalize(SUSPICIOUS)
    helper_pid = process_of(helper)
    assert helper_pid is not None
    os.kill(helper_pid, signal.SIGKILL)
    assert isinstance(helper.normalize(SUSPICIOUS), Normalized)


def test_one_that_others_end_again_and_again_is_a_failure_of_the_machine(helper: ImageHelper) -> None:
    done = threading.Event()

    def end_all() -> None:
        while not done.wait(0.01):
            if (number := process_of(helper)) is not None:
                os.kill(number, signal.SIGKILL)

    thread = threading.Thread(target=end_all)
    thread.start()
    try:
        with pytest.raises(EnvironmentFailure, match="helper process"):
            helper.normalize(SUSPICIOUS)
    finally:
        done.set()
        thread.join()


def test_ctrl_c_is_not_for_the_helper(helper: ImageHelper) -> None:
    helper.normalize(SUSPICIOUS)
    helper_pid = process_of(helper)
    assert helper_pid is not None
    os.kill(helper_pid, signal.SIGINT)
    assert isinstance(helper.normalize(SUSPICIOUS), Normalized)
    assert process_of(helper) == helper_pid


def test_the_helper_ends_with_its_owner(helper: ImageHelper) -> None:
    helper.normalize(SUSPICIOUS)
    helper_pid = process_of(helper)
    helper.__exit__()
    assert not Path(f"/proc/{helper_pid}").exists()
