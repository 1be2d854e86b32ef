"""Parse option values: sizes in bytes and pixels, colours, numbers, durations, fractions."""

import math
import re

LARGEST_SIDE = 16_384

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_bytes(text: str) -> int:
    """``'64MB'`` as a number of bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size in bytes; give something like 64MB or 1GiB")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size < math.inf:
        raise ValueError(f"{text!r} is {'less than one byte' if size < 1 else 'too large'}")
    return int(size)


def parse_size(text: str) -> tuple[int, int]:
    """``'224'`` or ``'224x320'`` as (height, width) in pixels. Raises ValueError."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no image size; give N or HEIGHTxWIDTH in pixels")
    height, width = int(match[1]), int(match[2] or match[1])
    if not (1 <= height <= LARGEST_SIDE and 1 <= width <= LARGEST_SIDE):
        raise ValueError(f"{text!r} is out of range; sides are from 1 to {LARGEST_SIDE} pixels")
    return height, width


def parse_color(text: str) -> tuple[int, int, int]:
    """``'#ff8000'`` or ``'255,128,0'`` as (red, green, blue), each from 0 to 255. Raises ValueError."""
    if re.fullmatch(r"#[0-9a-fA-F]{6}", text.strip()):
        red, green, blue = bytes.fromhex(text.strip()[1:])
        return red, green, blue
    levels = [int(word) for word in text.split(",") if re.fullmatch(r"\s*\d{1,3}\s*", word)]
    if len(levels) != 3 or text.count(",") != 2 or max(levels) > 255:
        raise ValueError(f"{text!r} is no colour; give #RRGGBB, or red,green,blue from 0 to 255")
    return levels[0], levels[1], levels[2]


def parse_numbers(text: str) -> tuple[float, ...]:
    """``'127.5'`` or ``'123.7,116.3,103.5'``: finite numbers, with commas between them. Raises ValueError."""
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{text!r} is no number, nor several with commas between them")
    return numbers


def whole(text: str) -> int:
    """A whole number, below 0 too. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


def positive(text: str) -> int:
    """A whole number of at least 1. Raises ValueError."""
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number of at least 1")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them. Raises ValueError."""
    return tuple(positive(each.strip()) for each in text.split(","))


def duration(text: str) -> float:
    """Seconds, more than 0. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is no number of seconds above 0")
    return value


def fraction(text: str) -> float:
    """A number from 0 to 1. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is no fraction from 0 to 1")
    return value


def ratio(text: str) -> float:
    """A number of at least 1. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < math.inf:
        raise ValueError(f"{text!r} is no number of at least 1")
    return value
