"""Read tar archives, plain or compressed with gzip or zstd, from front to back: their members, and bytes by offset.

Formats: ustar, pax (IEEE Std 1003.1-2017), GNU long names, and v7.
`tarfile.TarInfo` parses the headers. `tarfile.TarFile` does not walk them: it ends silently at a damaged header,
ignores damaged pax records, and its pax parser takes quadratic time (CVE-2024-6232).
"""

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from pyarrow import NativeFile, fs

from etl.errors import DataError, UsageError
from etl.sources.fields import checked_key
from etl.storage.place import Place

MAX_EXTENDED_BYTES = 1 << 20  # of an extended header

_BLOCK = tarfile.BLOCKSIZE
_TAIL = 1 << 16
_NAME_BYTES, _MAGIC = 100, slice(257, 265)
_PASSED_OVER = (b"D", b"V")  # GNU's lists of the files of a folder, and labels of archives
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_NAMES = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link", tarfile.GNUTYPE_SPARSE: "a sparse file"}
_CODECS = {  # RFC 1952, 2.3.1; RFC 8878, 3.1.1 and 3.1.2 (a frame without data)
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
_CODEC_ERROR = re.compile("zlib|ZSTD|Truncated compressed stream")  # of Arrow, unlike those of storage
_SKIPPED_AT_ONCE = 1 << 16
_RECORD = re.compile(rb"([1-9][0-9]{0,6}) ([^=]+)=")


class ByteRange:
    """Bytes by their offset: those of a file, or of a part of one. `str` is its name in messages."""

    of_content = ""  # what follows an offset in a message
    forms = "plain or by gzip or zstd"  # of an archive in it

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, fewer at the end."""
        raise NotImplementedError

    def read_exactly(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on. Raises DataError if there are fewer."""
        data = self.read(offset, size)
        if len(data) < size:
            raise DataError(
                f"{self} is cut off: of the {size} bytes from byte {offset}{self.of_content} on only {len(data)}"
                " are there; copy it again from where it came"
            )
        return data


class DecompressedFile(ByteRange):
    """A file's content by offset, decompressed if its first bytes are those of gzip or zstd.

    ``is_compressed`` is True then; ``info`` describes the file when it was opened. Memory does not grow with
    the file.
    """

    def __init__(self, place: Place, buffer_bytes: int) -> None:
        self.place = place
        self.info: fs.FileInfo = place.info()
        with place.filesystem.explain_errors(place.path):
            plain = place.open_input()
            start = plain.read_at(min(4, self.info.size), 0)
            self._codec = next((codec for codec, magic in _CODECS.items() if magic.match(start)), None)
            self.is_compressed = self._codec is not None
            self._file: io.BufferedReader | NativeFile = io.BufferedReader(plain, buffer_bytes)
            if self.is_compressed:
                self.of_content = " of its content"
                self._open_again()

    def __str__(self) -> str:
        return str(self.place)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, fewer if the file ends. Going back in a compressed one starts it again.

        Raises DataError if compressed data is damaged or truncated.
        """
        with self.place.filesystem.explain_errors(self.place.path):
            if not self.is_compressed:
                size = max(0, min(size, self.info.size - offset))  # HDFS cannot seek behind the end
                return self._file.read(size) if size and self._file.seek(offset) == offset else b""
            try:
                if offset < self._position:
                    self._open_again()
                while (left := offset - self._position) and self._read_next(min(left, _SKIPPED_AT_ONCE)):
                    pass
                return self._read_next(size)
            except OSError as error:
                if not _CODEC_ERROR.match(str(error)):
                    raise
                raise DataError(
                    f"{self.place} is damaged or cut off: it does not unpack as {self._codec} behind byte"
                    f" {self._position} of its content ({error}); copy it again from where it came"
                ) from None

    def _read_next(self, size: int) -> bytes:
        data = self._file.read(size)
        self._position += len(data)
        return data

    def _open_again(self) -> None:
        self._file.close()
        self._file, self._position = self.place.open_stream(self._codec), 0


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive: its name, a relative path, and its bytes' offset in the unpacked archive.

    ``inner`` is the name of the archive within the archive that contains it; its name then begins with that name
    without the suffix, as if it were a folder.
    """

    name: str
    offset: int
    size: int
    inner: str = ""


class InnerArchive(ByteRange):
    """A plain tar archive that is a member of another, read from within that."""

    forms = "not compressed"

    def __init__(self, outer: ByteRange, member: Member) -> None:
        self._outer, self._member = outer, member

    def __str__(self) -> str:
        return f"{self._member.name[:200]!r} in {self._outer}"

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the member, fewer at its end."""
        return self._outer.read(self._member.offset + offset, max(0, min(size, self._member.size - offset)))


def read_members(file: ByteRange) -> Iterator[Member]:
    """Yield the regular files of an archive in order; folders are passed over.

    The caller may read a member's content before it asks for the next member.

    Raises DataError if the archive is damaged, truncated or continues after its end, UsageError for a member that is
    not a regular file, or whose name is absolute, leads out of the archive, or is not a line of UTF-8.
    """
    offset = 0
    while info := _read_header(file, offset):
        fields: dict[str, bytes] = {}
        while info.type in _EXTENDED:
            fields |= _read_extended(file, info, offset)
            offset += _BLOCK + _padded(info.size)
            info = _read_header(file, offset) or _raise_damaged(file, offset, "end of file header")
        if "path" in fields:
            info.name = fields["path"].decode("utf-8", "surrogateescape")
        if not re.fullmatch(rb"[0-9]{1,19}", size := fields.get("size", b"%d" % info.size)):
            _raise_damaged(file, offset, f"a size of {size[:40]!r}")
        info.size = 0 if info.isdir() else int(size)
        if "sparse" in fields:
            info.type = tarfile.GNUTYPE_SPARSE
        if not info.isdir() and info.type not in _PASSED_OVER:
            yield _to_member(file, info, offset)
        offset += _BLOCK + _padded(info.size)
    _require_end(file, offset)


def _read_header(file: ByteRange, offset: int) -> tarfile.TarInfo | None:
    """Parse the block at ``offset``; None if it is empty."""
    block = file.read_exactly(offset, _BLOCK)
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if not block.strip(b"\0"):
            return None
        _raise_damaged(file, offset, f"{error}" if offset else f"{error}; is it a tar archive, {file.forms}?")
    if info.size < 0:
        _raise_damaged(file, offset, f"a size of {info.size}")
    if block[_MAGIC] == tarfile.GNU_MAGIC:  # which has times where TarInfo looks for a prefix of the name
        info.name = block[:_NAME_BYTES].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return info


def _read_extended(file: ByteRange, info: tarfile.TarInfo, offset: int) -> dict[str, bytes]:
    """The "path", "size" and "sparse" that an extended header gives to the member that follows."""
    if info.size > MAX_EXTENDED_BYTES:
        _raise_damaged(file, offset, f"an extended header of {info.size} bytes")
    content = file.read_exactly(offset + _BLOCK, info.size)
    if info.type not in _PAX:
        return {"path": content.partition(b"\0")[0]} if info.type == tarfile.GNUTYPE_LONGNAME else {}
    fields: dict[str, bytes] = {}
    position = 0
    while position < len(content):  # records of the form "LENGTH NAME=VALUE\n"
        record = _RECORD.match(content, position)
        end = position + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            _raise_damaged(file, offset, "an extended header that is not a list of pax records")
        name, value = record[2], content[record.end() : end - 1]
        if name.startswith(b"GNU.sparse."):
            fields["sparse"] = value
        if name in (b"path", b"size", b"GNU.sparse.name"):
            fields["size" if name == b"size" else "path"] = value
        position = end
    return fields


def _to_member(file: ByteRange, info: tarfile.TarInfo, offset: int) -> Member:
    if info.type not in _REGULAR:
        raise UsageError(
            f"the member {info.name[:200]!r} of {file} is not a regular file but"
            f" {_NAMES.get(info.type, f'of type {info.type!r}')}; pack again with:"
            " tar --dereference --hard-dereference, without --sparse"
        )
    return Member(checked_key(info.name.removeprefix("./"), f"a member of {file}"), offset + _BLOCK, info.size)


def _require_end(file: ByteRange, offset: int) -> None:
    """Raise DataError unless two empty blocks follow ``offset``, and nothing but zeros."""
    if file.read_exactly(offset + _BLOCK, _BLOCK).strip(b"\0"):
        _raise_damaged(file, offset, "one empty block, where two end an archive")
    offset += 2 * _BLOCK
    while tail := file.read(offset, _TAIL):
        if rest := tail.lstrip(b"\0"):
            raise DataError(
                f"{file} goes on behind its end, at byte {offset + len(tail) - len(rest)}{file.of_content}; make"
                " archives that were joined files of their own, or copy it again from where it came"
            )
        offset += len(tail)


def _raise_damaged(file: ByteRange, offset: int, what: str) -> NoReturn:
    raise DataError(f"{file} is damaged at byte {offset}{file.of_content} ({what}); copy it again from where it came")


def _padded(size: int) -> int:
    return size + -size % _BLOCK
