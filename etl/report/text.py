"""Numbers, sizes, times and images as a page writes them."""

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "\N{EN DASH}"


def data_uri(data: bytes, kind: str) -> str:
    """An image of this media type, as the address of an ``img`` element."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def count(value: int) -> str:
    return f"{value:,}"


def brief(value: int) -> str:
    """A number that has little room."""
    return count(value) if value < 10**7 else f"{value / 10**6:,.4g} million"


def size(value: int) -> str:
    """Bytes in decimal units, three digits."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if value >= unit:
            return f"{value / unit:,.0f} {name}" if value >= 100 * unit else f"{value / unit:.3g} {name}"
    return f"{value} bytes"


def pixels(width: int, height: int) -> str:
    """An image's size."""
    return f"{width:,} \N{MULTIPLICATION SIGN} {height:,}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else "< 0.1 %"


def short(text: str) -> str:
    """The beginning of a fingerprint."""
    return f"{text[:16]}…"


def when(text: str | None) -> str:
    """A time of a ``run.json``."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if text else "not known"


def loss(value: float | None) -> str:
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.4f}"


def accuracy(value: float | None) -> str:
    return UNKNOWN if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def speed(value: float | None) -> str:
    """Images or steps a second."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plain(value: Any) -> str:
    """Any value of a JSON or TOML file."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


FILTERS = {
    each.__name__: each
    for each in (count, size, percent, short, when, loss, accuracy, speed, milliseconds, duration, plain)
}
