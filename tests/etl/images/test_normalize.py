import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageCms, ImageOps
from sklearn.datasets import load_sample_images

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.images.limits import Limits
from etl.images.normalize import Normalized, Reason, Reject, channel_sums, normalize_image
from tests.lib.pictures.png import GRAY, chunk, png

RGB = NormalizeConfig(16, 16, format="raw")
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
    return np.frombuffer(result.encoded, np.uint8).reshape(result.height, result.width, config.channels)


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


def test_gray_alpha_palette_and_16_bit() -> None:
    gray = noise(16, 16, 1)[..., 0]
    assert np.array_equal(pixels_of(encode(gray)), np.repeat(gray[..., None], 3, axis=2))
    clear = np.dstack([noise(16, 16), np.zeros((16, 16), np.uint8)])
    assert pixels_of(encode(clear)).min() == 255  # transparent: the white background
    deep = gray.astype(np.uint16) << 8
    assert np.array_equal(pixels_of(encode(deep), replace(RGB, color="gray"))[..., 0], gray)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation_is_applied(kind: str, orientation: int) -> None:
    """Against Pillow's own turning, in every format that can say it."""
    pixels = np.zeros((24, 16, 3), np.uint8)
    pixels[:12, :8], pixels[:12, 8:], pixels[12:, :8] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, object] = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    data = encode(pixels, kind, exif=exif, **options, **({"lossless": True} if kind == "WEBP" else {}))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert upright.shape == ((16, 24, 3) if orientation >= 5 else (24, 16, 3))
    found = pixels_of(data, replace(RGB, height=1, width=1, fit="shorter", only_shrink=True, limits=Limits()))
    assert found.shape[:2] == ((1, 2) if orientation >= 5 else (2, 1))
    found = pixels_of(data, replace(RGB, height=500, width=500, fit="longest", only_shrink=True))
    assert np.abs(found.astype(int) - upright).max() <= 2


