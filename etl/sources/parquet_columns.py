"""Which columns of a Parquet file with images are what: by what the user said, else by name and type."""

from dataclasses import dataclass

import pyarrow as pa

from etl.errors import UsageError
from etl.sources.base import Reading
from etl.sources.class_labels import class_names
from etl.sources.fields import label_column, one_line, split_column
from etl.sources.parquet_files import bytes_in
from etl.storage import Place

_BYTES = "bytes"
_OTHER_LABEL_COLUMNS = ("labels",)


@dataclass(frozen=True)
class Layout:
    """The columns of a file by what they are; ``names`` are the classes that the numbers in ``label`` stand for.

    ``image_leaf`` is the path of the column of bytes, ``others`` further columns of scalars, ``left_out`` the rest.
    """

    image: str
    image_leaf: str
    label: str
    split: str | None
    others: tuple[str, ...]
    left_out: tuple[str, ...]
    names: tuple[str, ...] | None

    @property
    def leaves(self) -> list[str]:
        """The paths of all columns that say something of an image."""
        return [self.image_leaf, self.label, *([self.split] if self.split else []), *self.others]

    def image_bytes(self, batch: pa.RecordBatch) -> pa.Array:
        """The bytes of the images of a batch, null where there are none."""
        return bytes_in(batch.column(self.image))


def layout_of(schema: pa.Schema, reading: Reading, file: Place) -> Layout:
    """Which columns are what, as far as the user said, and else by name and type.

    Raises UsageError where a column is missing, cannot be what it shall be, or is not the only one that can.
    """
    where = str(file)
    if twice := [name for number, name in enumerate(schema.names) if name in schema.names[:number]]:
        raise UsageError(f"{file} has the column {one_line(twice[0])} more than once; write it with other names")
    image = _image_column(schema, reading, file)
    label = schema.field(label_column(schema.names, reading, where, _OTHER_LABEL_COLUMNS))
    if not _is_label(label.type):
        raise UsageError(
            f"the column {one_line(label.name)} of {file} is {one_line(label.type)}; labels are integers, text or"
            " booleans: name their column by --label-column"
        )
    split = split_column(schema.names, reading, where)
    if split and not _is_text(schema.field(split).type):
        raise UsageError(
            f"the column {one_line(split)} of {file} is {one_line(schema.field(split).type)}; splits are text: name"
            " their column by --split-column"
        )
    rest = [field for field in schema if field.name not in (image.name, label.name, split)]
    return Layout(
        image=image.name,
        image_leaf=f"{image.name}.{_BYTES}" if pa.types.is_struct(image.type) else image.name,
        label=label.name,
        split=split,
        others=tuple(sorted(field.name for field in rest if _is_scalar(field.type))),
        left_out=tuple(field.name for field in rest if not _is_scalar(field.type)),
        names=class_names(schema.metadata, label.name) if pa.types.is_integer(label.type) else None,
    )


def _image_column(schema: pa.Schema, reading: Reading, file: Place) -> pa.Field:
    asked = reading.image_column
    found = [field for field in schema if _holds_bytes(field.type) and asked in (None, field.name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = one_line(", ".join(field.name for field in found))
        raise UsageError(f"{file} has several columns with bytes, {names}: choose the images' by --image-column")
    told = one_line(", ".join(f"{field.name} ({field.type})" for field in schema))
    what = f"column {asked} with image bytes (--image-column)" if asked else "column with image bytes"
    raise UsageError(
        f"{file} has no {what}; its columns are {told}: images are binary, or the binary 'bytes' of a struct"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        number = kind.get_field_index(_BYTES)
        return number >= 0 and _is_binary(kind.field(number).type)
    return _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_label(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_scalar(kind: pa.DataType) -> bool:
    return bool(
        _is_label(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    )
