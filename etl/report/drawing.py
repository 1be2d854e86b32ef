"""How drawings of a page are made: matplotlib's SVG as data URIs, one style, the same numbers, the same bytes."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from etl.report.dataset.thumbnails import data_uri

INCH = 96  # CSS pixels
NARROW = 3.9  # inches: a third of the page at 1,280 pixels, the whole of it on a phone
HALF, WHOLE = 7.8, 11.9  # two thirds of the page, and all of it
HEIGHT = 2.5
SPLIT_COLORS = {"train": "#3266c4", "validation": "#d9932b", "test": "#2a9d8f"}
RUN_COLORS = ("#3266c4", "#d9932b", "#2a9d8f", "#b3261e", "#7b4fb5", "#8a5a00", "#d0609b", "#5a6675")
INK = "#39424e"

_STYLE: Any = {
    "font.size": 8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.edgecolor": "#9aa4b1",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "grid.color": "#e7eaee",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "ringslice",
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_FONT = ("'DejaVu Sans'", "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans'")
BLUES = LinearSegmentedColormap.from_list("ringslice", ["#eef3fb", "#3266c4", "#12264d"])
AROUND = LinearSegmentedColormap.from_list("around", ["#2a7f8f", "#b9dde0", "#f4f5f7", "#f3cfa6", "#c4602b"])


@dataclass(frozen=True)
class Chart:
    """A drawing: ``width`` and ``height`` in CSS pixels; ``alt`` says in words what it shows."""

    uri: str
    width: int
    height: int
    title: str
    caption: str
    alt: str

    @property
    def is_wide(self) -> bool:
        return self.width > NARROW * INCH + 1

    @property
    def is_half(self) -> bool:
        """Wide, but with room for another one beside it."""
        return self.is_wide and self.width < WHOLE * INCH


@dataclass
class Drawing:
    """A figure with one pair of axes, and then the chart of it."""

    figure: Figure
    axes: Axes

    def finish(self, title: str, caption: str, alt: str) -> Chart:
        buffer = io.StringIO()
        self.figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
        text = buffer.getvalue().replace(*_FONT)
        text = text[text.index("<svg") :]  # without the DTD's address
        width, height = self.figure.get_size_inches() * INCH
        return Chart(data_uri(text.encode(), "svg+xml"), round(width), round(height), title, caption, alt)


@contextmanager
def drawing(width: float = NARROW, height: float = HEIGHT) -> Iterator[Drawing]:
    """A figure of ``width`` and ``height`` in inches."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser has it
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        yield Drawing(figure, axes)


def in_thousands(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def shortened(name: str, length: int = 24) -> str:
    text = name if len(name) <= length else f"{name[: length - 1]}…"
    return text.replace("$", r"\$")  # matplotlib's own markup
