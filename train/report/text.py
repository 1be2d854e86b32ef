"""Losses, accuracies, speeds and durations as the page of a run writes them."""

import math

from etl.report.render import FILTERS, UNKNOWN


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


RUN_FILTERS = {**FILTERS, **{each.__name__: each for each in (accuracy, milliseconds)}}
