"""What must become of damaged images and containers: good, or told why not. Trials for `tests.lib.damage.trials`."""

import atexit
import ctypes
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from etl.errors import DataError, UsageError
from etl.images.config import NormalizeConfig
from etl.images.normalize import Normalized, Reason, Reject, channel_sums
from etl.images.sandbox import ImageHelper
from tests.lib.damage.containers import containers
from tests.lib.damage.mutations import Mutation, mutate
from tests.lib.pictures.table import pictures

LONGEST_DETAIL = 200
_LIBC, _M_PERTURB = ctypes.CDLL(None), -6
_LARGEST_FILE = 20_000
_FILLS = (0x55, 0xAA)
_CONFIGS = tuple(
    NormalizeConfig(height=height, width=width, fit=fit, color=color, format="raw")
    for height, width, fit, color in ((16, 16, "crop", "rgb"), (40, 48, "exact", "gray"), (60, 30, "crop", "rgb"))
)


@cache
def _images() -> dict[str, bytes]:
    """Whole images, by name."""
    whole = (picture for picture in pictures().values() if picture.pixels is not None)
    return {picture.name: picture.data for picture in whole if len(picture.data) <= _LARGEST_FILE}


def image_mutation(number: int) -> Mutation:
    return mutate(number, _images())


def container_mutation(number: int) -> Mutation:
    """Of one file of a container; its origin is CONTAINER/FILE."""
    files = {f"{name}/{file}": data for name, each in containers().items() for file, data in each.files.items()}
    return mutate(number, files)


@cache
def _helper(config: NormalizeConfig, fill: int) -> ImageHelper:
    """As a task of the job has one; ``fill`` is what memory held before."""
    helper = ImageHelper(config)
    atexit.register(helper.__exit__)
    return helper


def try_picture(number: int) -> str:
    """'good' or the reason of the reject, for a picture of the table; which it must be, tests of the table say."""
    name, picture = list(pictures().items())[number]
    return _try(picture.data, number, name)


def try_image(number: int) -> str:
    """'good' or the reason of the reject, for a mutation."""
    mutation = image_mutation(number)
    return _try(mutation.data, number, str(mutation))


def _try(data: bytes, number: int, name: str) -> str:
    """How an image ends: the same each time, whatever memory held before."""
    config = _CONFIGS[number % len(_CONFIGS)]
    try:
        results = []
        for fill in _FILLS:
            fill_memory(fill)
            results.append(_helper(config, fill).normalize(data))
        assert results[0] == results[1], f"not the same each time: {', then '.join(map(_told, results))}"
        return _checked(results[0], config)
    except Exception as error:
        error.add_note(name)
        raise


def _told(result: Normalized | Reject) -> str:
    return str(result) if isinstance(result, Reject) else f"an image with the sums {result.sums}"


def fill_memory(value: int) -> None:
    """From now on memory that is allocated, here or in processes yet to start, holds this byte where nobody writes.

    By mallopt(3) of glibc.
    """
    _LIBC.mallopt(_M_PERTURB, value)
    os.environ["MALLOC_PERTURB_"] = str(value)


def _checked(result: Normalized | Reject, config: NormalizeConfig) -> str:
    if isinstance(result, Reject):
        assert isinstance(result.reason, Reason), f"{result.reason!r} is no reason"
        assert result.detail.isprintable(), f"the detail {result.detail!r} is no line of text"
        assert len(result.detail) <= LONGEST_DETAIL, f"its detail has {len(result.detail)} characters"
        return str(result.reason.value)
    pixels = np.frombuffer(result.encoded, np.uint8).reshape(config.height, config.width, config.channels)
    assert channel_sums(pixels) == (result.sums, result.squares), "its sums are not those of its pixels"
    return "good"


def try_container(number: int) -> str:
    """'good', or the name of the error that tells in one line what is wrong."""
    mutation = container_mutation(number)
    name, _, damaged = mutation.origin.partition("/")
    container = containers()[name]
    with tempfile.TemporaryDirectory() as folder:
        for file, data in container.files.items():
            (Path(folder) / file).write_bytes(mutation.data if file == damaged else data)
        try:
            container.read(Path(folder))
        except (DataError, UsageError) as error:
            assert str(error).isprintable(), f"{mutation}: {str(error)!r} is no line of text"
            return type(error).__name__
        except Exception as error:
            error.add_note(str(mutation))
            raise
    return "good"
