import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from etl.config import NormalizeConfig
from etl.images import Normalized, Reason, Reject, centre_box, channel_sums, normalize_image

RGB = NormalizeConfig(16, 16, "crop", "rgb", "raw", 95)
Pixels = npt.NDArray[np.uint8]


def encode(pixels: npt.NDArray[Any], kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pixels_of(data: bytes, config: NormalizeConfig = RGB) -> Pixels:
    result = normalize_image(data, config)
    assert isinstance(result, Normalized), result
    return np.frombuffer(result.encoded, np.uint8).reshape(config.height, config.width, config.channels)


def test_an_image_of_the_size_keeps_its_pixels() -> None:
    pixels = noise(16, 16)
    assert np.array_equal(pixels_of(encode(pixels)), pixels)
    png = normalize_image(encode(pixels), replace(RGB, format="png"))
    assert isinstance(png, Normalized)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png.encoded))), pixels)


def test_resizing_antialiases() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    small = pixels_of(encode(stripes), replace(RGB, height=8, width=8, color="gray"))
    assert abs(small.astype(int) - 127).max() <= 8  # picking pixels would give all black or all white


def test_crop_takes_the_centre_and_exact_stretches() -> None:
    pixels = np.zeros((16, 48, 3), np.uint8)
    pixels[:, 16:32] = 200  # the centre third alone is bright
    assert pixels_of(encode(pixels)).min() > 150
    stretched = pixels_of(encode(pixels), replace(RGB, fit="exact"))
    assert stretched[:, :3].max() < 20
    assert stretched[:, 7:9].min() > 180


@pytest.mark.parametrize(("width", "height"), [(100, 50), (50, 100), (16, 16), (3, 1000), (1, 1)])
def test_the_centre_box_has_the_targets_shape_and_stays_within(width: int, height: int) -> None:
    left, upper, right, lower = centre_box(width, height, 24, 16)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    assert (right - left) / (lower - upper) == pytest.approx(24 / 16)
    assert left == pytest.approx(width - right)
    assert upper == pytest.approx(height - lower)


def test_gray_alpha_palette_and_16_bit() -> None:
    gray = noise(16, 16, 1)[..., 0]
    assert np.array_equal(pixels_of(encode(gray)), np.repeat(gray[..., None], 3, axis=2))
    clear = np.dstack([noise(16, 16), np.zeros((16, 16), np.uint8)])
    assert pixels_of(encode(clear)).min() == 255  # transparent: the white background
    deep = gray.astype(np.uint16) << 8
    assert np.array_equal(pixels_of(encode(deep), replace(RGB, color="gray"))[..., 0], gray)


def test_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn by 90 degrees
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 250
    turned = pixels_of(encode(pixels, "JPEG", quality=95, exif=exif))
    assert turned[:6].min() > 200
    assert turned[10:].max() < 50


def test_sums_are_exact() -> None:
    pixels = noise(16, 16)
    result = normalize_image(encode(pixels), replace(RGB, format="jpeg"))
    assert isinstance(result, Normalized)
    wide = pixels.reshape(-1, 3).astype(object)
    assert result.sums == wide.sum(axis=0).tolist()
    assert result.squares == (wide**2).sum(axis=0).tolist()
    assert channel_sums(np.full((2, 2, 1), 255, np.uint8)) == ([1020], [260100])


PNG, JPEG = encode(noise(40, 40)), encode(noise(40, 40), "JPEG")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.EMPTY),
        (b"not an image at all", Reason.NOT_AN_IMAGE),
        (b"\xff\xd8\xff", Reason.NOT_AN_IMAGE),
        (JPEG[: len(JPEG) // 2], Reason.TRUNCATED),
        (PNG[: len(PNG) // 2], Reason.TRUNCATED),
        (PNG[:60] + bytes(20) + PNG[80:], Reason.BROKEN),
        (b"P5 20000 20000 255\n", Reason.TOO_MANY_PIXELS),
    ],
)
def test_what_cannot_be_used_is_a_reject_with_a_reason(data: bytes, reason: Reason) -> None:
    result = normalize_image(data, RGB)
    assert isinstance(result, Reject), "it was taken for good"
    assert result.reason == reason, result


def test_every_cut_of_a_jpeg_is_good_or_a_reject() -> None:
    for length in range(0, len(JPEG), 7):
        assert isinstance(normalize_image(JPEG[:length], RGB), Normalized | Reject)


def test_the_sources_comment_does_not_travel() -> None:
    result = normalize_image(encode(noise(40, 40), "JPEG", comment=b"secret"), replace(RGB, format="jpeg"))
    assert isinstance(result, Normalized)
    assert b"secret" not in result.encoded
