"""Damaged files of sources give all images, or one line of error. Trials for `tests.lib.damage.trials`.

python -m tests.lib.damage.trials tests.lib.damage.sources:try_parquet 1234 1
"""

import gzip
import io
import random
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.errors import DataError, UsageError
from etl.raw.extra_columns import join_columns, read_columns
from etl.raw.packs import pieces
from etl.sources import SourceImage, open_source
from etl.storage.place import open_place
from tests.lib.damage.mutations import Mutation, mutate
from tests.lib.sources.archives import FORMATS, SUFFIXES, Entry, packed, some_images, tar_of
from tests.lib.sources.parquet_images import image_table, some_bytes

Files = Mapping[str, bytes]
Container = tuple[Files, Callable[[Path], None]]  # its files, and a function that reads a folder of them

_IMAGES, _ROWS = 6, 24
_KEYS = [f"cats/{number:03d}.png" for number in range(_IMAGES)]
_FOOTER_END = 8  # its length, and PAR1
_ONE_BYTE = "one byte"


def _outcome(files: Files, mutation: Mutation, damaged: str, read: Callable[[Path], None]) -> str:
    """'good', or the name of the error that reading ends with: one line of text."""
    with tempfile.TemporaryDirectory() as folder:
        for file, data in {**files, damaged: mutation.data}.items():
            (Path(folder) / file).parent.mkdir(exist_ok=True)
            (Path(folder) / file).write_bytes(data)
        try:
            read(Path(folder))
        except (DataError, UsageError) as error:
            assert str(error).isprintable(), f"{mutation}: {str(error)!r} is not a line of text"
            assert len(str(error)) < 1000, f"{mutation}: its line has {len(str(error))} characters"
            return type(error).__name__
        except Exception as error:
            error.add_note(str(mutation))
            raise
    return "good"


def _read_source(source: Path, images: int | None = None) -> None:
    opened = open_source(open_place(str(source)))
    sizes = [sum(map(len, pieces(content))) for content in opened.read_all(opened.images)]
    assert sizes == [image.size_bytes for image in opened.images], "images were lost"
    assert images in (None, len(sizes)), f"it has {len(sizes)} images"


# --- IDX files, archives and tables of columns ---


def try_container(number: int) -> str:
    files = {f"{name}/{file}": data for name, each in _containers().items() for file, data in each[0].items()}
    mutation = mutate(number, files)
    name, _, damaged = mutation.origin.partition("/")
    return _outcome(_containers()[name][0], mutation, damaged, _containers()[name][1])


@cache
def _containers() -> dict[str, Container]:
    found: dict[str, Container] = {}
    labels = _idx_file(np.arange(_IMAGES) % 3)
    for name, stem, shape in (("gray", "train", (_IMAGES, 5, 4)), ("color", "t10k", (_IMAGES, 5, 4, 3))):
        pixels = _idx_file(np.arange(np.prod(shape)).reshape(shape))
        files = {f"{stem}-images-idx{len(shape)}-ubyte": pixels, f"{stem}-labels-idx1-ubyte": labels}
        found[f"idx-{name}"] = files, _read_source
        zipped = {f"{file}.gz": gzip.compress(data, mtime=0) for file, data in files.items()}
        found[f"idx-{name}-gz"] = zipped, _read_source
    shard = [Entry(f"dogs/{n}.{kind}", data) for n in range(2) for kind, data in (("jpg", b"x" * 600), ("cls", b"1"))]
    archives = {f"tar-{kind}": tar_of(some_images(_IMAGES), kind) for kind in FORMATS} | {"webdataset": tar_of(shard)}
    for name, data in archives.items():
        for codec, suffix in SUFFIXES.items():
            found[f"{name}{suffix}"] = {f"train-0{suffix}": packed(data, codec)}, _read_source
    patients = [f"p{number % 2}" for number in range(_IMAGES)]
    for compression in ("none", "snappy", "zstd"):
        table = pa.table({"key": _KEYS, "patient": patients, "age": [30] * _IMAGES})
        pq.write_table(table, file := io.BytesIO(), compression=compression)
        found[f"columns-parquet-{compression}"] = {"columns.parquet": file.getvalue()}, _read_columns
    rows = "".join(
        f'{key},{patient},"{number}, years"\n'
        for number, (key, patient) in enumerate(zip(_KEYS, patients, strict=True))
    )
    found["columns-csv"] = {"columns.csv": f"key,patient,age\n{rows}".encode()}, _read_columns
    return found


