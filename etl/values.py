"""Parse option values (all raise ValueError): sizes in bytes and pixels, colours, numbers. Name some of many."""

import math
import re
from collections.abc import Sequence

LARGEST_SIDE = 16_384
MAX_NAMED = 10

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_text(text: str) -> str:
    """``text`` as it is. An empty one is an error: in a shell, it is a variable that is not set."""
    if not text:
        raise ValueError("it is empty; give a value, or leave the option out")
    return text


def parse_bytes(text: str) -> int:
    """``'64MB'`` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0
    if not 1 <= size < math.inf:
        raise ValueError(f"invalid size {text!r} (example: 64MB)")
    return int(size)


def parse_size(text: str) -> tuple[int, int]:
    """``'224'`` or ``'224x320'`` as (height, width) in pixels."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= LARGEST_SIDE and 1 <= width <= LARGEST_SIDE):
        raise ValueError(f"invalid image size {text!r}: N or HEIGHTxWIDTH, from 1 to {LARGEST_SIDE} pixels")
    return height, width


def parse_color(text: str) -> tuple[int, int, int]:
    """``'#ff8000'`` or ``'255,128,0'`` as (red, green, blue), each from 0 to 255."""
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text.strip()):
        red, green, blue = bytes.fromhex(text.strip()[1:])
        return red, green, blue
    if re.fullmatch(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*){2}", text):
        red, green, blue = map(int, text.split(","))
        if max(red, green, blue) <= 255:
            return red, green, blue
    raise ValueError(f"invalid color {text!r}: #RRGGBB, or red,green,blue from 0 to 255")


def parse_numbers(text: str) -> tuple[float, ...]:
    """``'127.5'`` or ``'123.7,116.3,103.5'``: finite numbers, separated by commas."""
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{text!r} must be a number, or several separated by commas")
    return numbers


def parse_counts(text: str) -> tuple[int, ...]:
    """``'1,2,8'``: integers of at least 1, separated by commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9]\d{0,17}", word) for word in words):
        raise ValueError(f"{text!r} must be an integer >= 1, or several separated by commas")
    return tuple(map(int, words))


def shorten(text: str, most: int = 80) -> str:
    """``text``, or its first ``most`` characters and three dots."""
    return text if len(text) <= most else f"{text[:most]}..."


def name_some(names: Sequence[str], number: int | None = None) -> str:
    """The first `MAX_NAMED` of ``names``, and how many more there are of ``number`` (by default, of them)."""
    more = (len(names) if number is None else number) - len(names[:MAX_NAMED])
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more else "")
