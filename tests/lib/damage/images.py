"""Damaged images end as good or with a reason. Trials for `tests.lib.damage.trials`."""

import atexit
import ctypes
import os
from functools import cache

import numpy as np

from etl.images.config import NormalizeConfig
from etl.images.normalize import channel_sums
from etl.images.result import MAX_DETAIL_CHARS, NormalizedImage, Reject
from etl.images.sandbox import DecodeWorker
from tests.lib.damage.mutations import mutate
from tests.lib.pictures.table import pictures

_LIBC, _M_PERTURB = ctypes.CDLL(None), -6
_MAX_FILE_BYTES = 20_000
_FILLS = (0x55, 0xAA)
_CONFIGS = tuple(
    NormalizeConfig(height=height, width=width, fit=fit, color=color, format="raw")
    for height, width, fit, color in ((16, 16, "crop", "rgb"), (40, 48, "exact", "gray"), (60, 30, "crop", "rgb"))
)


def try_picture(number: int) -> str:
    """'good' or the reason of the reject, for a picture of the table."""
    name, picture = list(pictures().items())[number]
    return _try(picture.data, number, name)


def try_image(number: int) -> str:
    """'good' or the reason of the reject, for a damaged image."""
    name, data = mutate(number, _images())
    return _try(data, number, name)


@cache
def _images() -> dict[str, bytes]:
    whole = (picture for picture in pictures().values() if picture.pixels is not None)
    return {picture.name: picture.data for picture in whole if len(picture.data) <= _MAX_FILE_BYTES}


def _try(data: bytes, number: int, name: str) -> str:
    """The outcome of an image, which does not depend on the earlier content of memory."""
    config = _CONFIGS[number % len(_CONFIGS)]
    try:
        result, other = (_normalize_after(fill, config, data) for fill in _FILLS)
        assert result == other, "not the same each time"
        if isinstance(result, Reject):
            assert result.detail.isprintable(), result.detail
            assert len(result.detail) <= MAX_DETAIL_CHARS, result.detail
            return str(result.reason.value)
        pixels = np.frombuffer(result.encoded, np.uint8).reshape(config.height, config.width, config.channels)
        assert channel_sums(pixels) == (result.sums, result.squares), "its sums are not those of its pixels"
    except Exception as error:
        error.add_note(name)
        raise
    return "good"


def _normalize_after(fill: int, config: NormalizeConfig, data: bytes) -> NormalizedImage | Reject:
    """New memory, here and in processes yet to start, contains this byte until it is written: mallopt(3)."""
    _LIBC.mallopt(_M_PERTURB, fill)
    os.environ["MALLOC_PERTURB_"] = str(fill)
    return _worker(config, fill).normalize(data)


@cache
def _worker(config: NormalizeConfig, fill: int) -> DecodeWorker:
    worker = DecodeWorker(config)
    atexit.register(worker.__exit__)
    return worker
