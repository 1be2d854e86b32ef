"""Damaged Parquet files and lists give all images, or one line. Trials for `tests.lib.damage.trials`.

python -m tests.lib.damage.trials tests.lib.damage.sources:try_parquet 1234 1
"""

import random
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from etl.raw.packs import pieces
from etl.sources import open_source
from etl.storage.place import open_place
from tests.lib.damage.containers import outcome_of
from tests.lib.damage.mutations import Mutation, mutate
from tests.lib.sources.parquet_images import image_table, some_bytes

_ROWS = 24
_FOOTER_END = 8  # its length, and PAR1
_ONE_BYTE = "one byte"


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


def parquet_mutation(number: int) -> Mutation:
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


def list_mutation(number: int) -> Mutation:
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


def try_parquet(number: int) -> str:
    """'good', or the name of the error. Good has all images."""
    mutation = parquet_mutation(number)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.parquet").write_bytes(mutation.data)
        return outcome_of(lambda: _read(Path(folder), _ROWS), mutation)


def try_list(number: int) -> str:
    """The same, of a list; good has all images if one byte was changed."""
    mutation = list_mutation(number)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "i").mkdir()
        for row in range(_ROWS):
            (Path(folder) / "i" / f"{row}.png").write_bytes(some_bytes(row))
        file = Path(folder) / mutation.origin
        file.write_bytes(mutation.data)
        return outcome_of(lambda: _read(file, _ROWS if mutation.steps == (_ONE_BYTE,) else None), mutation)


def _read(source: Path, images: int | None) -> None:
    opened = open_source(open_place(str(source)))
    sizes = [sum(map(len, pieces(content))) for content in opened.read_all(opened.images)]
    assert sizes == [image.size_bytes for image in opened.images], "images were lost"
    assert images in (None, len(sizes)), f"it has {len(sizes)} images"
