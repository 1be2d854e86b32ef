"""Write a page from its template: check the place that it goes to; numbers, sizes, times and images as it has them."""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from etl.storage.atomic import replace_bytes
from etl.storage.place import Place

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


Filters = Mapping[str, Callable[..., str]]
FILTERS: Filters = {each.__name__: each for each in (count, size, percent, short, when)}


def publish(package: str, template: str, facts: Mapping[str, Any], file: Place, filters: Filters = FILTERS) -> int:
    """Write the page to ``file``, in place of one that exists; the same facts give the same bytes. Returns its size.

    A symbolic link stays: the page is where it leads. ``template`` is in ``package``, uses these ``filters``, and may
    extend or import those of this package.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("etl.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    page = environment.get_template(template).render(facts).encode()
    target = file.resolved()
    replace_bytes(target, target.parent, page)
    return len(page)
