"""A filesystem whose N-th call fails, before or after it took effect; and one that is gone from that call on."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow
from pyarrow import fs

from etl.storage.filesystem import Filesystem
from etl.storage.place import Place

READ = "read"


class FaultError(OSError):
    """What the failing call raises."""


@dataclass
class Fault:
    """The ``number``-th call fails (from 1; 0: none). With ``dies`` so does every later one: the process is gone."""

    number: int = 0
    after: bool = False
    dies: bool = False
    calls: list[str] = field(default_factory=list)

    @property
    def hit(self) -> bool:
        return 0 < self.number <= len(self.calls)

    def call(self, kind: str, function: Callable[[], Any]) -> Any:
        self.calls.append(kind)
        turn = len(self.calls) == self.number
        if (turn and not self.after) or (self.dies and self.hit and not turn):
            raise FaultError(f"call {len(self.calls)} ({kind}) failed")
        result = function()
        if turn:
            raise FaultError(f"call {len(self.calls)} ({kind}) failed after it took effect")
        return result


@contextmanager
def fill_disk() -> Iterator[None]:
    """Have the kernel refuse every further byte that this process writes to a file."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


class FaultyFilesystem(Filesystem):
    scheme = "faulty"

    def __init__(self, inner: Filesystem, fault: Fault) -> None:
        self._inner, self._fault = inner, fault
        self._arrow = fs.PyFileSystem(_Handler(inner.arrow, fault))

    @property
    def arrow(self) -> fs.FileSystem:
        return self._arrow

    def uri(self, path: str) -> str:
        return self._inner.uri(path)

    def open_new(self, path: str) -> pyarrow.NativeFile:
        stream = self._fault.call("create", lambda: self._inner.open_new(path))
        return pyarrow.PythonFile(_Stream(stream, self._fault), mode="w")

    def sync(self, path: str) -> None:
        self._inner.sync(path)

    def sync_folder(self, path: str) -> None:
        self._inner.sync_folder(path)

    def rename_new(self, path: str, target: str) -> None:
        self._fault.call("rename", lambda: self._inner.rename_new(path, target))

    def replace(self, path: str, target: str) -> None:
        self._fault.call("rename", lambda: self._inner.replace(path, target))

    def delete_empty(self, path: str) -> None:
        self._fault.call("delete", lambda: self._inner.delete_empty(path))

    def touch(self, path: str) -> None:
        self._inner.touch(path)


def faulty(place: Place, fault: Fault) -> Place:
    return Place(FaultyFilesystem(place.filesystem, fault), place.path)


class _Stream:
    closed = False

    def __init__(self, stream: pyarrow.NativeFile, fault: Fault) -> None:
        self._stream, self._fault = stream, fault

    def write(self, data: Any) -> None:
        self._fault.call("write", lambda: self._stream.write(data))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fault.call("close", self._stream.close)


class _Handler(fs.FileSystemHandler):
    def __init__(self, inner: fs.FileSystem, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return self._fault.call("list", lambda: self._inner.get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._fault.call("list", lambda: self._inner.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._fault.call("make folder", lambda: self._inner.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self._fault.call("delete", lambda: self._inner.delete_dir(path))

    def delete_file(self, path: str) -> None:
        self._fault.call("delete", lambda: self._inner.delete_file(path))

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self._fault.call(READ, lambda: self._inner.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self._fault.call(READ, lambda: self._inner.open_input_file(path))

    def _unused(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError

    delete_dir_contents = delete_root_dir_contents = move = copy_file = _unused
    open_output_stream = open_append_stream = _unused
