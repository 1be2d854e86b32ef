"""Limits, and what a header may make this process do before anything is decoded: little, however large the file."""

from dataclasses import replace

import pytest

from etl.errors import UsageError
from etl.images.config import FLAGS, MAX_MEMORY_BYTES, Limits, NormalizeConfig
from etl.images.containers.jpeg import MAX_SEGMENTS
from etl.images.containers.png import MAX_CHUNKS, PngChunks, read_chunks, without_extras
from etl.images.header import Header, is_maybe_plain, read_header
from etl.images.normalize import normalize_image
from etl.images.result import NormalizedImage, Reason, Reject
from etl.options.click_command import option_values
from etl.options.stage_options import NORMALIZE_OPTIONS
from tests.lib.pictures.base import HEIGHT, WIDTH, content, save
from tests.lib.pictures.jpeg import inserted, segment
from tests.lib.pictures.png import SIGNATURE, chunk, chunks

SMALL = Limits(pixels=1000, size_bytes=500, frames=3, aspect=4, least_side=8)


def test_limits_out_of_range_are_refused_by_name() -> None:
    too_large = (("pixels", 10**20), ("aspect", float("inf")), ("seconds", 1e7), ("memory_bytes", 10**18))
    for name, value in (*((name, 0) for name in FLAGS), ("aspect", 0.5), ("memory_bytes", 1000), *too_large):
        with pytest.raises(UsageError, match=f"{FLAGS[name]} .*give"):
            Limits(**{name: value})  # type: ignore[arg-type] # of several types


def test_the_default_limits_agree() -> None:
    values = option_values(NORMALIZE_OPTIONS)
    assert NormalizeConfig.resolve(values, None).limits == Limits()
    for given, memory_bytes in (
        ({"max_pixels": 400_000_000}, 3_456_000_000),
        ({"max_pixels": 1000}, 800_000_000),
        ({"max_pixels": 10**18}, MAX_MEMORY_BYTES),
        ({"max_pixels": 400_000_000, "max_memory": 100_000_000}, 100_000_000),  # enough for JPEGs
    ):
        assert NormalizeConfig.resolve(values | given, None).limits.memory_bytes == memory_bytes


@pytest.mark.parametrize("name", FLAGS)
def test_limits_that_allow_less_are_named(name: str) -> None:
    SMALL.refuse_less_than(SMALL)
    more = -1 if name == "least_side" else 1
    replace(SMALL, **{name: getattr(SMALL, name) + more}).refuse_less_than(SMALL)
    with pytest.raises(UsageError, match=f"{FLAGS[name]} .* is stricter than the "):
        replace(SMALL, **{name: getattr(SMALL, name) - more}).refuse_less_than(SMALL)


JPEG, PNG = save(content(), "JPEG"), save(content(), "PNG")
LONG = 8 << 20


def with_chunks(more: bytes) -> bytes:
    header, *rest = chunks(PNG)
    return b"".join([SIGNATURE, header, more, *rest])


def test_a_header_without_end_is_a_reject_and_more_than_any_program_writes_is_good() -> None:
    for data, reason, detail in (
        (inserted(JPEG, segment(0xE5, b"") * 200_000), Reason.BROKEN, "more than 65536 segments"),
        (with_chunks(chunk(b"prVt", b"") * 200_000), Reason.BROKEN, "chunks"),
        (b"P6" + b" " * LONG + b"1 1 255\nabc", Reason.NOT_AN_IMAGE, "starts with"),
        (b"P6" + b"#\n" * LONG + b"1 1 255\nabc", Reason.NOT_AN_IMAGE, "starts with"),
    ):
        found = read_header(data)
        assert isinstance(found, Reject)
        assert (found.reason, detail in found.detail) == (reason, True)
    for data in (
        inserted(JPEG, b"\xff" * LONG),
        inserted(JPEG, segment(0xFE, b"x") * (MAX_SEGMENTS - 20)),
        with_chunks(chunk(b"prVt", b"x") * (MAX_CHUNKS // 2)),
    ):
        assert isinstance(normalize_image(data, NormalizeConfig(8, 8)), NormalizedImage)


def test_what_may_take_long_is_left_to_the_worker() -> None:
    """JPEGs of arithmetic coding or many scans, which libjpeg keeps in memory, and headers read byte by byte."""
    scan = JPEG.index(b"\xff\xda") + 4  # how many components the first one has
    arithmetic = JPEG.replace(b"\xff\xc0", b"\xff\xc9")  # SOF9; no program at hand writes it
    for data, is_plain in ((JPEG, True), (arithmetic, False), (JPEG[:scan] + b"\1" + JPEG[scan + 1 :], False)):
        found = read_header(data)
        assert isinstance(found, Header)
        assert (found.width, found.height, found.components, found.is_plain) == (WIDTH, HEIGHT, 3, is_plain)
    for data in (b"P6 2 # a comment\n2 255\n" + bytes(12), b"P3 1 1 255\n1 2 3\n"):
        assert isinstance(read_header(data), Header)
        assert not is_maybe_plain(data)


def test_of_repeated_chunks_the_first_counts() -> None:
    """As in libpng; and a file of thousands of texts is not inflated as a whole."""
    srgb, linear = (chunk(b"gAMA", gamma.to_bytes(4)) for gamma in (45_455, 100_000))
    for first, second, is_srgb in ((srgb, linear, True), (linear, srgb, False)):
        found = read_chunks(with_chunks(first + second))
        assert isinstance(found, PngChunks)
        assert (found.profile == b"") == is_srgb
    good = chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 1\nab\n")
    damaged = chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 1\nx\n")
    assert [read_chunks(with_chunks(each)).exif for each in (good, damaged + good)] == [b"\xab", b""]  # type: ignore[union-attr]
    clear, other = (chunk(b"tRNS", bytes([0, level] * 3)) for level in (1, 2))
    assert without_extras(with_chunks(clear + other)) == with_chunks(clear)
