"""Pictures by number, for sources that change from night to night."""

import io
import random

from PIL import Image


def some_png(number: int, width: int = 9, height: int = 12) -> bytes:
    """A picture of its own for each number."""
    buffer = io.BytesIO()
    pixels = random.Random(number).randbytes(width * height * 3)
    Image.frombytes("RGB", (width, height), pixels).save(buffer, "PNG")
    return buffer.getvalue()
