"""Parquet files with the bytes of images in a column, as Hugging Face `datasets` writes them."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import UsageError
from etl.progress import Progress
from etl.sources.base import (
    Columns,
    LargeFile,
    Source,
    SourceImage,
    SourceOptions,
    change_error,
    reject_duplicates,
    require_same,
    version_of,
)
from etl.sources.fields import (
    PARQUET_NAMES,
    checked_key,
    checked_label,
    checked_split,
    known_columns,
    log_left_out,
    number_labels,
    one_line,
    split_of,
)
from etl.sources.parquet_columns import bytes_in, layout_of, open_parquet, read_batches, read_cells
from etl.storage.place import Place
from etl.threads import in_threads

_FILES_AT_ONCE = 4

# label, split, key (if there is a column of keys), size in bytes, columns
_Row = tuple[str, str | None, str | None, int, Columns | None]


class ParquetSource(Source):
    """Parquet files with a row for each image: its bytes, its label, perhaps its split, and further scalars.

    The bytes are a column of binary, or of a struct with binary ``bytes``. Labels are text, booleans, or integers; the
    schema's metadata may have names for these (`class_names`), and then the classes are these names in their order. The
    key of an image is its value in the column of keys, if the user names one; else the path of its file without suffix,
    and the number of its row, from 0.

    Listing reads the files once, because their metadata do not contain the sizes of images. Raises UsageError for a
    wrong column or cell, DataError for a damaged file.
    """

    kind = "parquet"
    supported_options: ClassVar[tuple[str, ...]] = ("image_column", "label_column", "split_column", "key_column")
    is_sequential = True  # within a row group

    def __init__(self, place: Place, files: list[Place], options: SourceOptions) -> None:
        named_place = files[0] if len(files) == 1 else place
        with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="open") as pool:
            self._files = list(pool.map(lambda file: _File(place, file, options), files))
        reject_duplicates([file.stem for file in self._files], lambda file: str(self._files[file].place))
        named = _named_classes(self._files)
        log_left_out({name for file in self._files for name in file.layout.left_out})
        with Progress("ingest", len(files), "files listed", begins=False) as progress:
            in_threads(lambda file: file.list_rows(progress), self._files, _FILES_AT_ONCE)
        found = {label for file in self._files for label, *_ in file.rows}
        if not found:
            raise UsageError(f"no images in {named_place}; its Parquet files have no rows")
        self.classes, labels = number_labels(found, replace(options, classes=options.classes or named), named_place)
        self.images = [
            SourceImage(
                f"{file.stem}/{row:08d}" if key is None else key,
                labels[label],
                split,
                size,
                version_of(file.info),
                columns,
                (number, row),
            )
            for number, file in enumerate(self._files)
            for row, (label, split, key, size, columns) in enumerate(file.take_rows())
        ]
        if options.key_column is not None:
            reject_duplicates([image.key for image in self.images], self._where)

    def _where(self, number: int) -> str:
        file, row = self.images[number].position
        return f"row {row} of {self._files[file].place}"

    def large_files(self) -> list[LargeFile]:
        """Return the files, with the path of the column of images."""
        return [LargeFile(file.place, file.info, file.layout.image_leaf) for file in self._files]

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[bytes]:
        for number, run in groupby(images, key=lambda image: image.position[0]):
            yield from self._files[number].read(list(run))


class _File:
    """One file: ``stem`` is what the keys of its images begin with, ``rows`` what `list_rows` found in it."""

    def __init__(self, source: Place, place: Place, options: SourceOptions) -> None:
        self.place = place
        path = place.path[len(source.path.rstrip("/")) + 1 :]
        self.stem = checked_key(PARQUET_NAMES.sub("", path), str(place))
        self.info = place.info()
        with open_parquet(place) as parquet:
            self.layout = layout_of(parquet.schema_arrow, options, place)
        self.rows: list[_Row] = []
        self._split = split_of(path)
        self._labels: dict[str | None, str] = {}
        self._splits: dict[str | None, str | None] = {None: self._split}

    def list_rows(self, progress: Progress) -> Generator[None]:
        """List the images; yields after each batch, so that this can be stopped.

        Raises UsageError for a row without bytes, or with a label or split that cannot be; DataError for a damaged
        file.
        """
        with open_parquet(self.place) as parquet:
            for _, batch in read_batches(parquet, self.layout.leaves):
                self.rows += self._read_rows(batch)
                yield
            if len(self.rows) != parquet.metadata.num_rows:
                raise ValueError(f"it has {len(self.rows)} rows, and its footer records {parquet.metadata.num_rows}")
        progress.advance()

    def take_rows(self) -> list[_Row]:
        """Return the rows and release them."""
        rows, self.rows = self.rows, []
        return rows

    def read(self, images: Sequence[SourceImage]) -> Iterator[bytes]:
        """The bytes of these images of this file, in the order of their rows."""
        require_same(self.place, self.info)
        cells = read_cells(self.place, self.layout.image_leaf, [image.position[1] for image in images])
        for image in images:
            data = next(cells, None)
            if data is None or len(data) != image.size_bytes:
                raise change_error(self.place)
            yield data

    def _read_rows(self, batch: pa.RecordBatch) -> Iterator[_Row]:
        """The rows of a batch, which follow `rows`."""
        layout = self.layout
        sizes = pc.binary_length(bytes_in(batch.column(layout.image))).to_pylist()
        labels = _texts(batch.column(layout.label))
        splits = _texts(batch.column(layout.split)) if layout.split else [None] * len(sizes)
        keys = _texts(batch.column(layout.key)) if layout.key else [None] * len(sizes)
        others = [_texts(batch.column(name)) for name in layout.others]
        columns = zip(*others, strict=True) if others else [()] * len(sizes)
        cells_of_rows = zip(sizes, labels, splits, keys, columns, strict=True)
        for row, (size, label, split, key, cells) in enumerate(cells_of_rows, len(self.rows)):
            where = f"row {row} of {self.place}"
            if size is None:
                raise UsageError(
                    f"{where} has no image bytes, at most a path; embed them before the file is written (with datasets:"
                    " .with_format('arrow').map(embed_table_storage, batched=True)), or give a list of the paths"
                )
            if label not in self._labels:
                self._labels[label] = self._checked_label(label, where)
            if split not in self._splits:
                self._splits[split] = checked_split(split, where) or self._split
            if layout.key:
                key = checked_key(key or "", where)
            yield self._labels[label], self._splits[split], key, size, known_columns(layout.others, cells)

    def _checked_label(self, label: str | None, where: str) -> str:
        if label is None:
            raise UsageError(f"{where} has no label in the column {self.layout.label}; give it one, or leave it out")
        names = self.layout.names
        if names is None:
            return checked_label(label, where)
        if not 0 <= int(label) < len(names):
            raise UsageError(
                f"{where} has the label {label}, and the file's metadata name the classes 0 to {len(names) - 1};"
                " correct it, or leave the row out"
            )
        return names[int(label)]


def _texts(values: pa.Array) -> list[str | None]:
    return cast(list[str | None], values.cast(pa.string()).to_pylist())


def _named_classes(files: Sequence[_File]) -> tuple[str, ...] | None:
    """The classes that the metadata of all files name. Raises UsageError if they differ."""
    first = files[0]
    for file in files:
        if file.layout.names != first.layout.names:
            raise UsageError(
                f"{first.place} and {file.place} differ in the names of classes in their metadata"
                f" ({_shown(first.layout.names)}; {_shown(file.layout.names)}); write them with the same ones"
            )
    return first.layout.names


def _shown(names: tuple[str, ...] | None) -> str:
    return one_line(", ".join(names), 100) if names else "none"
