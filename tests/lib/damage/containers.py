"""Containers that `ringslice ingest` reads, small and whole, and how each is read to its end."""

import gzip
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.raw.extra_columns import join_columns, read_columns
from etl.raw.packs import pieces
from etl.sources import SourceImage, open_source
from etl.storage.place import open_place
from tests.lib.sources.archives import FORMATS, SUFFIXES, Entry, packed, some_images, tar_of

_IMAGES = 6


@dataclass(frozen=True)
class Container:
    """``files`` by name, and what reads them to their end in a folder: it raises DataError or UsageError, or not."""

    files: Mapping[str, bytes]
    read: Callable[[Path], None]


@cache
def containers() -> dict[str, Container]:
    """All containers, by name."""
    gray, colored = _idx((_IMAGES, 5, 4)), _idx((_IMAGES, 5, 4, 3))
    labels = _idx_file(np.arange(_IMAGES) % 3)
    pairs = {
        "idx-gray": {"train-images-idx3-ubyte": gray, "train-labels-idx1-ubyte": labels},
        "idx-color": {"t10k-images-idx4-ubyte": colored, "t10k-labels-idx1-ubyte": labels},
    }
    found = {name: Container(files, _read_source) for name, files in pairs.items()}
    for name, files in pairs.items():
        zipped = {f"{file}.gz": gzip.compress(data, mtime=0) for file, data in files.items()}
        found[f"{name}-gz"] = Container(zipped, _read_source)
    found |= _archives()
    patients = [f"p{number % 2}" for number in range(_IMAGES)]
    table = pa.table({"key": _keys(), "patient": patients, "age": [30] * _IMAGES})
    for compression in ("none", "snappy", "zstd"):
        file = io.BytesIO()
        pq.write_table(table, file, compression=compression)
        table_file = {"columns.parquet": file.getvalue()}
        found[f"columns-parquet-{compression}"] = Container(table_file, _read_parquet)
    rows = "".join(f'{key},p{number % 2},"{number}, years"\n' for number, key in enumerate(_keys()))
    found["columns-csv"] = Container({"columns.csv": f"key,patient,age\n{rows}".encode()}, _read_csv)
    return found


def _archives() -> dict[str, Container]:
    """Images in folders by every format of tar, and a shard of WebDataset, each plain and packed."""
    told = [Entry(f"dogs/{n}.{kind}", data) for n in range(2) for kind, data in (("jpg", b"x" * 600), ("cls", b"1"))]
    archives = {f"tar-{kind}": tar_of(some_images(_IMAGES), kind) for kind in FORMATS} | {"webdataset": tar_of(told)}
    return {
        f"{name}{SUFFIXES[codec]}": Container({f"train-0{SUFFIXES[codec]}": packed(data, codec)}, _read_source)
        for name, data in archives.items()
        for codec in SUFFIXES
    }


def _keys() -> list[str]:
    return [f"cats/{number:03d}.png" for number in range(_IMAGES)]


def _idx(shape: tuple[int, ...]) -> bytes:
    return _idx_file(np.arange(np.prod(shape)).reshape(shape))


def _idx_file(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bytes:
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def _read_source(folder: Path) -> None:
    source = open_source(open_place(str(folder)))
    for image, content in zip(source.images, source.read_all(source.images), strict=True):
        assert sum(map(len, pieces(content))) == image.size_bytes


def _read_parquet(folder: Path) -> None:
    _read_columns(folder / "columns.parquet")


def _read_csv(folder: Path) -> None:
    _read_columns(folder / "columns.csv")


def _read_columns(file: Path) -> None:
    images = [SourceImage(key, 0, None, 1) for key in _keys()]
    joined, _ = join_columns(images, read_columns(open_place(str(file))))
    assert [image.key for image in joined] == _keys()
