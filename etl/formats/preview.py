"""An example's image as a file that any viewer opens."""

import io

import numpy as np
from PIL import Image

from etl.formats.example import ImageExample
from etl.images.config import FLOATS


def picture_of(example: ImageExample) -> tuple[bytes, str]:
    """The bytes of a JPEG or PNG file, and which of them it is: as the example has it, raw pixels as a PNG.

    Floats are stretched, the least one to black, the largest to white.

    Raises ValueError where raw pixels are not as many as height, width and channels say.
    """
    if example.format in ("JPEG", "PNG"):
        return example.encoded, example.format
    mode = "L" if example.channels == 1 else "RGB"
    image = Image.frombytes(mode, (example.width, example.height), _levels(example))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue(), "PNG"


def _levels(example: ImageExample) -> bytes:
    """Pixels as uint8."""
    kind = FLOATS.get(example.format.lower())
    if kind is None:
        return example.encoded
    floats = np.frombuffer(example.encoded, f"<{kind}").astype(np.float64)
    least, most = floats.min(initial=np.inf), floats.max(initial=-np.inf)
    return np.rint((floats - least) * (255 / (most - least or 1))).astype(np.uint8).tobytes()
