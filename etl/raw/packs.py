"""Packs: tar files of images, with an image list beside each; or the source's own files, of which only lists are made.

Headers are POSIX pax (IEEE Std 1003.1-2001) with every field that could tell when or by whom set to a constant: the
same images, the same bytes.
"""

import hashlib
import tarfile
from collections.abc import Iterable, Iterator

from etl.errors import DataError
from etl.storage.atomic import OutputFile
from etl.storage.place import Place, open_place

Content = bytes | Iterator[bytes]  # of an image file: whole, or piece by piece (as `etl.sources.base` has it)


def list_place(raw: Place, pack: str) -> Place:
    """The image list of a pack."""
    return raw / "packs" / f"{pack}.parquet"


def pack_place(raw: Place, pack: str, file: str | None = None) -> Place:
    """The file with a pack's images; ``file`` is its URI if it is the source's own, left where it lies."""
    return open_place(file) if file else raw / "packs" / f"{pack}.tar"


class TarWriter:
    """Writes members to a tar file, one after the other, and knows where each member's bytes begin."""

    def __init__(self, output: OutputFile) -> None:
        self._output = output

    def add(self, name: str, content: Content, size_bytes: int) -> tuple[int, bytes]:
        """Append a member, which is whole or comes in pieces; returns the offset of its bytes, and their SHA-256."""
        header = tarfile.TarInfo(name)
        header.size = size_bytes
        self._output.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        offset, digest = self._output.size_bytes, hashlib.sha256()
        for piece in pieces(content):
            self._output.write(piece)
            digest.update(piece)
        if self._output.size_bytes - offset != size_bytes:
            raise DataError(f"{name} is not the file of {size_bytes} bytes that it was; run again")
        self._output.write(bytes(-size_bytes % tarfile.BLOCKSIZE))
        return offset, digest.digest()

    def finish(self) -> None:
        """Write the end of the archive: two empty blocks, up to a whole record."""
        self._output.write(bytes(2 * tarfile.BLOCKSIZE))
        self._output.write(bytes(-self._output.size_bytes % tarfile.RECORDSIZE))


def pieces(content: Content) -> Iterable[bytes]:
    """An image file's bytes, one after the other, where they are whole too."""
    return (content,) if isinstance(content, bytes) else content


def content_sha256(content: Content) -> bytes:
    """SHA-256 of an image file's bytes, as 32 bytes."""
    digest = hashlib.sha256()
    for piece in pieces(content):
        digest.update(piece)
    return digest.digest()
