"""Arrow schemas of the Parquet tables that stages write."""

import pyarrow as pa

_SHA256 = pa.binary(32)

# Further columns of an image, from a table that the user gave, by name; null where it has none.
_COLUMNS = ("columns", pa.map_(pa.string(), pa.string()))
# Columns of rows and rejects that are copied from the pack's list.
_IMAGE = [("key", pa.string()), ("sha256", _SHA256), ("label", pa.int32()), ("split", pa.string()), _COLUMNS]
IMAGE_COLUMNS = [name for name, _ in _IMAGE]
_POSITION = [("offset", pa.int64()), ("size", pa.int64())]

# One row per image of a pack, in the pack's order: offset and size are those of the image's bytes in the tar file.
IMAGES = pa.schema(
    [
        ("key", pa.string()),
        ("label", pa.int32()),
        ("split", pa.string()),
        _COLUMNS,
        ("pack", pa.string()),
        *_POSITION,
        ("sha256", _SHA256),
    ]
)

_COUNT = pa.uint64()
_COUNTS = pa.map_(pa.string(), _COUNT)
# By the source's split ('' without one), then by label.
_EXAMPLES = pa.map_(pa.string(), pa.list_(pa.uint32()))
_REJECTS = [("count", _COUNT), ("by_reason", _COUNTS)]


def _required(*columns: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in columns]


_COUNTED = [
    ("records", _COUNT),
    ("bytes", _COUNT),
    ("rejects", pa.struct(_required(*_REJECTS))),
    ("examples", _EXAMPLES),
]
_LIMITS = [
    ("pixels", _COUNT),
    ("size_bytes", _COUNT),
    ("frames", _COUNT),
    ("aspect", pa.float64()),
    ("least_side", _COUNT),
    ("seconds", pa.float64()),
    ("memory_bytes", _COUNT),
]

# One row per pack of a generation of raw, in its order; file is the URI, column the image column, of a pack in place.
PACKS = pa.schema(
    [
        *_required(("name", pa.string()), ("images", _COUNT), ("bytes", _COUNT), ("sha256", _SHA256)),
        ("file", pa.string()),
        ("column", pa.string()),
        *_required(("list_sha256", _SHA256), ("removed", _COUNT)),
    ]
)

# One row per part of a generation of normalized, in the order of its packs; docs/format.md explains the columns.
PARTS = pa.schema(
    [
        *_required(("part", pa.string())),
        ("pack", pa.string()),
        ("file", pa.string()),
        *_required(
            ("pack_sha256", _SHA256),
            ("list_sha256", _SHA256),
            ("input", _COUNT),
            ("records", _COUNT),
            ("bytes", _COUNT),
            ("sha256", _SHA256),
            ("rejects", pa.struct([*_required(*_REJECTS), ("sha256", _SHA256), ("list_sha256", _SHA256)])),
            ("examples", _EXAMPLES),
            ("rows_sha256", _SHA256),
            ("removed", _COUNT),
        ),
        ("live", pa.struct(_required(*_COUNTED))),
        ("limits", pa.struct(_required(*_LIMITS))),
    ]
)

# One row per image of a pack that is no longer in the source, or has changed there: by pack in the marker's order, then
# in the pack's order.
REMOVED = pa.schema([("pack", pa.string()), ("key", pa.string())])

# One row per good image of a part, in the part's order: offset and size are those of its record in the part's TFRecord
# file, framing included; crc32c that of the record's data; sha256 that of the source image. Sums are over the pixels
# of each channel before they are encoded, exact.
ROWS = pa.schema(
    [
        *_IMAGE,
        *_POSITION,
        ("crc32c", pa.uint32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("source_format", pa.string()),
        ("source_width", pa.int32()),
        ("source_height", pa.int32()),
        ("sums", pa.list_(pa.int64())),
        ("squares", pa.list_(pa.int64())),
    ]
)

# One row per reject of a part: offset and size are those of its bytes in the tar file of rejects.
REJECTS = pa.schema(
    [
        *_IMAGE,
        ("reason", pa.string()),
        ("detail", pa.string()),
        *_POSITION,
    ]
)

# One row per example of the slices, in the order of the slices: offset and size as in ROWS, in the slice's file; source
# is the part that it came from, sha256 that of the source image.
EXAMPLES = pa.schema(
    [
        ("key", pa.string()),
        ("label", pa.int32()),
        ("split", pa.string()),
        ("slice", pa.string()),
        *_POSITION,
        ("crc32c", pa.uint32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("source", pa.string()),
        ("sha256", _SHA256),
    ]
)

# One row per key that earlier slices had and these do not have. A key that comes back goes to the split that it had,
# one that was removed by a list does not come back.
DEPARTED = pa.schema([("key", pa.string()), ("split", pa.string()), ("removed", pa.bool_())])

# One row per content (SHA-256 of a source image) and split that earlier slices had it in, if it is not among these
# examples: of images that are gone or have changed.
CONTENTS = pa.schema([("sha256", _SHA256), ("split", pa.string())])

# One row per key and content (SHA-256 of a source image) that was erased; sorted.
ERASED = pa.schema([("key", pa.string()), ("sha256", _SHA256)])

# One row per group of the column that images are grouped by, of these slices and those before.
GROUPS = pa.schema([("group", pa.string()), ("split", pa.string())])

# The split of each image of the parts, in their order: its number in SPLIT_NAMES, or -2: left out.
ASSIGNMENTS = pa.schema([("split", pa.int8())])

# One row per block, a run of neighbouring records of a slice: crc32c is that of all its bytes, framing included.
BLOCKS = pa.schema(
    [
        ("slice", pa.string()),
        ("first", pa.int64()),
        ("records", pa.int64()),
        *_POSITION,
        ("crc32c", pa.uint32()),
    ]
)

# One row per slice and class in it.
CLASS_COUNTS = pa.schema(
    [("slice", pa.string()), ("split", pa.string()), ("label", pa.int32()), ("records", pa.int64())]
)
