"""One table: every kind of image file becomes the right picture, channel by channel, or a reject with its reason."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from PIL import Image

from etl.images import pillow_modes
from etl.images.config import NormalizeConfig
from etl.images.normalize import normalize_image
from etl.images.result import Reject
from tests.lib.damage.images import try_image, try_picture
from tests.lib.damage.trials import run_trials
from tests.lib.pictures import matrix
from tests.lib.pictures.base import HEIGHT, Picture, Pixels, luma
from tests.lib.pictures.table import pictures

ROUNDED = 0.6  # grey levels on average, of the mean of 16 pixels
AS_IT_IS = NormalizeConfig(16, 16, fit="crop", format="raw")


def differs(data: bytes, pixels: Pixels, mean: float, worst: float, fit: str = "crop") -> str:
    """How a file normalised to the size and channels of ``pixels`` is further off than allowed; else empty."""
    height, width, channels = pixels.shape
    color = "gray" if channels == 1 else "rgb"
    result = normalize_image(data, replace(AS_IT_IS, height=height, width=width, color=color, fit=fit))
    if isinstance(result, Reject):
        return str(result)
    found = np.frombuffer(result.encoded, np.uint8).reshape(pixels.shape)
    return is_off(found, pixels, mean, worst)


def is_off(found: Pixels, pixels: Pixels, mean: float, worst: float) -> str:
    """The mean is of the worst channel."""
    distance = np.abs(found.astype(int) - pixels.astype(int))
    off = float(distance.mean(axis=(0, 1)).max())
    return "" if off <= mean and distance.max() <= worst else f"off by {off:.2f}, at most {distance.max()}"


def grayed(pixels: Pixels) -> Pixels:
    return np.round(luma(pixels)).astype(np.uint8)[..., None]


def fault(picture: Picture) -> str:
    """What is wrong with what becomes of a picture of the table; else empty."""
    if picture.pixels is not None:
        return differs(picture.data, picture.pixels, picture.mean, picture.worst) or differs(
            picture.data, grayed(picture.pixels), picture.mean + 1, picture.worst + 1
        )
    result = normalize_image(picture.data, AS_IT_IS)
    if not isinstance(result, Reject):
        return "it was taken for good"
    is_right = result.reason.value in picture.reasons and result.detail.isprintable() and len(result.detail) <= 200
    return "" if is_right else str(result)


def test_the_right_picture_or_the_right_reason() -> None:
    assert len(pictures()) > 250
    assert {name: found for name, picture in pictures().items() if (found := fault(picture))} == {}


@pytest.mark.parametrize("format", matrix.FORMATS)
def test_every_cell_of_the_matrix(format: str) -> None:
    found = matrix.matrix_of(format)
    assert len(found) > 9
    assert {picture.name: why for picture in found if (why := fault(picture))} == {}


@pytest.mark.parametrize("gray", [False, True])
def test_a_quarter_of_the_size_is_the_same_picture(gray: bool) -> None:
    """Decoders that decode small at once are to be right, too."""
    faults = {}
    for name, picture in pictures().items():
        if picture.pixels is not None and min(picture.pixels.shape[:2]) >= HEIGHT:
            height, width = picture.pixels.shape[:2]
            quarter = Image.fromarray(picture.pixels).resize((width // 4, height // 4), Image.Resampling.BOX)
            small = grayed(np.asarray(quarter)) if gray else np.asarray(quarter)
            faults[name] = differs(picture.data, small, picture.mean + ROUNDED, np.inf, "exact")
    assert len(faults) > 100
    assert {name: found for name, found in faults.items() if found} == {}


def test_a_wrong_picture_would_be_noticed() -> None:
    """The negative control: turned, mirrored, inverted, faded, or with its channels exchanged, no picture passes."""
    for picture in chain(pictures().values(), *map(matrix.matrix_of, matrix.FORMATS)):
        if picture.pixels is not None:
            for wrong in wrong_pictures(picture.pixels):
                assert is_off(wrong, picture.pixels, picture.mean, picture.worst), picture.name
                if min(picture.pixels.shape[:2]) >= HEIGHT and picture.name in pictures():
                    assert is_off(wrong, picture.pixels, picture.mean + ROUNDED, np.inf), picture.name
    jpeg = pictures()["jpeg-exif-6"]
    assert jpeg.pixels is not None
    assert fault(jpeg) == ""
    assert fault(replace(jpeg, pixels=jpeg.pixels[:, ::-1])).startswith("off by ")
    assert fault(replace(jpeg, pixels=None, reasons=("broken",))) == "it was taken for good"
    assert fault(replace(pictures()["empty"], reasons=("broken",)))


def wrong_pictures(pixels: Pixels) -> list[Pixels]:
    wrong = [255 - pixels, pixels // 2]
    if min(pixels.shape[:2]) > 7:
        wrong += [pixels[::-1], pixels[:, ::-1], pixels[::-1, ::-1]]
    if (pixels != pixels[..., :1]).any():
        wrong += [pixels[..., order] for order in ([2, 1, 0], [1, 0, 2], [0, 2, 1])]
    return wrong


@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_bands_do_not_show(color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(AS_IT_IS, color=color)
    for name, picture in pictures().items():
        at_once = normalize_image(picture.data, config)
        with monkeypatch.context() as patch:
            patch.setattr(pillow_modes, "_BAND_PIXELS", 100)
            assert normalize_image(picture.data, config) == at_once, name


@pytest.mark.parametrize(
    "trials", [pytest.param(250, marks=pytest.mark.integration), pytest.param(10_000, marks=pytest.mark.chaos)]
)
def test_damaged_images_are_good_or_have_a_reason(trials: int) -> None:
    """None takes long, says a word or crashes; each is reproducible from its number."""
    outcomes = run_trials(try_image, trials)
    assert outcomes["good"] > trials // 50, "nothing is good: the damage is too coarse"
    assert len(outcomes) > 3


@pytest.mark.integration
def test_pictures_take_little_time_and_room_and_say_nothing() -> None:
    run_trials(try_picture, len(pictures()))
