"""Archives that are damaged, cut off or hostile: one clear line, and never fewer images without a word."""

import io
import random
import tarfile
from pathlib import Path

import pytest

from etl.errors import DataError, UsageError
from etl.sources.tar_members import MAX_EXTENDED_BYTES
from tests.lib.commands import contents, peak_growth_bytes
from tests.lib.inline import ingest_here
from tests.lib.sources.archives import FORMATS, Entry, contents_of, example, open_archive, packed, some_images, tar_of

BLOCK = tarfile.BLOCKSIZE

by_kind = pytest.mark.parametrize("kind", list(FORMATS))


def end_of(archive: bytes) -> int:
    """Where the two blocks end that end an archive."""
    last = len(archive.rstrip(b"\0"))
    return last + -last % BLOCK + 2 * BLOCK


@by_kind
def test_a_cut_is_found_wherever_it_is(kind: str, tmp_path: Path) -> None:
    archive = tar_of(example(kind), kind)
    end = end_of(archive)
    chance = random.Random(1)
    cuts = {*range(0, end, BLOCK), *range(1, end, BLOCK), *range(BLOCK - 1, end, BLOCK), end - 1}
    for cut in sorted(cuts | {chance.randrange(end) for _ in range(40)}):
        with pytest.raises(DataError, match=r"some\.tar is cut off: of the \d+ bytes from byte \d+ on only"):
            open_archive(tmp_path / "source", archive[:cut])
    for cut in range(end, len(archive) + 1, 500):  # of the padding behind the end nothing depends
        assert len(contents_of(open_archive(tmp_path / "source", archive[:cut]))) == 8


@pytest.mark.parametrize("codec", ["", "gzip", "zstd"])
def test_data_behind_the_end_is_an_error(codec: str, tmp_path: Path) -> None:
    archive = tar_of(some_images())
    joined = archive + tar_of([Entry("cats/another.jpg")])
    line = rf"goes on behind its end, at byte {len(archive)}( of its content)?; make archives"
    with pytest.raises(DataError, match=line):
        open_archive(tmp_path / "source", packed(joined, codec))


