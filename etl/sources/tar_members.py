"""The members of a tar archive, from its headers, and nothing taken for granted.

Formats: ustar and pax (IEEE Std 1003.1-2017, pax, "Extended Description"), GNU's long names, and v7. Headers are parsed
by `tarfile.TarInfo`, but not walked by `tarfile.TarFile`, which takes a header that is damaged, cut off or missing for
the end of the archive, and reads extended headers whole, however large.
"""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from etl.errors import DataError, UsageError
from etl.sources.decompress import ByteRange
from etl.sources.fields import fault_of_name
from etl.sources.file_names import INNER_ARCHIVES

MOST_MEMBER_BYTES = 1 << 30
MOST_EXTENDED_BYTES = 1 << 20  # of an extended header

_BLOCK = tarfile.BLOCKSIZE
_TAIL = 1 << 16
_GNU_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_SPARSE = "GNU.sparse."
_OF_USE = ("path", "size", "GNU.sparse.name")
_REFUSED = {
    tarfile.LNKTYPE: "a hard link; pack again with: tar --hard-dereference",
    tarfile.SYMTYPE: "a symbolic link; pack again with: tar --dereference",
    tarfile.CHRTYPE: "a device; pack again without it",
    tarfile.BLKTYPE: "a device; pack again without it",
    tarfile.FIFOTYPE: "a FIFO; pack again without it",
    tarfile.GNUTYPE_SPARSE: "a sparse file; pack again without: tar --sparse",
}
_RECORD = re.compile(rb"([1-9][0-9]{0,6}) ([^=]+)=")

Fields = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive: its name, a relative path, and where its bytes are in the unpacked archive.

    ``inner`` is the name of the archive within the archive that contains it; its name then begins with that, without
    the suffix, as if it were a folder.
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
        return self._outer.read(self._member.offset + offset, max(0, min(size, self._member.size - offset)))


def read_members(file: ByteRange) -> Iterator[Member]:
    """The regular files of an archive, in order; folders are passed over.

    Between one and the next the reader may be moved on by reading what the member holds.

    Raises DataError where the archive is damaged, cut off or has more behind its end, UsageError for a member that is
    no regular file, or whose name is absolute, leads out, or is no line of UTF-8.
    """
    return _Walk(file).members()


class _Walk:
    def __init__(self, file: ByteRange) -> None:
        self._file = file

    def members(self) -> Iterator[Member]:
        offset = 0
        while (block := self._file.read_exactly(offset, _BLOCK)).strip(b"\0"):
            said: Fields = {}
            info = self._parse(block, offset)
            while info.type in _GNU_LONG or info.type in _PAX:
                said |= self._extended(info, offset)
                offset += _BLOCK + _padded(info.size)
                info = self._parse(self._file.read_exactly(offset, _BLOCK), offset)
            member, is_folder = self._member(info, said, offset)
            if is_folder:
                offset += _BLOCK
                continue
            yield member
            offset = member.offset + _padded(member.size)
        self._require_end(offset)

    def _parse(self, block: bytes, offset: int) -> tarfile.TarInfo:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            self._damaged(offset, f"{error}" if offset else f"{error}; is it a tar archive, {self._file.forms}?")
        if info.size < 0:
            self._damaged(offset, f"a size of {info.size}")
        return info

    def _extended(self, info: tarfile.TarInfo, offset: int) -> Fields:
        """What an extended header says of the member that follows; of all that follow nothing of use may be said."""
        if info.size > MOST_EXTENDED_BYTES:
            self._damaged(offset, f"an extended header of {info.size} bytes")
        content = self._file.read_exactly(offset + _BLOCK, info.size)
        if info.type in _GNU_LONG:
            return {"path": content.partition(b"\0")[0]} if info.type == tarfile.GNUTYPE_LONGNAME else {}
        fields = _pax_fields(content)
        if fields is None:
            self._damaged(offset, "an extended header that is no list of pax records")
        if any(name.startswith(_SPARSE) for name in fields):
            fields[_SPARSE] = b""
        said = {name: fields[name] for name in (*_OF_USE, _SPARSE) if name in fields}
        if said and info.type == tarfile.XGLTYPE:
            self._damaged(offset, f"a global header with {next(iter(said))!r}, which no two members can share")
        return said

    def _member(self, info: tarfile.TarInfo, said: Fields, offset: int) -> tuple[Member, bool]:
        """The member of this header, and whether it is a folder."""
        path = said.get("GNU.sparse.name", said.get("path"))
        name = info.name if path is None else path.decode("utf-8", "surrogateescape")
        if info.isdir() or (info.type == tarfile.AREGTYPE and name.endswith("/")):  # the latter in v7
            return Member(name, offset, 0), True
        kind = tarfile.GNUTYPE_SPARSE if _SPARSE in said else info.type
        if kind not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
            what = _REFUSED.get(kind, f"of type {kind!r}; pack again without it")
            raise UsageError(f"the member {name[:200]!r} of {self._file} is no regular file but {what}")
        name = name.removeprefix("./")
        if fault := fault_of_name(name):
            raise UsageError(
                f"the member {name[:200]!r} of {self._file} cannot be taken: its name {fault}; pack again, with"
                " relative names in UTF-8"
            )
        size = info.size
        if "size" in said:
            if not re.fullmatch(rb"[0-9]{1,19}", said["size"]):
                self._damaged(offset, f"a size of {said['size'][:40]!r}")
            size = int(said["size"])
        if size > MOST_MEMBER_BYTES and not INNER_ARCHIVES.search(name):
            raise DataError(
                f"the member {name[:200]!r} of {self._file} claims {size} bytes, at byte {offset}"
                f"{self._file.of_content}; the most is {MOST_MEMBER_BYTES}: the archive is damaged, or pack again"
                " without it"
            )
        return Member(name, offset + _BLOCK, size), False

    def _require_end(self, offset: int) -> None:
        """Two empty blocks from ``offset`` on, and nothing but zeros behind them."""
        if self._file.read_exactly(offset + _BLOCK, _BLOCK).strip(b"\0"):
            self._damaged(offset, "one empty block, where two end an archive")
        offset += 2 * _BLOCK
        while tail := self._file.read(offset, _TAIL):
            if rest := tail.lstrip(b"\0"):
                raise DataError(
                    f"{self._file} goes on behind its end, at byte {offset + len(tail) - len(rest)}"
                    f"{self._file.of_content}; make archives that were joined files of their own, or copy it again"
                    " from where it came"
                )
            offset += len(tail)

    def _damaged(self, offset: int, what: str) -> NoReturn:
        raise DataError(
            f"{self._file} is damaged at byte {offset}{self._file.of_content} ({what}); copy it again from where"
            " it came"
        )


def _padded(size: int) -> int:
    return size + -size % _BLOCK


def _pax_fields(content: bytes) -> Fields | None:
    """The records of a pax header, each "LENGTH NAME=VALUE\\n"; None where it is anything else."""
    fields, position = Fields(), 0
    while position < len(content):
        record = _RECORD.match(content, position)
        end = position + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            return None
        fields[record[2].decode("utf-8", "replace")] = content[record.end() : end - 1]
        position = end
    return fields
