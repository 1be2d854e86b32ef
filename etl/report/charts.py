"""The charts of a page: curves and maps, as SVG in data URIs. The same numbers give the same bytes."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, PercentFormatter

from etl.report.render import UNKNOWN, data_uri

INCH = 96  # CSS pixels
# in inches
NARROW = 3.9  # a third of the page at 1,280 pixels, the whole of it on a phone
HALF, WHOLE = 7.8, 11.9  # two thirds of the page, and all of it
HEIGHT = 2.5
BLUE = "#3266c4"
SPLIT_COLORS = {"train": BLUE, "validation": "#d9932b", "test": "#2a9d8f"}
RUN_COLORS = (BLUE, "#d9932b", "#2a9d8f", "#b3261e", "#7b4fb5", "#8a5a00", "#d0609b", "#5a6675")
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
_BLUES = LinearSegmentedColormap.from_list("ringslice", ["#eef3fb", "#3266c4", "#12264d"])
MAX_MARKED_POINTS = 30
BAR_GROUP = 0.8  # width of the bars at one number of the axis
MAX_CURVES = 4  # that a legend names
MAX_NAMED = 60  # of rows or columns that can be read
MAX_NUMBERED = 20  # rows or columns of a map whose numbers can be read
NARROW_COLUMNS = 12


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
        return self.is_wide and self.width < round(WHOLE * INCH)


@dataclass(frozen=True)
class Curve:
    """Points of a chart; those that are not finite are left out. Without a ``color`` it has that of the split."""

    label: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    color: str | None = None
    width: float = 1.4


@dataclass(frozen=True)
class Cells:
    """What a map shows: ``values`` of shape (rows, columns), NaN for none; shares of 0 to 1, or counts.

    ``numbers`` are written into the cells if these are few.
    """

    values: npt.NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]
    numbers: npt.NDArray[np.int64] | None = None
    has_counts: bool = False

    @property
    def scale(self) -> tuple[Normalize, Formatter]:
        """The scale of the values, and how the colour bar writes them."""
        if self.has_counts:
            return PowerNorm(0.5, 0, float(np.nanmax(self.values, initial=0))), _thousands()
        return PowerNorm(0.5, 0, 1), PercentFormatter(1)


def line_chart(
    title: str,
    x_label: str,
    curves: Sequence[Curve],
    caption: str | Callable[[float], str],
    *,
    is_share: bool = False,
    from_zero: bool = False,
    width: float = NARROW,
) -> Chart:
    """Curves over one axis; values of 0 to 1 if it ``is_share``.

    ``caption`` is a text, or a function that writes a value: then it has the first and the last of each curve.
    """
    with _make_axes(width) as axes:
        for curve in curves:
            known = np.isfinite(curve.y)
            marker = "o" if known.sum() <= MAX_MARKED_POINTS else ""
            style = {"marker": marker, "markersize": 3, "linewidth": curve.width, **_style_of(curve)}
            axes.plot(curve.x[known], curve.y[known], **style)
        axes.margins(x=0.02)
        _format_axes(axes, x_label, is_share=is_share, from_zero=from_zero)
        return _finish(axes, title, caption if isinstance(caption, str) else _ends_of(curves, caption))


def bar_chart(title: str, x_label: str, curves: Sequence[Curve], format_value: Callable[[float], str]) -> Chart:
    """The values of each curve at 1, 2 … as bars, those of several curves side by side."""
    with _make_axes() as axes:
        width = BAR_GROUP / max(1, len(curves))
        for number, curve in enumerate(curves):
            axes.bar(curve.x + (number - (len(curves) - 1) / 2) * width, curve.y, width, **_style_of(curve))
        axes.set_xlim(0.5, max((len(curve.x) for curve in curves), default=1) + 0.5)
        _format_axes(axes, x_label, from_zero=True)
        return _finish(axes, title, _ends_of(curves, format_value))


def _style_of(curve: Curve) -> dict[str, Any]:
    return {"color": curve.color or SPLIT_COLORS.get(curve.label, BLUE), "label": _shortened(curve.label)}


def _format_axes(axes: Axes, x_label: str, *, is_share: bool = False, from_zero: bool = False) -> None:
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.grid(axis="y")
    axes.xaxis.set_major_formatter(_thousands())
    if is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    elif axes.dataLim.y1 >= 1000:
        axes.yaxis.set_major_formatter(_thousands())
    if from_zero:
        axes.set_ylim(0, float(axes.dataLim.y1) * 1.08 or 1)
    if 1 < len(axes.get_legend_handles_labels()[0]) <= MAX_CURVES:
        axes.figure.legend(loc="outside upper left", ncols=2, handlelength=1.2, columnspacing=1.2)


def _ends_of(curves: Sequence[Curve], format_value: Callable[[float], str]) -> str:
    return "; ".join(f"{curve.label}: {first_and_last(curve.y, format_value)}" for curve in curves) + "."


def first_and_last(values: npt.NDArray[np.float64], format_value: Callable[[float], str]) -> str:
    """The first and the last finite value in words."""
    known = values[np.isfinite(values)].tolist()
    return " to ".join(dict.fromkeys(map(format_value, (known[0], known[-1])))) if known else UNKNOWN


def heatmap(title: str, axis_labels: tuple[str, str], cells: Cells, caption: str) -> Chart:
    """A map of ``cells``, with a colour bar; ``axis_labels`` are of the columns and of the rows."""
    rows, columns = cells.values.shape
    width = NARROW if columns <= NARROW_COLUMNS else HALF if columns <= 4 * MAX_NUMBERED else WHOLE
    height = max(HEIGHT, 0.9 + (0.23 if rows <= MAX_NUMBERED else 0.17) * rows) if rows <= MAX_NAMED else 6.6
    with _make_axes(width, height) as axes:
        values = np.ma.masked_invalid(cells.values)
        scale, format_value = cells.scale
        style: Any = {"cmap": _BLUES, "norm": scale}
        shown: ScalarMappable
        if max(rows, columns) <= MAX_NAMED:
            shown = axes.pcolormesh(values, edgecolors="white", linewidth=0.6, **style)
            axes.invert_yaxis()
        else:
            shown = axes.imshow(values, interpolation="none", extent=(0, columns, rows, 0), aspect="auto", **style)
        if cells.numbers is not None and max(rows, columns) <= MAX_NUMBERED:
            _write_numbers(axes, cells.numbers, shown)
        for axis, names in ((axes.xaxis, cells.columns), (axes.yaxis, cells.rows)):
            named = [number for number, name in enumerate(names) if name] if len(names) <= MAX_NAMED else []
            axis.set_ticks([number + 0.5 for number in named], [_shortened(names[number], 20) for number in named])
        if max(map(len, cells.columns), default=0) > 3:
            axes.tick_params(axis="x", rotation=90)
        axes.tick_params(length=0, labelsize=7)
        axes.spines[:].set_visible(False)
        axes.set(xlabel=axis_labels[0], ylabel=axis_labels[1])
        bar = axes.figure.colorbar(shown, ax=axes, pad=0.02, aspect=30, format=format_value)
        bar.outline.set_visible(False)
        return _finish(axes, title, caption)


def _write_numbers(axes: Axes, numbers: npt.NDArray[np.int64], shown: Any) -> None:
    size = 7 if numbers.max(initial=0) < 1000 else 5.5
    colors = shown.to_rgba(shown.get_array())
    for (row, column), number in np.ndenumerate(numbers):
        text = "" if not number else f"{number:,}" if number < 100_000 else f"{number / 1000:,.0f}k"
        color = "white" if colors[row, column, :3].mean() < 0.5 else INK
        axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", fontsize=size, color=color)


@contextmanager
def _make_axes(width: float = NARROW, height: float = HEIGHT) -> Iterator[Axes]:
    """Axes of a figure of ``width`` and ``height`` in inches."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser has it
        yield Figure(figsize=(width, height), layout="constrained", facecolor="none").add_subplot(facecolor="none")


def _finish(axes: Axes, title: str, caption: str) -> Chart:
    figure: Any = axes.figure
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    text = buffer.getvalue().replace(*_FONT)
    uri = data_uri(text[text.index("<svg") :].encode(), "svg+xml")  # without the DTD's address
    width, height = figure.get_size_inches() * INCH
    return Chart(uri, round(width), round(height), title, caption, f"{title}. {caption}")


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def _shortened(name: str, length: int = 24) -> str:
    text = name if len(name) <= length else f"{name[: length - 1]}…"
    return text.replace("$", r"\$")  # matplotlib's own markup
