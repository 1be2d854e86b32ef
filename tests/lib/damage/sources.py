"""Damaged files of sources give all images, or one line of error. Trials for `tests.lib.damage.trials`.

python -m tests.lib.damage.trials tests.lib.damage.sources:try_source 1234 1
"""

import gzip
import io
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.errors import DataError, UsageError
from etl.raw.ingest import join_columns, read_columns
from etl.raw.packs import pieces
from etl.sources.base import SourceImage
from etl.sources.detect import open_source
from etl.storage.place import open_place
from tests.lib.damage.mutations import mutate
from tests.lib.sources.archives import FORMATS, SUFFIXES, example, packed, tar_of
from tests.lib.sources.parquet_images import image_table, some_bytes

_ROWS = 24
_KEYS = [f"cats/{number:03d}.png" for number in range(_ROWS)]


def try_source(number: int) -> str:
    """A damaged file: of a Parquet file that is good no row is lost, and of an archive no member.

    A member is there as an image, or is counted; damage may change a name, or add a member.
    """
    origin, data = mutate(number, _files())
    folder, _, file = origin.partition("/")
    beside = {name.partition("/")[2]: each for name, each in _files().items() if name.startswith(f"{folder}/")}
    return _outcome(file, {**beside, file: data}, _ROWS if folder.startswith("parquet") else None)


def try_list(number: int) -> str:
    """A list with one other byte: if it is good, no line is lost."""
    chance = random.Random(number)
    name = chance.choice(("csv/list.csv", "jsonl/list.jsonl"))
    data = bytearray(_files()[name])
    data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), *b'",\r\n{}x/'))
    return _outcome(name.partition("/")[2], {name.partition("/")[2]: bytes(data)}, _ROWS)


def _outcome(damaged: str, files: Mapping[str, bytes], images: int | None) -> str:
    """'good', or the name of the error that reading ends with: one line of text."""
    if damaged.startswith("list"):
        files = {**files, **{f"i/{row}.png": some_bytes(row) for row in range(_ROWS)}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "i").mkdir()
        for file, data in files.items():
            (Path(folder) / file).write_bytes(data)
        try:
            _read(Path(folder), damaged, images)
        except (DataError, UsageError) as error:
            assert str(error).isprintable(), f"{damaged}: {str(error)!r} is not a line of text"
            assert len(str(error)) < 1000, f"{damaged}: its line has {len(str(error))} characters"
            return type(error).__name__
        except Exception as error:
            error.add_note(damaged)
            raise
    return "good"


def _read(folder: Path, file: str, images: int | None) -> None:
    if file.startswith("columns"):
        table = read_columns(open_place(str(folder / file)))
        joined, _ = join_columns([SourceImage(key, 0, None, 1) for key in _KEYS], table)
        assert [image.key for image in joined] == _KEYS
        return
    source = open_source(open_place(str(folder / file if file.startswith("list") else folder)))
    sizes = [sum(map(len, pieces(content))) for content in source.read_all(source.images)]
    assert sizes == [image.size_bytes for image in source.images], "images were lost"
    assert images in (None, len(sizes)), f"it has {len(sizes)} images"
    assert source.kind != "archive" or len(sizes) + source.skipped >= 8, f"{len(sizes)} images, {source.skipped} more"


@cache
def _files() -> dict[str, bytes]:
    """Files of every kind of source and table, each below a folder of its own with those beside it."""
    files: dict[str, bytes] = {}
    for name, shape in (("train", (_ROWS, 5, 4)), ("t10k", (_ROWS, 5, 4, 3))):
        images, labels = _idx_file(np.arange(np.prod(shape)).reshape(shape)), _idx_file(np.arange(_ROWS) % 3)
        pair = {f"{name}-images-idx{len(shape)}-ubyte": images, f"{name}-labels-idx1-ubyte": labels}
        files |= {f"idx-{name}/{file}": data for file, data in pair.items()}
        files |= {f"idx-{name}-gz/{file}.gz": gzip.compress(data, mtime=0) for file, data in pair.items()}
    for kind, (codec, suffix) in product(FORMATS, SUFFIXES.items()):
        files[f"tar-{kind}-{codec}/train-0{suffix}"] = packed(tar_of(example(kind), kind), codec)
    table = image_table(_ROWS, split=["train", "test"] * (_ROWS // 2), age=[None, 1.5, 2.0] * (_ROWS // 3))
    table = table.append_column("ward", pa.array(["x", None, "yy"] * (_ROWS // 3)).dictionary_encode())
    ways: dict[str, dict[str, object]] = {
        "none": {"use_dictionary": False},
        "snappy": {"data_page_size": 500},
        "zstd": {"data_page_version": "2.0", "write_page_index": True},
        "gzip": {"write_page_checksum": True, "store_schema": False},
    }
    patients = [f"p{number % 2}" for number in range(_ROWS)]
    columns = pa.table({"key": _KEYS, "patient": patients, "age": [30] * _ROWS})
    for compression, options in ways.items():
        options |= {"compression": compression, "row_group_size": _ROWS // 3}
        files[f"parquet-{compression}/train.parquet"] = _parquet(table, **options)
        files[f"columns-{compression}/columns.parquet"] = _parquet(columns, compression=compression)
    rows = [*zip(_KEYS, patients, range(_ROWS), strict=True)]
    text = "".join(f'{key},{patient},"{number}, years"\n' for key, patient, number in rows)
    listed = "".join(f'i/{row}.png,{"cat" if row % 2 else "dög"},train,"""{row}"", years"\r\n' for row in range(_ROWS))
    objects = "".join(
        f'{{"path": "i/{row}.png", "label": "dög", "split": "train", "age": {row}}}\n' for row in range(_ROWS)
    )
    files["columns-csv/columns.csv"] = f"key,patient,age\n{text}".encode()
    files["csv/list.csv"] = f"path,label,split,age\r\n{listed}".encode()
    return files | {"jsonl/list.jsonl": objects.encode()}


def _idx_file(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bytes:
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def _parquet(table: pa.Table, **options: object) -> bytes:
    pq.write_table(table, sink := io.BytesIO(), **options)
    return sink.getvalue()
