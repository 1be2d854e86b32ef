"""One table: every kind of image file becomes the right picture, channel by channel, or a reject with its reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etl.images import pillow_modes
from etl.images.config import NormalizeConfig
from etl.images.normalize import Normalized, Reject, normalize_image
from etl.sources import FolderSource
from etl.storage.place import open_place
from tests.lib.pictures.base import HEIGHT, Picture, Pixels, luma
from tests.lib.pictures.table import pictures
from tests.lib.sources.archives import contents_of

PICTURES = pictures()
CONVERTED = ("alpha", "palette", "trns", "transparent", "icc", "-16", "cmyk")
ROUNDED = 0.6  # grey levels on average, of the mean of 16 pixels


def as_it_is(height: int, width: int, color: str) -> NormalizeConfig:
    """The pixels themselves: no size is changed and nothing encoded."""
    return NormalizeConfig(height=height, width=width, fit="crop", color=color, format="raw", quality=95)


def normalized(data: bytes, height: int, width: int, color: str) -> Pixels:
    """The pixels that became of a file, (height, width, channels)."""
    result = normalize_image(data, as_it_is(height, width, color))
    assert isinstance(result, Normalized), result
    return np.frombuffer(result.encoded, np.uint8).reshape(height, width, -1)


def off(pixels: Pixels, expected: Pixels) -> tuple[float, int]:
    """How far pixels are from what was expected: the mean of the worst channel, and the worst of all; grey levels."""
    distance = np.abs(pixels.astype(int) - expected.astype(int))
    return float(distance.mean(axis=(0, 1)).max()), int(distance.max())


@pytest.mark.parametrize("name", PICTURES)
def test_the_right_picture_or_the_right_reason(name: str) -> None:
    picture = PICTURES[name]
    if picture.pixels is None:
        result = normalize_image(picture.data, as_it_is(16, 16, "rgb"))
        assert isinstance(result, Reject), f"{name} was taken for good"
        assert result.reason.value in picture.reasons, result
        assert result.detail.isprintable()
        assert len(result.detail) <= 200
        return
    height, width = picture.pixels.shape[:2]
    mean, worst = off(normalized(picture.data, height, width, "rgb"), picture.pixels)
    assert (mean <= picture.mean, worst <= picture.worst) == (True, True), f"off by {mean:.2f}, at most {worst}"
    gray = np.round(luma(picture.pixels)).astype(np.uint8)[..., None]
    mean, worst = off(normalized(picture.data, height, width, "gray"), gray)
    assert (mean <= picture.mean + 1, worst <= picture.worst + 1) == (True, True), f"gray: {mean:.2f}, {worst}"


@pytest.mark.parametrize("name", [name for name in PICTURES if any(word in name for word in CONVERTED)])
def test_bands_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PICTURES[name].data
    for color in ("rgb", "gray"):
        at_once = normalize_image(data, as_it_is(16, 16, color))
        with monkeypatch.context() as patch:
            patch.setattr(pillow_modes, "_BAND_PIXELS", 100)
            assert normalize_image(data, as_it_is(16, 16, color)) == at_once


LARGE_ENOUGH = [
    name for name, each in PICTURES.items() if each.pixels is not None and min(each.pixels.shape[:2]) >= HEIGHT
]


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("name", LARGE_ENOUGH)
def test_a_quarter_of_the_size_is_the_same_picture(name: str, color: str) -> None:
    """Decoders that decode small at once are to be right, too."""
    expected = PICTURES[name].pixels
    assert expected is not None
    height, width = expected.shape[0] // 4, expected.shape[1] // 4
    small = np.asarray(Image.fromarray(expected).resize((width, height), Image.Resampling.BOX))
    if color == "gray":
        small = np.round(luma(small)).astype(np.uint8)[..., None]
    result = normalize_image(PICTURES[name].data, replace(as_it_is(height, width, color), fit="exact"))
    assert isinstance(result, Normalized), result
    mean, _ = off(np.frombuffer(result.encoded, np.uint8).reshape(small.shape), small)
    assert mean <= PICTURES[name].mean + ROUNDED


@pytest.mark.parametrize("name", [name for name, each in PICTURES.items() if each.pixels is not None])
def test_the_table_would_notice_a_wrong_picture(name: str) -> None:
    """The twin: turned, mirrored, inverted, with its channels exchanged or faded, no picture would pass."""
    picture = PICTURES[name]
    assert picture.pixels is not None
    for wrong in wrong_pictures(picture.pixels):
        mean, worst = off(wrong, picture.pixels)
        assert mean > picture.mean or worst > picture.worst
        assert mean > picture.mean + ROUNDED or name not in LARGE_ENOUGH


def wrong_pictures(pixels: Pixels) -> list[Pixels]:
    wrong = [255 - pixels, pixels // 2]
    if min(pixels.shape[:2]) > 7:
        wrong += [pixels[::-1], pixels[:, ::-1], pixels[::-1, ::-1]]
    if (pixels != pixels[..., :1]).any():
        wrong += [pixels[..., order] for order in ([2, 1, 0], [1, 0, 2], [0, 2, 1])]
    return wrong


def test_names_mean_nothing(tmp_path: Path) -> None:
    """A PNG called .JPEG, as one of ImageNet's is; a JPEG called .png; a GIF called .jpg; a text called .png."""
    called = {"n02105855_2933.JPEG": "png-rgb", "photo.png": "jpeg-444", "moving.jpg": "gif-animated", "no.png": "text"}
    folder = tmp_path / "source" / "dogs"
    folder.mkdir(parents=True)
    for file_name, name in called.items():
        (folder / file_name).write_bytes(PICTURES[name].data)
    source = FolderSource(open_place(str(tmp_path / "source")))
    read = {key.rpartition("/")[2]: data for key, data in contents_of(source).items()}
    assert {file_name: matches(PICTURES[name], read[file_name]) for file_name, name in called.items()} == dict.fromkeys(
        called, True
    )


def matches(picture: Picture, data: bytes) -> bool:
    """Whether a file becomes what is expected of a picture."""
    if picture.pixels is None:
        return isinstance(normalize_image(data, as_it_is(16, 16, "rgb")), Reject)
    height, width = picture.pixels.shape[:2]
    mean, worst = off(normalized(data, height, width, "rgb"), picture.pixels)
    return mean <= picture.mean and worst <= picture.worst
