"""What a header may make this process do, before anything is decoded: little, however large the file."""

from etl.images.config import NormalizeConfig
from etl.images.containers.jpeg import MAX_SEGMENTS
from etl.images.containers.png import MAX_CHUNKS
from etl.images.header import Header, is_maybe_plain, read_header
from etl.images.normalize import normalize_image
from etl.images.result import Normalized, Reason, Reject
from tests.lib.pictures.base import HEIGHT, WIDTH, content, save
from tests.lib.pictures.jpeg import inserted, segment
from tests.lib.pictures.png import SIGNATURE, chunk, chunks

JPEG, PNG = save(content(), "JPEG"), save(content(), "PNG")
LONG = 8 << 20


def with_chunks(more: bytes) -> bytes:
    header, *rest = chunks(PNG)
    return b"".join([SIGNATURE, header, more, *rest])


def test_a_header_without_end_is_a_reject() -> None:
    for data, reason, detail in (
        (inserted(JPEG, segment(0xE5, b"") * 200_000), Reason.BROKEN, "more than 65536 segments"),
        (with_chunks(chunk(b"prVt", b"") * 200_000), Reason.BROKEN, "chunks"),
        (b"P6" + b" " * LONG + b"1 1 255\nabc", Reason.NOT_AN_IMAGE, "starts with"),
        (b"P6" + b"#\n" * LONG + b"1 1 255\nabc", Reason.NOT_AN_IMAGE, "starts with"),
    ):
        found = read_header(data)
        assert isinstance(found, Reject)
        assert (found.reason, detail in found.detail) == (reason, True)


def test_more_than_any_program_writes_is_still_good() -> None:
    for data in (
        inserted(JPEG, b"\xff" * LONG),
        inserted(JPEG, segment(0xFE, b"x") * (MAX_SEGMENTS - 20)),
        with_chunks(chunk(b"prVt", b"x") * (MAX_CHUNKS // 2)),
    ):
        assert isinstance(normalize_image(data, NormalizeConfig(8, 8)), Normalized)


def test_arithmetic_coding_is_left_to_the_worker() -> None:
    found = read_header(JPEG.replace(b"\xff\xc0", b"\xff\xc9"))  # SOF9; no program at hand writes it
    assert isinstance(found, Header)
    assert (found.width, found.height, found.components, found.is_plain) == (WIDTH, HEIGHT, 3, False)


def test_a_header_that_pillow_reads_byte_by_byte_is_left_to_the_worker() -> None:
    for data in (b"P6 2 # a comment\n2 255\n" + bytes(12), b"P3 1 1 255\n1 2 3\n"):
        assert isinstance(read_header(data), Header)
        assert not is_maybe_plain(data)
