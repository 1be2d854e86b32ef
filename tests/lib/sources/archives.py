"""Archives to be read, good and bad: members as bytes, in every format of tar, packed or not; and opening sources."""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.errors import RingsliceError
from etl.raw.packs import pieces
from etl.sources.base import Source, SourceOptions
from etl.sources.detect import open_source
from etl.storage.place import Place, open_place

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
SUFFIXES = {"": ".tar", "gzip": ".tar.gz", "zstd": ".tar.zst"}


@dataclass(frozen=True)
class Entry:
    """A member to be written; ``fields`` are those of `tarfile.TarInfo`."""

    name: str
    data: bytes = b""
    fields: dict[str, Any] = field(default_factory=dict)


def tar_of(entries: Iterable[Entry], kind: str = "pax", headers: dict[str, str] | None = None) -> bytes:
    """An archive; ``headers`` are global ones of pax."""
    output = io.BytesIO()
    with tarfile.open(None, "w", output, format=FORMATS[kind], encoding="utf-8", pax_headers=headers) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.size = len(entry.data)
            for name, value in entry.fields.items():
                setattr(info, name, value)
            archive.addfile(info, io.BytesIO(entry.data))
    return output.getvalue()


def packed(data: bytes, codec: str) -> bytes:
    """The same, packed with this codec; as it is for ""."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    return bytes(pa.Codec(codec).compress(data, asbytes=True)) if codec else data


def tar_by_program(folder: Path, *options: str) -> bytes:
    """What GNU tar makes of everything in a folder, without the caller's TAR_OPTIONS."""
    words = ("tar", *options, "--sort=name", "-cf", "-", "-C", str(folder), ".")
    return subprocess.run(words, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True).stdout


def some_images(count: int = 6) -> list[Entry]:
    """Images by class, of sizes around those of blocks."""
    sizes = (0, 1, 511, 512, 513, 1024, 3000)
    return [
        Entry(f"{('cats', 'dogs')[number % 2]}/{number:03d}.jpg", bytes([65 + number]) * sizes[number % len(sizes)])
        for number in range(count)
    ]


def example(kind: str) -> list[Entry]:
    """Eight images, and a text of the last one: members with every header that a format has."""
    name = f"cats/{'long' * (20 if kind == 'ustar' else 60)}.jpg"
    sample = [Entry("dogs/9.json", b'{"label": "dogs", "n": 1}'), Entry("dogs/9.jpg", b"9" * 700)]
    return [*some_images(), Entry(name, b"n" * 600), *sample]


def open_archive(folder: Path, data: bytes, name: str = "some.tar", options: SourceOptions | None = None) -> Source:
    """The source of a folder with this archive in it, written again."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return open_source(open_place(str(folder)), options or SourceOptions())


def contents_of(source: Source) -> dict[str, bytes]:
    contents = zip(source.images, source.read_all(source.images), strict=True)
    return {image.key: b"".join(pieces(content)) for image, content in contents}


def refused(place: Place | Path, kind: type[RingsliceError], *texts: str, **options: Any) -> None:
    """Opening the source, or options all of it, fails with one line that has all this in it."""
    with pytest.raises(RingsliceError) as raised:
        contents_of(open_source(open_place(str(place)), SourceOptions(**options)))
    assert type(raised.value) is kind, raised.value
    assert str(raised.value).isprintable(), repr(str(raised.value))
    for each in texts:
        assert each in str(raised.value)
