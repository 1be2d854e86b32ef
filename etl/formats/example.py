"""The features of an example, as a serialized ``tf.train.Example``, without TensorFlow.

The message is defined in TensorFlow's ``tensorflow/core/example/{example,feature}.proto``; here it is described to
protobuf at run time, in a pool of its own, so that a process may hold TensorFlow's definition too.
"""

import io
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
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


_DEFINITION = """
name: "ringslice/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Feature" label: LABEL_OPTIONAL }
  }
  field {
    name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry" label: LABEL_REPEATED
  }
}
message_type {
  name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
}
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_DEFINITION, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("tensorflow.Example"))
