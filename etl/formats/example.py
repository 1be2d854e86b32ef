"""The features of an example, as a serialized ``tf.train.Example``, without TensorFlow.

The message is defined in TensorFlow's ``tensorflow/core/example/{example,feature}.proto``; here it is described to
protobuf at run time, in a pool of its own, so that a process may hold TensorFlow's definition too.
"""

import io
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from etl.errors import DataError
from etl.images.config import FLOATS

ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
LABEL = "image/class/label"
TEXT = "image/class/text"
KEY = "image/key"

# of the fields of `ImageExample`
_TEXTS = {"key": KEY, "text": TEXT, "format": FORMAT}
_NUMBERS = {"label": LABEL, "height": HEIGHT, "width": WIDTH, "channels": CHANNELS}


@dataclass(frozen=True)
class ImageExample:
    """One normalised image.

    ``encoded`` is a JPEG or PNG file, or pixels of shape (height, width, channels) in row-major order, uint8 (RAW) or
    little-endian floats (FLOAT16, FLOAT32), as ``format`` says.

    ``label`` counts from 0 in the order of the class list, ``text`` is the class's name.
    """

    key: str
    label: int
    text: str
    format: str
    height: int
    width: int
    channels: int
    encoded: bytes


def serialize(example: ImageExample) -> bytes:
    """The same example, the same bytes (map entries are sorted by name)."""
    message = _Example()
    feature = message.features.feature
    feature[ENCODED].bytes_list.value.append(example.encoded)
    for field, name in _TEXTS.items():
        feature[name].bytes_list.value.append(getattr(example, field).encode())
    for field, name in _NUMBERS.items():
        feature[name].int64_list.value.append(getattr(example, field))
    return bytes(message.SerializeToString(deterministic=True))


def parse(data: bytes) -> ImageExample:
    """Inverse of `serialize`. Raises DataError for other bytes."""
    message = _Example()
    try:
        message.ParseFromString(data)
        feature = message.features.feature
        texts = {field: feature[name].bytes_list.value[0].decode() for field, name in _TEXTS.items()}
        numbers = {field: feature[name].int64_list.value[0] for field, name in _NUMBERS.items()}
        found = ImageExample(encoded=feature[ENCODED].bytes_list.value[0], **texts, **numbers)
    except (DecodeError, IndexError, UnicodeDecodeError) as error:
        raise DataError(f"not an example of an image: {error}") from None
    if not all(-(1 << 31) <= number < 1 << 31 for number in numbers.values()):  # as tables have them
        raise DataError(f"not an example of an image: a number of {numbers} is not an int32")
    return found


def picture_of(example: ImageExample) -> tuple[bytes, str]:
    """The image as a JPEG or PNG file, and which of them it is: as the example has it, raw pixels as a PNG.

    Floats are scaled from the smallest (black) to the largest (white). Raises ValueError if there are not as many
    pixels as height, width and channels state.
    """
    if example.format in ("JPEG", "PNG"):
        return example.encoded, example.format
    import numpy as np  # tasks that only write examples need neither
    from PIL import Image

    pixels = example.encoded
    if dtype := FLOATS.get(example.format.lower()):
        floats = np.frombuffer(pixels, f"<{dtype}").astype(np.float64)
        least, most = floats.min(initial=np.inf), floats.max(initial=-np.inf)
        pixels = np.rint((floats - least) * (255 / (most - least or 1))).astype(np.uint8).tobytes()
    file = io.BytesIO()
    Image.frombytes("L" if example.channels == 1 else "RGB", (example.width, example.height), pixels).save(file, "PNG")
    return file.getvalue(), "PNG"


def _build_message() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="ringslice/example.proto", package="tensorflow", syntax="proto3")

    def add(message: Any, name: str, number: int, kind: int, type_name: str = "") -> Any:
        entry = message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
        if type_name:
            entry.type_name = type_name
        return entry

    lists = {"BytesList": field.TYPE_BYTES, "FloatList": field.TYPE_FLOAT, "Int64List": field.TYPE_INT64}
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(lists.items(), start=1):
        add(file.message_type.add(name=name), "value", 1, kind).label = field.LABEL_REPEATED
        field_name = name.replace("List", "_list").lower()
        add(feature, field_name, number, field.TYPE_MESSAGE, f".tensorflow.{name}").oneof_index = 0
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, ".tensorflow.Feature")
    entries = add(features, "feature", 1, field.TYPE_MESSAGE, ".tensorflow.Features.FeatureEntry")
    entries.label = field.LABEL_REPEATED
    add(file.message_type.add(name="Example"), "features", 1, field.TYPE_MESSAGE, ".tensorflow.Features")

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _build_message()
