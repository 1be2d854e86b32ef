"""Places: files and folders on any root, opened from a URI, read through ``pyarrow.fs``; JSON files of stages."""

import functools
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import pyarrow
from pyarrow import fs

from etl.errors import DataError, UsageError, require_utf8
from etl.hadoop.site_config import SITE_VARIABLES
from etl.storage.filesystem import Filesystem, LocalFilesystem
from etl.storage.hdfs_settings import LIBHDFS, NATIVE, HdfsSettings, authority_of

DATA_PLACE = "RINGSLICE_DATA"


def default_data_place() -> str:
    """``$RINGSLICE_DATA``, else ``data`` in the current folder."""
    return os.environ.get(DATA_PLACE) or "data"


READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """A file or folder: a filesystem and an absolute path on it. ``place / "name"`` is one level down."""

    filesystem: Filesystem
    path: str

    def __truediv__(self, name: str) -> "Place":
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> "Place":
        """The folder that this is in."""
        return Place(self.filesystem, self.path.rstrip("/").rsplit("/", 1)[0] or "/")

    @property
    def uri(self) -> str:
        """The text that `open_place` takes, in any process."""
        return self.filesystem.uri(self.path)

    def info(self) -> fs.FileInfo:
        """Type, size and time of change; the type is NotFound if nothing is there."""
        return self.filesystem.arrow.get_file_info(self.path)

    def exists(self) -> bool:
        """True if a file or folder is there."""
        return bool(self.info().type != fs.FileType.NotFound)

    def children(self, recursive: bool = False) -> list[fs.FileInfo]:
        """What is below, sorted by path; empty if there is no such folder.

        Raises UsageError for a name that is not UTF-8.
        """
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        try:
            return sorted(self.filesystem.arrow.get_file_info(selector), key=lambda info: info.path)
        except UnicodeDecodeError as error:
            raise UsageError(f"the name {error.object!r} below {self} is not UTF-8; rename it") from None

    @property
    def real_path(self) -> str:
        """The path with symbolic links followed, if the filesystem has them."""
        return self.filesystem.real_path(self.path)

    def open_input(self) -> pyarrow.NativeFile:
        """Open for reading at any offset. Raises FileNotFoundError."""
        return self.filesystem.arrow.open_input_file(self.path)

    def open_stream(self, compression: str | None = None) -> pyarrow.NativeFile:
        """Open for reading from front to back, buffered, and decompressed with this codec."""
        return self.filesystem.arrow.open_input_stream(
            self.path, compression=compression, buffer_size=READ_BUFFER_BYTES
        )

    def read_bytes(self) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        with (
            self.filesystem.explain_errors(self.path),
            self.filesystem.arrow.open_input_stream(self.path, compression=None) as stream,
        ):
            return cast(bytes, stream.read())

    def read_json(self) -> dict[str, Any]:
        """The JSON object in this file. Raises DataError if it is not one."""
        return self.parse_json(self.read_bytes())

    def parse_json(self, data: bytes) -> dict[str, Any]:
        """The JSON object that is ``data``, the content of this file. Raises DataError if it is not one."""
        try:
            if not isinstance(found := json.loads(data), dict):
                raise ValueError(f"it is {type(found).__name__}, not an object")
            return found
        except ValueError as error:
            raise DataError(f"{self} is not JSON ({error}); it was damaged or written by something else") from None

    def sha256(self) -> str:
        """SHA-256 of the file's content, in hexadecimal, read in chunks."""
        with self.filesystem.explain_errors(self.path), self.open_stream() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def resolved(self) -> "Place":
        """This place with symbolic links followed."""
        return replace(self, path=self.real_path)

    def path_within(self, folder: "Place") -> str | None:
        """The path from ``folder`` to this, with symbolic links followed and a slash at its end; empty if this is
        ``folder``, None if it does not lie below it.
        """
        inside, above = f"{self.real_path}/", f"{folder.real_path.rstrip('/')}/"
        is_within = self.filesystem == folder.filesystem and inside.startswith(above)
        return inside.removeprefix(above) if is_within else None

    def make_folder(self) -> "Place":
        """Make this folder, with those above it; it may exist. Returns this place."""
        self.filesystem.make_folder(self.path)
        return self

    def delete(self) -> None:
        """Delete this file or folder with all below it, if it exists."""
        info = self.info()
        try:
            if info.type == fs.FileType.Directory:
                self.filesystem.arrow.delete_dir(self.path)
            elif info.type != fs.FileType.NotFound:
                self.filesystem.arrow.delete_file(self.path)
        except FileNotFoundError:  # another was faster
            pass


