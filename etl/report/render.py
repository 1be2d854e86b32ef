"""Write a page from its template: check the place that it goes to; numbers, sizes, times and images as it has them."""

import base64
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from etl.errors import UsageError
from etl.stages.names import STAGE_FOLDERS
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


FILTERS = {each.__name__: each for each in (count, size, percent, short, when, accuracy, milliseconds)}


def publish(package: str, template: str, facts: Mapping[str, Any], file: Place) -> int:
    """Write the page to ``file``, in place of one that exists; the same facts give the same bytes. Returns its size.

    ``template`` is in ``package`` and may extend or import those of this package.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("etl.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    page = environment.get_template(template).render(facts).encode()
    replace_bytes(file, file.parent, page)
    return len(page)


def folders_of(root: Place) -> list[Place]:
    """The folders of a root that have files of stages and of runs, among which no page goes."""
    return [root / name for name in (*STAGE_FOLDERS, "models")]


def check_target(file: Place, folders: Iterable[Place]) -> None:
    """Raise UsageError if a page cannot be written to ``file``, or it lies below one of the ``folders``."""
    if file.parent.info().type.name != "Directory":
        raise UsageError(f"{file.parent}: no such folder; make it, or give another place with -o")
    if file.info().type.name == "Directory":
        raise UsageError(f"{file} is a folder; give the page a name of its own with -o")
    for folder in folders:
        if f"{file.real_path}/".startswith(f"{folder.real_path}/"):
            raise UsageError(f"{file} lies among the files of a dataset; give a place outside of {folder} with -o")