def photograph(height: int, width: int) -> Pixels:
    """Smooth colours with edges in them, as photographs have."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(20 * x + phase) * np.cos(13 * y * (1 + x) + phase) for phase in (0, 1, 2)]
    pixels = np.stack(waves, axis=-1) * 100 + 128
    pixels[height // 4 : height // 2, width // 3 : width // 2] += 60
    return np.clip(pixels, 0, 255).astype(np.uint8)


def psnr(one: Pixels, other: Pixels) -> float:
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.parametrize("fit", ["crop", "shorter", "longest", "exact", "pad"])
@pytest.mark.parametrize("ratio", [2.3, 3, 4, 5, 6, 7.5, 8, 10, 16, 26])
def test_a_scaled_decode_is_near_the_full_one(ratio: float, fit: str) -> None:
    """35 dB, of photographs, upright and not, that are decoded at eighths of their size; plain pixels are not."""
    for number, pixels in enumerate(load_sample_images().images):
        side = round(min(pixels.shape[:2]) / ratio)
        config = replace(RGB, height=side, width=side, fit=fit)
        for orientation, color in ((1, "rgb"), (1, "gray"), (2 + number, "rgb"), (6 + number, "rgb")):
            exif = Image.Exif()
            exif[0x0112] = orientation
            data = encode(pixels, "JPEG", quality=90, exif=exif)
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
            whole = b"P6 %d %d 255\n" % upright.size + upright.tobytes()
            asked = replace(config, color=color)
            found, full = pixels_of(data, asked), pixels_of(whole, asked)
            assert psnr(found, full) >= 35
            assert not np.array_equal(found, full), "it has not been decoded at a smaller size"


def test_a_scaled_decode_of_more_pixels_a_side_than_opencv_can_address() -> None:
    pixels = np.tile(load_sample_images().images[0][:201], (1, 63, 1))[:, :40_003]
    data, config = encode(pixels, "JPEG", quality=92), replace(RGB, height=60, width=12_001, fit="exact")
    full = pixels_of(b"P6 40003 201 255\n" + Image.open(io.BytesIO(data)).tobytes(), config)
    assert psnr(pixels_of(data, config), full) >= 30


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 331), (256, 256), (270, 300), (100, 90), (1100, 700)])
def test_resizing_is_near_pillows(height: int, width: int) -> None:
    pixels = photograph(height, width)
    config = replace(RGB, height=256, width=256, fit="exact")
    reference = np.asarray(Image.fromarray(pixels).resize((256, 256), Image.Resampling.BICUBIC))
    assert psnr(pixels_of(encode(pixels), config), reference) >= 35


def test_one_axis_may_grow_and_the_other_shrink() -> None:
    stripes = np.tile(np.array([[0], [255]], np.uint8), (100, 20))
    found = pixels_of(encode(stripes), replace(RGB, height=40, width=40, fit="exact", color="gray"))
    assert np.abs(found.astype(int) - 127).max() <= 30  # picked rows would be black and white


def test_padding_and_transparency_show_the_background() -> None:
    config = replace(RGB, fit="pad", background=(10, 200, 30))
    found = pixels_of(encode(np.zeros((8, 16, 3), np.uint8)), config)
    assert np.array_equal(found[:4], np.broadcast_to((10, 200, 30), (4, 16, 3)))
    assert found[4:12].max() == 0
    clear = np.zeros((16, 16, 4), np.uint8)
    assert np.array_equal(pixels_of(encode(clear), config)[0, 0], (10, 200, 30))
    assert pixels_of(encode(clear), replace(config, color="gray"))[0, 0, 0] == round(0.299 * 10 + 0.587 * 200 + 3.42)


def cmyk(quality: int = 95, **options: object) -> tuple[Image.Image, bytes]:
    inks = Image.fromarray(photograph(48, 48)).convert("CMYK")
    buffer = io.BytesIO()
    inks.save(buffer, "JPEG", quality=quality, **options)
    return inks, buffer.getvalue()


def test_cmyk_is_inverted_as_adobe_writes_it() -> None:
    inks, data = cmyk()
    found = pixels_of(data, replace(RGB, height=48, width=48))
    assert np.abs(found.astype(int) - np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).max() <= 2
    assert psnr(found, np.asarray(inks.convert("RGB"))) > 35


def test_a_profile_becomes_srgb_and_a_broken_one_is_ignored() -> None:
    pixels, config = photograph(48, 48), replace(RGB, height=48, width=48)
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()  # of another colour space
    same = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for profile in (lab, same, b"no profile at all"):
        assert np.array_equal(pixels_of(encode(pixels, icc_profile=profile), config), pixels)
    swapped = swap_red_and_blue(same)
    expected = ImageCms.profileToProfile(
        Image.fromarray(pixels), ImageCms.ImageCmsProfile(io.BytesIO(swapped)), ImageCms.createProfile("sRGB")
    )
    assert expected is not None
    assert np.abs(np.asarray(expected).astype(int) - pixels[..., ::-1]).mean() < 8  # the profile does what it says
    assert np.array_equal(pixels_of(encode(pixels, icc_profile=swapped), config), np.asarray(expected))
    jpeg = pixels_of(encode(pixels, "JPEG", quality=100, subsampling=0, icc_profile=swapped), config)
    assert psnr(jpeg, np.asarray(expected)) > 35


def swap_red_and_blue(profile: bytes) -> bytes:
    """An ICC profile whose tags of the red and the blue primary have changed names: every program must notice."""
    return profile.replace(b"rXYZ", b"?XYZ").replace(b"bXYZ", b"rXYZ").replace(b"?XYZ", b"bXYZ")


def test_16_bits_a_colour_and_one_that_is_transparent() -> None:
    deep = np.array([[0x1234, 0x12FF, 0xFFFF]], np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, "PNG", transparency=0x1234)
    config = replace(RGB, height=1, width=3, color="gray", background=(7, 7, 7))
    assert pixels_of(buffer.getvalue(), config).ravel().tolist() == [7, 0x12, 0xFF]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_one_gray_level_is_transparent(depth: int) -> None:
    levels = np.arange(min(1 << depth, 16))[None]
    config = replace(RGB, height=1, width=levels.shape[1], color="gray", background=(7, 7, 7))
    for clear in (0, 1):
        shown = np.where(levels == clear, 7, levels * 255 // ((1 << depth) - 1))
        data = png(levels, depth, GRAY, chunk(b"tRNS", clear.to_bytes(2)))
        assert np.array_equal(pixels_of(data, config)[..., 0], shown)


def test_float_samples_are_not_guessed() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(buffer, "TIFF")
    result = normalize_image(buffer.getvalue(), RGB)
    assert isinstance(result, Reject)
    assert result.reason == Reason.UNSUPPORTED


@pytest.mark.parametrize(("format", "kind"), [("float16", "<f2"), ("float32", "<f4")])
def test_floats_are_scaled_by_fixed_numbers(format: str, kind: str) -> None:
    pixels = noise(16, 16)
    config = replace(RGB, format=format, subtract=(123.675, 116.28, 103.53), divide_by=(58.395, 57.12, 57.375))
    result = normalize_image(encode(pixels), config)
    assert isinstance(result, Normalized)
    expected = ((pixels - np.array(config.subtract)) / np.array(config.divide_by)).astype(kind)
    assert np.array_equal(np.frombuffer(result.encoded, kind).reshape(16, 16, 3), expected)
    assert result.sums == pixels.reshape(-1, 3).sum(axis=0).tolist()
    with pytest.raises(UsageError, match="float16"):
        replace(RGB, format="float16", divide_by=(1e-9,))


@pytest.mark.parametrize("subsampling", [420, 444])
@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_jpegs_are_encoded_as_asked(subsampling: int, color: str) -> None:
    pixels = photograph(64, 48)
    config = NormalizeConfig(64, 48, color=color, subsampling=subsampling)
    result = normalize_image(encode(pixels), config)
    assert isinstance(result, Normalized)
    image: Any = Image.open(io.BytesIO(result.encoded))
    assert image.mode == ("RGB" if color == "rgb" else "L")
    wide, high = image.layer[0][1:3] if color == "rgb" else (2 if subsampling == 420 else 1,) * 2
    assert wide == high == (2 if subsampling == 420 else 1)
    assert psnr(np.asarray(image.convert("L")), np.asarray(Image.fromarray(pixels).convert("L"))) > 35


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_file_that_fits_passes_byte_for_byte_if_asked(kind: str) -> None:
    config = NormalizeConfig(16, 16, format=kind.lower(), pass_through=True)
    data = encode(noise(16, 16), kind)

    def kept(data: bytes, config: NormalizeConfig) -> bool:
        result = normalize_image(data, config)
        assert isinstance(result, Normalized)
        raw = normalize_image(data, replace(config, format="raw", pass_through=False))
        assert isinstance(raw, Normalized)
        assert (result.sums, result.squares) == (raw.sums, raw.squares)
        return result.encoded == data

    assert kept(data, config)
    assert not kept(data + b"more", config)
    assert not kept(data, replace(config, color="gray"))
    assert not kept(data, replace(config, height=8))
    assert not kept(data, replace(config, format="png" if kind == "JPEG" else "jpeg"))
    exif = Image.Exif()
    exif[0x010E] = "secret"
    assert not kept(encode(noise(16, 16), kind, exif=exif), config)
    assert not kept(encode(noise(16, 16, 1)[..., 0], kind), config)


def test_usual_limits_are_held_before_decoding() -> None:
    config = replace(RGB, limits=Limits(pixels=1000, size_bytes=3000, aspect=10, least_side=4))
    for shape, reason in (
        ((40, 26), Reason.TOO_MANY_PIXELS),
        ((4, 41), Reason.BAD_ASPECT),
        ((3, 20), Reason.TOO_SMALL),
        ((32, 31), Reason.TOO_MANY_BYTES),
    ):
        pixels = noise(*shape) if reason == Reason.TOO_MANY_BYTES else np.zeros((*shape, 3), np.uint8)
        result = normalize_image(encode(pixels, compress_level=1), config)
        assert isinstance(result, Reject)
        assert result.reason == reason
    wide = normalize_image(encode(np.zeros((4, 40, 3), np.uint8)), replace(config, fit="shorter"))
    assert isinstance(wide, Reject)
    assert "would become 160x16" in wide.detail


def test_sums_are_exact() -> None:
    pixels = noise(16, 16)
    result = normalize_image(encode(pixels), replace(RGB, format="jpeg"))
    assert isinstance(result, Normalized)
    wide = pixels.reshape(-1, 3).astype(object)
    assert result.sums == wide.sum(axis=0).tolist()
    assert result.squares == (wide**2).sum(axis=0).tolist()
    assert channel_sums(np.full((2, 2, 1), 255, np.uint8)) == ([1020], [260100])
    many = 3000 * 5000  # more than 32 bits hold
    assert channel_sums(np.full((3000, 5000, 3), 255, np.uint8)) == ([255 * many] * 3, [255 * 255 * many] * 3)


PNG, JPEG = encode(noise(40, 40)), encode(noise(40, 40), "JPEG")


def test_junk_behind_the_last_pixel_of_a_jpeg_does_no_harm() -> None:
    for data in (JPEG[:-2] + b"\0\1\2" + JPEG[-2:], JPEG + b"more"):
        assert psnr(pixels_of(data), pixels_of(JPEG)) > 50
    result = normalize_image(JPEG[:-2], RGB)
    assert isinstance(result, Reject)
    assert result.reason == Reason.TRUNCATED


def test_damaged_entropy_data_of_a_jpeg_are_found() -> None:
    """A marker in the middle of them: Pillow shows what it made of it, and says nothing."""
    middle = len(JPEG) // 2
    damaged = JPEG[:middle] + b"\xff\xd3" + JPEG[middle + 2 :]
    Image.open(io.BytesIO(damaged)).load()
    result = normalize_image(damaged, RGB)
    assert isinstance(result, Reject)
    assert result.reason == Reason.BROKEN


def test_a_flipped_bit_of_a_png_is_found() -> None:
    for position in range(50, len(PNG) - 20, 101):
        damaged = bytearray(PNG)
        damaged[position] ^= 4
        assert isinstance(normalize_image(bytes(damaged), RGB), Reject)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.EMPTY),
        (b"not an image at all", Reason.NOT_AN_IMAGE),
        (b"BM is how this begins", Reason.NOT_AN_IMAGE),
        (b"\xff\xd8\xff", Reason.TRUNCATED),
        (b"\x89PNG\r\n\x1a\n", Reason.TRUNCATED),
        (b"GIF89a", Reason.TRUNCATED),
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