_LOCAL = LocalFilesystem()
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|[A-Za-z]:\\")


def open_place(uri: str) -> Place:
    """The place that ``uri`` names: a bare local path, a ``file://`` or an ``hdfs://`` URI.

    It connects when it is first used. Within one process, the same address and settings give the same connection.

    Raises UsageError for a scheme without a filesystem, and for bytes that are not UTF-8.
    """
    require_utf8("the place", uri)
    if not uri:
        raise UsageError("the place is empty; give a folder such as data/flowers or hdfs://namenode/datasets/flowers")
    scheme, separator, rest = uri.partition("://")
    if not separator and _ONE_SLASH.match(uri):  # hdfs:/x is, as for Hadoop, /x on the default filesystem
        scheme, separator, rest = uri.partition(":")
    if not separator:
        if (path := os.path.expanduser(uri)).startswith("~"):
            raise UsageError(f"the place {uri!r} begins with an unknown user; give ./{uri} for a folder of that name")
        return Place(_LOCAL, _local_path(path))
    authority, _, path = rest.partition("/")
    if scheme.lower() == "file" and authority in ("", "localhost"):
        return Place(_LOCAL, _local_path(unquote(f"/{path}", errors="surrogateescape")))
    if scheme.lower() == "hdfs":
        return Place(_hdfs(authority), posixpath.normpath(f"/{path.lstrip('/')}"))
    raise UsageError(
        f"cannot open {uri!r}: give a local path, file:///absolute/path or hdfs://namenode:port/absolute/path (for a"
        " mount of viewfs, what it is a link to; object storage has no rename that refuses a taken name)"
    )


def _local_path(path: str) -> str:
    path = os.path.abspath(path)
    require_utf8("the place", path)  # it may be below a current folder that is not
    return f"/{path.lstrip('/')}"  # POSIX lets //x be another place than /x; for Linux they are one


def _hdfs(authority: str) -> Filesystem:
    site = tuple(os.environ.get(name) for name in SITE_VARIABLES)
    return _hdfs_of_site(authority, HdfsSettings.from_environment(), site)


@functools.cache  # of the files of a site, too: they are read once
def _hdfs_of_site(authority: str, settings: HdfsSettings, site: tuple[str | None, ...]) -> Filesystem:
    canonical = authority_of(authority)
    if canonical != authority:
        return _hdfs_of_site(canonical, settings, site)
    from etl.storage.libhdfs import LibhdfsHdfs  # local work needs no HDFS client
    from etl.storage.native import NativeHdfs

    return {NATIVE: NativeHdfs, LIBHDFS: LibhdfsHdfs}[settings.driver](authority, settings)


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """A marker with this ``content``, of which a member ``checksum`` is replaced: the SHA-256, in hexadecimal, of the
    rest as canonical JSON (UTF-8, sorted keys, no space between tokens)."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return {**rest, "checksum": hashlib.sha256(canonical.encode()).hexdigest()}


def has_checksum(marker: Mapping[str, Any]) -> bool:
    """True if a marker that was read is one that `with_checksum` made, which has no number or text that JSON lacks."""
    try:
        return with_checksum(marker) == marker
    except ValueError:
        return False


def json_bytes(value: object) -> bytes:
    """``value`` as the JSON text that markers are written in: the same value, the same bytes.

    A value without nested objects or lists is on one line.
    """
    return (_json_text(value, 0) + "\n").encode()


def _json_text(value: object, depth: int) -> str:
    if isinstance(value, np.ndarray):  # a row of a matrix: of the whole, no list is made
        return json.dumps(value.tolist(), allow_nan=False)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not any(isinstance(child, dict | list | tuple | np.ndarray) and len(child) for child in children):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    indent = "\n" + " " * (depth + 1)
    items = [_json_text(child, depth + 1) for child in children]
    if isinstance(value, dict):
        items = [
            f"{json.dumps(str(key), ensure_ascii=False, allow_nan=False)}: {item}"
            for key, item in zip(value, items, strict=True)
        ]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{opening}{indent}" + f",{indent}".join(items) + "\n" + " " * depth + closing
