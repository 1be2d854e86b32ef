"""What must become of damaged images and containers: good, or told why not. Trials for `tests.etl.trials`."""

import ctypes
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from etl.config import NormalizeConfig
from etl.errors import DataError, UsageError
from etl.images import Normalized, Reason, Reject, channel_sums, normalize_image
from tests.etl.containers import containers
from tests.etl.mutations import Mutation, mutate
from tests.etl.pictures import pictures

LONGEST_DETAIL = 200
_LIBC, _M_PERTURB = ctypes.CDLL(None), -6
_LARGEST_FILE = 20_000
_CONFIGS = tuple(
    NormalizeConfig(height=height, width=width, fit=fit, color=color, format="raw", quality=95)
    for height, width in ((16, 16), (40, 48), (60, 30))
    for fit in ("crop", "exact")
    for color in ("rgb", "gray")
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


def try_picture(number: int) -> str:
    """'good' or the reason of the reject, for a picture of the table; which it must be, tests of the table say."""
    name, picture = list(pictures().items())[number]
    config = _CONFIGS[number % len(_CONFIGS)]
    try:
        return _checked(normalize_image(picture.data, config), config)
    except Exception as error:
        error.add_note(name)
        raise


def try_image(number: int) -> str:
    """'good' or the reason of the reject; the same each time, whatever memory held before."""
    mutation, config = image_mutation(number), _CONFIGS[number % len(_CONFIGS)]
    try:
        fill_memory(0x55)
        result = normalize_image(mutation.data, config)
        fill_memory(0xAA)
        again = normalize_image(mutation.data, config)
        assert result == again, f"not the same each time: {_told(result)}, then {_told(again)}"
        return _checked(result, config)
    except Exception as error:
        error.add_note(str(mutation))
        raise


def _told(result: Normalized | Reject) -> str:
    return str(result) if isinstance(result, Reject) else f"an image with the sums {result.sums}"


def fill_memory(value: int) -> None:
    """From now on memory that is allocated holds this byte, wherever nobody writes to it: mallopt(3), in glibc."""
    _LIBC.mallopt(_M_PERTURB, value)


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
