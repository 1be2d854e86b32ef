"""Files that may be packed by gzip or zstd, read from front to back as what they unpack to."""

import io
import re
from types import TracebackType
from typing import Self

import pyarrow
from pyarrow import fs

from etl.errors import DataError
from etl.storage.place import Place

_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # RFC 1952, 2.3.1; RFC 8878, 3.1.1
_SKIPPABLE = b"\x2a\x4d\x18"  # bytes 1 to 3 of a frame of zstd that holds no data: RFC 8878, 3.1.2
_CODEC_SAYS = re.compile("zlib|ZSTD|Truncated compressed stream")  # as Arrow tells it from failures to read
_SKIPPED_AT_ONCE = 1 << 16


class ByteRange:
    """Bytes by their offset: those of a file, or of a part of one. As text it is named for messages."""

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


class UnpackedFile(ByteRange):
    """A file's bytes by their offset; those of a packed one, told by its first bytes, are behind all before them.

    ``is_packed`` tells of it, ``info`` what the file was when it was opened. Memory does not grow with the file.
    """

    def __init__(self, place: Place, buffer_bytes: int) -> None:
        self.place = place
        self.info: fs.FileInfo = place.info()
        with place.filesystem.explaining(place.path):
            plain = place.open_input()
            self._codec = _codec(plain.read_at(min(4, self.info.size), 0))
        self.of_content = " of its content" if self.is_packed else ""
        self._file = io.BufferedReader(plain, buffer_bytes)
        self._position = 0
        if self.is_packed:
            self._file.close()
            self._file = self._open_packed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self.place)

    def close(self) -> None:
        self._file.close()

    @property
    def is_packed(self) -> bool:
        return self._codec is not None

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, fewer where the file ends. To go back in a packed one is to start again.

        Raises DataError where what is packed is damaged or cut off.
        """
        with self.place.filesystem.explaining(self.place.path):
            if not self.is_packed:
                size = max(0, min(size, self.info.size - offset))  # HDFS has no places behind the end
                return self._file.read(size) if size and self._file.seek(offset) == offset else b""
            try:
                return self._read_packed(offset, size)
            except OSError as error:
                if not _CODEC_SAYS.match(str(error)):
                    raise
                raise DataError(
                    f"{self.place} is damaged or cut off: it does not unpack as {self._codec} behind byte"
                    f" {self._position} of its content ({error}); copy it again from where it came"
                ) from None

    def _open_packed(self) -> io.BufferedReader:
        return io.BufferedReader(pyarrow.CompressedInputStream(self.place.open_stream(), self._codec), _SKIPPED_AT_ONCE)

    def _read_packed(self, offset: int, size: int) -> bytes:
        if offset < self._position:
            self._file.close()
            self._file, self._position = self._open_packed(), 0
        while rest := offset - self._position:
            skipped = len(self._file.read(min(rest, _SKIPPED_AT_ONCE)))
            if not skipped:
                return b""
            self._position += skipped
        data = self._file.read(size)
        self._position += len(data)
        return data


def _codec(start: bytes) -> str | None:
    """How a file that starts with these four bytes is packed; None where it is not."""
    if start[1:] == _SKIPPABLE and start[0] >> 4 == 5:
        return "zstd"
    return next((codec for magic, codec in _CODECS.items() if start.startswith(magic)), None)
