"""An example's image as a file that any viewer opens."""

import io

from PIL import Image

from etl.example import ImageExample


def picture_of(example: ImageExample) -> tuple[bytes, str]:
    """The bytes of a JPEG or PNG file, and which of them it is: as the example has it, raw pixels as a PNG.

    Raises ValueError where raw pixels are not as many as height, width and channels say.
    """
    if example.format in ("JPEG", "PNG"):
        return example.encoded, example.format
    mode = "L" if example.channels == 1 else "RGB"
    image = Image.frombytes(mode, (example.width, example.height), example.encoded)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue(), "PNG"
