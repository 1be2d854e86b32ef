"""What `normalize_image` does beyond decoding: sizes, scaled decodes, encoding, sums. Decoding: test_pictures.py."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from etl.images.config import Limits, NormalizeConfig
from etl.images.normalize import channel_sums, normalize_image
from etl.images.result import NormalizedImage, Reason, Reject
from tests.lib.pictures.base import save
from tests.lib.pictures.png import GRAY, chunk, png

RGB = NormalizeConfig(16, 16, format="raw")
Pixels = npt.NDArray[np.uint8]


def noise(height: int, width: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def normalized(data: bytes, config: NormalizeConfig) -> NormalizedImage:
    result = normalize_image(data, config)
    assert isinstance(result, NormalizedImage), result
    return result


def pixels_of(data: bytes, config: NormalizeConfig = RGB) -> Pixels:
    result = normalized(data, config)
    return np.frombuffer(result.encoded, np.uint8).reshape(result.height, result.width, config.channels)


def psnr(one: Pixels, other: Pixels) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def test_an_image_of_the_size_keeps_its_pixels() -> None:
    pixels = noise(16, 16)
    assert np.array_equal(pixels_of(save(pixels, "PNG")), pixels)
    png = normalized(save(pixels, "PNG"), replace(RGB, format="png"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png.encoded))), pixels)


def test_resizing_antialiases() -> None:
    """Picked pixels would be black or white: across, and along one axis that shrinks while the other grows."""
    gray = replace(RGB, height=8, width=8, color="gray")
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    assert np.abs(pixels_of(save(stripes, "PNG"), gray).astype(int) - 127).max() <= 8
    stripes = np.tile(np.array([[0], [255]], np.uint8), (100, 20))
    found = pixels_of(save(stripes, "PNG"), replace(gray, height=40, width=40, fit="exact"))
    assert np.abs(found.astype(int) - 127).max() <= 30


def test_crop_takes_the_centre_and_exact_stretches() -> None:
    pixels = np.zeros((16, 48, 3), np.uint8)
    pixels[:, 16:32] = 200  # the centre third alone is bright
    assert pixels_of(save(pixels, "PNG")).min() > 150
    stretched = pixels_of(save(pixels, "PNG"), replace(RGB, fit="exact"))
    assert stretched[:, :3].max() < 20
    assert stretched[:, 7:9].min() > 180


@pytest.mark.parametrize(("ratio", "fit"), [(2.3, "crop"), (4, "pad"), (5, "shorter"), (7.5, "longest"), (16, "exact")])
def test_a_scaled_decode_is_near_the_full_one(ratio: float, fit: str) -> None:
    """35 dB, of photographs, upright and not, that are decoded at eighths of their size; plain pixels are not."""
    for number, pixels in enumerate(load_sample_images().images):
        side = round(min(pixels.shape[:2]) / ratio)
        config = replace(RGB, height=side, width=side, fit=fit)
        for orientation, color in ((1, "rgb"), (1, "gray"), (2 + number, "rgb"), (6 + number, "rgb")):
            exif = Image.Exif()
            exif[0x0112] = orientation
            data = save(pixels, "JPEG", quality=90, exif=exif)
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
            whole = b"P6 %d %d 255\n" % upright.size + upright.tobytes()
            asked = replace(config, color=color)
            found, full = pixels_of(data, asked), pixels_of(whole, asked)
            assert psnr(found, full) >= 35
            assert not np.array_equal(found, full), "it has not been decoded at a smaller size"


def test_a_scaled_decode_of_more_pixels_a_side_than_opencv_can_address() -> None:
    pixels = np.tile(load_sample_images().images[0][:201], (1, 63, 1))[:, :40_003]
    data, config = save(pixels, "JPEG", quality=92), replace(RGB, height=60, width=12_001, fit="exact")
    full = pixels_of(b"P6 40003 201 255\n" + Image.open(io.BytesIO(data)).tobytes(), config)
    assert psnr(pixels_of(data, config), full) >= 30


def test_padding_and_transparency_show_the_background() -> None:
    config = replace(RGB, fit="pad", background=(10, 200, 30))
    found = pixels_of(save(np.zeros((8, 16, 3), np.uint8), "PNG"), config)
    assert np.array_equal(found[:4], np.broadcast_to((10, 200, 30), (4, 16, 3)))
    assert found[4:12].max() == 0
    clear = save(np.zeros((16, 16, 4), np.uint8), "PNG")
    assert np.array_equal(pixels_of(clear, config)[0, 0], (10, 200, 30))
    assert pixels_of(clear, replace(config, color="gray"))[0, 0, 0] == round(0.299 * 10 + 0.587 * 200 + 3.42)
    one_clear = png(np.array([[0, 1]]), 1, GRAY, chunk(b"tRNS", b"\0\0"))
    assert pixels_of(one_clear, replace(config, height=1, width=2))[0].tolist() == [[10, 200, 30], [255] * 3]


@pytest.mark.parametrize(("format", "kind"), [("float16", "<f2"), ("float32", "<f4")])
def test_floats_are_scaled_by_fixed_numbers(format: str, kind: str) -> None:
    pixels = noise(16, 16)
    config = replace(RGB, format=format, subtract=(123.675, 116.28, 103.53), divide_by=(58.395, 57.12, 57.375))
    result = normalized(save(pixels, "PNG"), config)
    expected = ((pixels - np.array(config.subtract)) / np.array(config.divide_by)).astype(kind)
    assert np.array_equal(np.frombuffer(result.encoded, kind).reshape(16, 16, 3), expected)
    assert result.sums == pixels.reshape(-1, 3).sum(axis=0).tolist()


@pytest.mark.parametrize("subsampling", [420, 444])
@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_jpegs_are_encoded_as_asked(subsampling: int, color: str) -> None:
    pixels = np.ascontiguousarray(load_sample_images().images[0][200:264, 300:348])
    config = NormalizeConfig(64, 48, color=color, subsampling=subsampling)
    image: Any = Image.open(io.BytesIO(normalized(save(pixels, "PNG"), config).encoded))
    assert image.mode == ("RGB" if color == "rgb" else "L")
    if color == "rgb":
        assert image.layer[0][1:3] == ((2, 2) if subsampling == 420 else (1, 1))
    assert psnr(np.asarray(image.convert("L")), np.asarray(Image.fromarray(pixels).convert("L"))) > 35


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_file_that_fits_passes_byte_for_byte_if_asked(kind: str) -> None:
    config = NormalizeConfig(16, 16, format=kind.lower(), pass_through=True)
    data = save(noise(16, 16), kind)

    def is_kept(data: bytes, config: NormalizeConfig) -> bool:
        result, raw = (normalized(data, each) for each in (config, replace(config, format="raw", pass_through=False)))
        assert (result.sums, result.squares) == (raw.sums, raw.squares)
        return result.encoded == data

    assert is_kept(data, config)
    exif = Image.Exif()
    exif[0x010E] = "secret"
    others = [data + b"more", save(noise(16, 16), kind, exif=exif), save(noise(16, 16)[..., 0], kind)]
    behind_scan = (b"\xff\xfe\0\x08secret", b"\xff\xff\xe1\0\x0eExif\0\0secret")
    others += [data[:-2] + segment + data[-2:] for segment in behind_scan if kind == "JPEG"]
    for other in others:
        assert not is_kept(other, config)
    for changes in ({"color": "gray"}, {"height": 8}, {"format": "png" if kind == "JPEG" else "jpeg"}):
        assert not is_kept(data, replace(config, **changes))


def test_a_canvas_that_is_too_large_is_a_reject() -> None:
    config = replace(RGB, fit="shorter", limits=Limits(pixels=1000))
    result = normalize_image(save(np.zeros((4, 40, 3), np.uint8), "PNG"), config)
    assert isinstance(result, Reject)
    assert (result.reason, "would become 160x16" in result.detail) == (Reason.TOO_MANY_PIXELS, True)


def test_sums_are_exact() -> None:
    pixels = noise(16, 16)
    result = normalized(save(pixels, "PNG"), replace(RGB, format="jpeg"))
    wide = pixels.reshape(-1, 3).astype(object)
    assert result.sums == wide.sum(axis=0).tolist()
    assert result.squares == (wide**2).sum(axis=0).tolist()
    assert channel_sums(np.full((2, 2, 1), 255, np.uint8)) == ([1020], [260100])
    many = 3000 * 5000  # more than 32 bits hold
    assert channel_sums(np.full((3000, 5000, 3), 255, np.uint8)) == ([255 * many] * 3, [255 * 255 * many] * 3)
