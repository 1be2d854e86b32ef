"""Packs: tar files of images, with an image list beside each; or the source's own files, of which only lists are made.

Headers are POSIX pax (IEEE Std 1003.1-2001) with every field that could tell when or by whom set to a constant: the
same images, the same bytes.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from etl.storage.atomic import OutputFile
from etl.storage.place import Place, open_place

PACK_FOLDERS = ("packs", "removed")


def list_place(raw: Place, pack: str) -> Place:
    """The image list of a pack."""
    return raw / "packs" / f"{pack}.parquet"


def pack_place(raw: Place, pack: str, file: str | None = None) -> Place:
    """The file that holds a pack's images; ``file`` is its URI where it is the source's own, left where it lies."""
    return open_place(file) if file else raw / "packs" / f"{pack}.tar"


def pack_files(marker: Mapping[str, Any]) -> Iterator[str]:
    """The files that a marker of ``raw`` names in `PACK_FOLDERS`, as paths below it."""
    for pack in marker["packs"]:
        yield f"packs/{pack['name']}.parquet"
        if "file" not in pack:
            yield f"packs/{pack['name']}.tar"
    if marker["removed"] is not None:
        yield marker["removed"]["file"]


class TarWriter:
    """Writes members to a tar file, one after the other, and knows where each member's bytes begin."""

    def __init__(self, output: OutputFile) -> None:
        self._output = output

    def add(self, name: str, data: bytes) -> int:
        """Append a member; returns the offset of its bytes in the file."""
        header = tarfile.TarInfo(name)
        header.size = len(data)
        self._output.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        offset = self._output.size_bytes
        self._output.write(data)
        self._output.write(bytes(-len(data) % tarfile.BLOCKSIZE))
        return offset

    def finish(self) -> None:
        """Write the end of the archive: two empty blocks, up to a whole record."""
        self._output.write(bytes(2 * tarfile.BLOCKSIZE))
        self._output.write(bytes(-self._output.size_bytes % tarfile.RECORDSIZE))


def content_sha256(data: bytes) -> bytes:
    """SHA-256 of an image file's bytes, as 32 bytes."""
    return hashlib.sha256(data).digest()