def headers_of(archive: bytes) -> list[int]:
    """The offset of every header but those of extended headers."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return [member.offset_data - BLOCK for member in opened]


@by_kind
def test_a_damaged_header_is_named_by_its_offset(kind: str, tmp_path: Path) -> None:
    archive = tar_of(example(kind), kind)
    for header in headers_of(archive):
        for byte in range(0, 345, 23):  # behind it nothing is said
            damaged = bytearray(archive)
            damaged[header + byte] ^= 0x10
            with pytest.raises(DataError, match=rf"some\.tar is damaged at byte {header} \(.*; copy it again"):
                open_archive(tmp_path / "source", bytes(damaged))


def test_a_header_that_was_zeroed_is_no_end(tmp_path: Path) -> None:
    archive = tar_of(some_images())
    header = headers_of(archive)[3]
    zeroed = archive[:header] + bytes(BLOCK) + archive[header + BLOCK :]
    with pytest.raises(DataError, match=rf"damaged at byte {header} \(one empty block, where two end an archive"):
        open_archive(tmp_path / "source", zeroed)


def header(name: str = "cats/1.jpg", **fields: object) -> bytes:
    """One header as GNU tar writes it, with what nobody would write."""
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("pax", type=kind, size=len(records)) + records + bytes(-len(records) % BLOCK)


def record(name: str, value: str) -> bytes:
    text = f" {name}={value}\n"
    size = next(size for size in range(len(text), len(text) + 9) if len(f"{size}{text}") == size)
    return f"{size}{text}".encode()


def with_checksum(header: bytes) -> bytes:
    block = bytearray(header)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


END = bytes(2 * BLOCK)


def within(archive: bytes) -> bytes:
    return header("n1.tar", size=len(archive)) + archive + bytes(-len(archive) % BLOCK)


DAMAGED = {
    "a negative size": (header(size=-5), "a size of -5"),
    "a size that is no number": (pax(record("size", "many")) + header(), "a size of b'many'"),
    "a member longer than the file": (header(size=1 << 30), "cut off: of the 512 bytes from byte 10737"),
    "a text longer than the file": (header("1.json", size=99_999), "cut off: of the 99999 bytes from byte 512"),
    "a huge name": (header(type=tarfile.GNUTYPE_LONGNAME, size=1 << 40), f"an extended header of {1 << 40} bytes"),
    "a huge pax header": (header(type=tarfile.XHDTYPE, size=MAX_EXTENDED_BYTES + 1), "an extended header of 1048577"),
    "pax without records": (pax(b"path\n") + header(), "not a list of pax records"),
    "a record that is too short": (pax(b"7 path=x\n") + header(), "not a list of pax records"),
    "a header of nothing": (pax(record("path", "a/b.jpg")), "end of file header"),
    "an archive within, damaged": (within(b"GIF89a" * 99), r"'n1\.tar' in .* at byte 0 \(.*archive, not compressed\?"),
    "an archive within, cut off": (within(header(size=700) + bytes(600)), r"'n1\.tar' in .* cut off: .* byte 1536 on"),
    "an archive within and more": (within(END + header()), r"'n1\.tar' in .* goes on behind its end, at byte 1024"),
    "no archive": (b"GIF89a" * 500, r"damaged at byte 0.* \(.*; is it a tar archive, plain or by gzip or zstd\?"),
}
REFUSED = {
    "an absolute name": (header("/etc/passwd.jpg"), "'/etc/passwd.jpg' cannot be a key, because it is absolute"),
    "a name that leads out": (header("../../x.jpg"), r"'../../x.jpg' cannot be a key, because it has the part '\.\.'"),
    "a folder left out": (header("a//x.jpg"), "the part ''"),
    "two lines": (header("a/x\n.jpg"), r"'a/x\\n.jpg' cannot be a key, because it has control characters"),
    "no UTF-8": (with_checksum(header("a/x.jpg").replace(b"x.jpg", b"\xff.jpg")), "a key, because it is not UTF-8"),
    "a long name": (pax(record("path", "a/" + "x" * 5000)) + header(), "because it has 5002 bytes, more than 4096"),
    "a hard link within": (within(header(type=tarfile.LNKTYPE) + END), r"'cats/1.jpg' of 'n1\.tar' in .* a hard link"),
    "a hard link": (header(type=tarfile.LNKTYPE, linkname="x"), "not a regular file but a hard link; pack again with"),
    "a symbolic link": (header(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a symbolic link; .* tar --dereference"),
    "a device": (header(type=tarfile.CHRTYPE), "'cats/1.jpg' .* of type b'3'"),
    "a sparse file": (header(type=tarfile.GNUTYPE_SPARSE), "a sparse file; pack again .* without --sparse"),
    "a sparse file by pax": (pax(record("GNU.sparse.name", "a/b.jpg")) + header(), "'a/b.jpg' .* a sparse file"),
    "the same but for a dot": (header() + header("./cats/1.jpg"), "key some/cats/1.jpg comes twice: in .*some.tar"),
}


@pytest.mark.parametrize("what", [*DAMAGED, *REFUSED])
def test_an_unusable_archive_is_refused_and_nothing_is_written(what: str, tmp_path: Path) -> None:
    data, line = (DAMAGED | REFUSED)[what]
    with pytest.raises(DataError if what in DAMAGED else UsageError, match=line) as raised:
        open_archive(tmp_path / "source", data + END)
    assert str(raised.value).isprintable()
    assert "some.tar" in str(raised.value)
    before = contents(tmp_path)
    with pytest.raises(type(raised.value), match=line):
        ingest_here(tmp_path / "source", tmp_path / "below" / "root")
    assert contents(tmp_path) == before


@pytest.mark.integration
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_memory_does_not_grow_with_the_archive(codec: str, tmp_path: Path) -> None:
    """40 MB of images, as much that is not an image, and as much behind the end."""
    small, large = tmp_path / "small.tar.gz", tmp_path / "large.tar"
    small.write_bytes(packed(tar_of(some_images()), codec))
    images = [Entry(f"c{number % 2}/{number:06d}.jpg", bytes([number % 256]) * 50_000) for number in range(800)]
    archive = tar_of([Entry("c0/bomb.bin", bytes(40_000_000)), *images]) + bytes(40_000_000)
    large.write_bytes(packed(archive, codec))
    prepare = f"from tests.lib.inline import ingest_here\ningest_here({str(small)!r}, {str(tmp_path / 'one')!r})"
    assert peak_growth_bytes(prepare, f"ingest_here({str(large)!r}, {str(tmp_path / 'two')!r})") < 20 << 20
