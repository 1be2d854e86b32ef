"""Small whole containers that `ringslice ingest` reads: files by name, and a function that reads a folder of them."""

import gzip
import io
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.errors import DataError, UsageError
from etl.raw.extra_columns import join_columns, read_columns
from etl.raw.packs import pieces
from etl.sources import SourceImage, open_source
from etl.storage.place import open_place
from tests.lib.damage.mutations import Mutation
from tests.lib.sources.archives import FORMATS, SUFFIXES, Entry, packed, some_images, tar_of

_IMAGES = 6

Container = tuple[Mapping[str, bytes], Callable[[Path], None]]


@cache
def containers() -> dict[str, Container]:
    """All containers, by name."""
    found: dict[str, Container] = {}
    labels = _idx_file(np.arange(_IMAGES) % 3)
    for name, stem, shape in (("gray", "train", (_IMAGES, 5, 4)), ("color", "t10k", (_IMAGES, 5, 4, 3))):
        pixels = _idx_file(np.arange(np.prod(shape)).reshape(shape))
        files = {f"{stem}-images-idx{len(shape)}-ubyte": pixels, f"{stem}-labels-idx1-ubyte": labels}
        found[f"idx-{name}"] = files, _read_source
        found[f"idx-{name}-gz"] = (
            {f"{file}.gz": gzip.compress(data, mtime=0) for file, data in files.items()},
            _read_source,
        )
    shard = [Entry(f"dogs/{n}.{kind}", data) for n in range(2) for kind, data in (("jpg", b"x" * 600), ("cls", b"1"))]
    archives = {f"tar-{kind}": tar_of(some_images(_IMAGES), kind) for kind in FORMATS} | {"webdataset": tar_of(shard)}
    for name, data in archives.items():
        for codec, suffix in SUFFIXES.items():
            found[f"{name}{suffix}"] = {f"train-0{suffix}": packed(data, codec)}, _read_source
    keys = _keys()
    patients = [f"p{number % 2}" for number in range(_IMAGES)]
    table = pa.table({"key": keys, "patient": patients, "age": [30] * _IMAGES})
    for compression in ("none", "snappy", "zstd"):
        pq.write_table(table, file := io.BytesIO(), compression=compression)
        found[f"columns-parquet-{compression}"] = {"columns.parquet": file.getvalue()}, _read_columns
    rows = "".join(f'{key},p{number % 2},"{number}, years"\n' for number, key in enumerate(keys))
    found["columns-csv"] = {"columns.csv": f"key,patient,age\n{rows}".encode()}, _read_columns
    return found


def outcome_of(read: Callable[[], object], mutation: Mutation) -> str:
    """'good', or the name of the error that ``read`` ends with: one line of text."""
    try:
        read()
    except (DataError, UsageError) as error:
        assert str(error).isprintable(), f"{mutation}: {str(error)!r} is not a line of text"
        assert len(str(error)) < 1000, f"{mutation}: its line has {len(str(error))} characters"
        return type(error).__name__
    except Exception as error:
        error.add_note(str(mutation))
        raise
    return "good"


def _keys() -> list[str]:
    return [f"cats/{number:03d}.png" for number in range(_IMAGES)]


def _idx_file(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bytes:
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def _read_source(folder: Path) -> None:
    source = open_source(open_place(str(folder)))
    for image, content in zip(source.images, source.read_all(source.images), strict=True):
        assert sum(map(len, pieces(content))) == image.size_bytes


def _read_columns(folder: Path) -> None:
    images = [SourceImage(key, 0, None, 1) for key in _keys()]
    (file,) = folder.iterdir()
    joined, _ = join_columns(images, read_columns(open_place(str(file))))
    assert [image.key for image in joined] == _keys()