def _idx_file(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bytes:
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def _read_columns(folder: Path) -> None:
    (file,) = folder.iterdir()
    joined, _ = join_columns([SourceImage(key, 0, None, 1) for key in _KEYS], read_columns(open_place(str(file))))
    assert [image.key for image in joined] == _KEYS


# --- Parquet files ---


def try_parquet(number: int) -> str:
    """Good has all images."""
    mutation = _parquet_mutation(number)
    return _outcome({}, mutation, "train.parquet", lambda folder: _read_source(folder, _ROWS))


@cache
def _parquet_files() -> dict[str, bytes]:
    """The same images, written in different ways."""
    table = image_table(_ROWS, split=["train", "test"] * (_ROWS // 2), age=[None, 1.5, 2.0] * (_ROWS // 3))
    table = table.append_column("ward", pa.array(["x", None, "yy"] * (_ROWS // 3)).dictionary_encode())
    files = {}
    for name, options in {
        "plain": {"compression": "none", "use_dictionary": False},
        "snappy": {"compression": "snappy", "data_page_size": 500},
        "zstd": {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
        "gzip": {"compression": "gzip", "write_page_checksum": True, "store_schema": False},
    }.items():
        pq.write_table(table, sink := pa.BufferOutputStream(), row_group_size=_ROWS // 3, **options)
        files[name] = bytes(sink.getvalue())
    return files


def _parts(data: bytes) -> list[bytes]:
    """The pages of each column of each row group, and the footer: joined, they are the file."""
    footer_start = len(data) - _FOOTER_END - int.from_bytes(data[-8:-4], "little")
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    starts = {chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks}
    cuts = sorted({0, *starts, footer_start, len(data)})
    return [data[start:end] for start, end in pairwise(cuts)]


def _parquet_mutation(number: int) -> Mutation:
    """Damage inside of some pages, or of the footer; or pages in each other's place; or a file that is cut."""
    chance = random.Random(number)
    name = chance.choice(sorted(_parquet_files()))
    data = _parquet_files()[name]
    parts = _parts(data)
    how = chance.choice(("pages", "footer", "swap", "whole"))
    if how == "swap":
        first, second = chance.sample(range(1, len(parts) - 1), 2)
        parts[first], parts[second] = parts[second], parts[first]
        return Mutation(number, name, (how,), b"".join(parts))
    if how == "whole":
        return mutate(number, {name: data})
    which = len(parts) - 1 if how == "footer" else chance.randrange(1, len(parts) - 1)
    inner = mutate(number, {name: parts[which]})
    parts[which] = inner.data
    return Mutation(number, name, (how, *inner.steps), b"".join(parts))


# --- lists ---


def try_list(number: int) -> str:
    """Good has all images if one byte was changed."""
    mutation = _list_mutation(number)
    images = _ROWS if mutation.steps == (_ONE_BYTE,) else None
    files = {f"i/{row}.png": some_bytes(row) for row in range(_ROWS)}
    return _outcome(files, mutation, mutation.origin, lambda folder: _read_source(folder / mutation.origin, images))


def _list_mutation(number: int) -> Mutation:
    """Half of them have one other byte, the rest is damaged as images are."""
    chance = random.Random(number)
    if chance.random() < 0.5:
        return mutate(number, _lists())
    name = chance.choice(sorted(_lists()))
    data = bytearray(_lists()[name])
    data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), *b'",\r\n{}x/'))
    return Mutation(number, name, (_ONE_BYTE,), bytes(data))


@cache
def _lists() -> dict[str, bytes]:
    rows = [(f"i/{row}.png", "cat" if row % 2 else "dög", "train", f'"{row}", years') for row in range(_ROWS)]
    quoted = "".join('"{}",{},{},"{}"\r\n'.format(*cells[:3], cells[3].replace('"', '""')) for cells in rows)
    objects = "".join(
        f'{{"path": "{path}", "label": "{label}", "split": "{split}", "age": {row}}}\n'
        for row, (path, label, split, _) in enumerate(rows)
    )
    return {"list.csv": f"path,label,split,age\r\n{quoted}".encode(), "list.jsonl": objects.encode()}
