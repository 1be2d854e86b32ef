"""Numbers, sizes and times as a page writes them."""

from datetime import UTC, datetime


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


FILTERS = {each.__name__: each for each in (count, size, percent, short, when)}
