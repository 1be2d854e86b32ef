"""Read files by offset, also those compressed with gzip or zstd, from front to back."""

import io
import re
from types import TracebackType
from typing import Self

from pyarrow import NativeFile, fs

from etl.errors import DataError
from etl.storage.place import Place

_CODECS = {  # RFC 1952, 2.3.1; RFC 8878, 3.1.1 and 3.1.2 (a frame without data)
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
_CODEC_ERROR = re.compile("zlib|ZSTD|Truncated compressed stream")  # of Arrow, unlike those of storage
_SKIPPED_AT_ONCE = 1 << 16


class ByteRange:
    """Bytes by their offset: those of a file, or of a part of one. Its text names it in messages."""

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
    """A file's content by offset, decompressed if its first bytes are those of gzip or zstd.

    ``is_packed`` is True if it is compressed; ``info`` describes the file when it was opened. Memory does not grow with
    the file.
    """

    def __init__(self, place: Place, buffer_bytes: int) -> None:
        self.place = place
        self.info: fs.FileInfo = place.info()
        with place.filesystem.explaining(place.path):
            plain = place.open_input()
            start = plain.read_at(min(4, self.info.size), 0)
            self._codec = next((codec for codec, magic in _CODECS.items() if magic.match(start)), None)
            self.is_packed = self._codec is not None
            self._file: io.BufferedReader | NativeFile = io.BufferedReader(plain, buffer_bytes)
            if self.is_packed:
                self.of_content = " of its content"
                self._open_again()

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

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, fewer if the file ends. Going back in a compressed one starts it again.

        Raises DataError if compressed data is damaged or truncated.
        """
        with self.place.filesystem.explaining(self.place.path):
            if not self.is_packed:
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
