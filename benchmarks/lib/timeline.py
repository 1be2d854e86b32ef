"""A step in a timeline of Horovod's, drawn: when each gradient was there, and when it was reduced.

Horovod writes Chrome's trace events (its docs/timeline.rst): a process for each tensor, with the phases of its
all-reduce in microseconds since the start of the file.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

START, REDUCE = "start_time_since_epoch_in_micros", "ALLREDUCE"
GROUPED = re.compile(r"HorovodGroupedAllreduce_Fill(?:_(\d+))?_0_.*?(\d+)of\d+$")  # first gradient, place in its group
WIDTH, LEFT, ROW, GAP, TITLE = 860, 110, 13, 34, 26  # pixels
WAITS, REDUCES, TEXT, GRID = "#c9ced6", "#2f6fb3", "#333", "#e5e7eb"


@dataclass(frozen=True)
class Gradient:
    """Milliseconds of a step at which a gradient was there, and at which its all-reduce began and ended."""

    there: float
    begun: float
    reduced: float


def read_step(path: Path, started: float, there: Sequence[float]) -> list[Gradient]:
    """The gradients of the step which ``started`` and had them ``there`` at these seconds since 1970.

    Raises ValueError if the all-reduce of one is missing.
    """
    text = path.read_text().strip().removesuffix("]").rstrip().removesuffix(",")  # a rank that ends may not close it
    events = [event for event in json.loads(text + "]") if event]
    names = {event["pid"]: event["args"] for event in events if event.get("name") == "process_name"}
    origin = next(each[START] for each in names.values() if START in each)
    numbers = {tensor: _number(each["name"]) for tensor, each in names.items() if "name" in each}
    found: dict[int, Gradient] = {}
    open_phases: dict[int, list[tuple[str, float]]] = {tensor: [] for tensor in names}
    for event in (each for each in events if each["ph"] in "BE" and numbers.get(each["pid"]) is not None):
        number, phases = numbers[event["pid"]], open_phases[event["pid"]]
        time = (origin + event["ts"]) / 1e3 - 1e3 * started
        if event["ph"] == "B":
            phases.append((event["name"], time))
        elif phases and (phase := phases.pop())[0] == REDUCE and number is not None and phase[1] > 0:
            found.setdefault(number, Gradient(1e3 * (there[number] - started), phase[1], time))
    if len(found) < len(there):
        raise ValueError(f"{path} has {len(found)} gradients of the step, not {len(there)}")
    return [found[number] for number in sorted(found)]


def _number(tensor: str) -> int | None:
    """Which gradient a tensor is, in the order in which they are made; None if it is something else."""
    match = GROUPED.match(tensor)
    return match and int(match[1] or 0) + int(match[2]) - 1


def draw(panels: Mapping[str, Sequence[Gradient]]) -> str:
    """An SVG with a panel for each step, below each other, with one axis."""
    longest = max(each.reduced for gradients in panels.values() for each in gradients)
    scale = (WIDTH - LEFT - 40) / longest
    parts, top = [], 0
    for title, gradients in panels.items():
        bottom = top + TITLE + ROW * len(gradients)
        parts.append(_text(8, top + 17, title, weight="bold"))
        for time in range(0, int(longest) + 1, 100):
            x = LEFT + time * scale
            parts.append(f'<path d="M{x:.1f} {top + TITLE}V{bottom}" stroke="{GRID}"/>')
            parts.append(_text(x, bottom + 14, f"{time} ms", anchor="middle"))
        for number, each in enumerate(gradients):
            y = top + TITLE + ROW * number
            parts.append(_text(8, y + 10, f"gradient {number + 1}"))
            spans = (each.there, each.begun, WAITS), (each.begun, each.reduced, REDUCES)
            for start, stop, colour in spans:
                x, width = LEFT + start * scale, max(0.5, (stop - start) * scale)
                parts.append(f'<rect x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{ROW - 3}" fill="{colour}"/>')
        top = bottom + GAP
    for x, colour, what in ((LEFT, WAITS, "waits for its turn"), (LEFT + 160, REDUCES, "is reduced")):
        parts.append(f'<rect x="{x}" y="{top - 6}" width="14" height="10" fill="{colour}"/>')
        parts.append(_text(x + 20, top + 3, what))
    size = f'width="{WIDTH}" height="{top + 14}" viewBox="0 0 {WIDTH} {top + 14}"'
    style = f'font-family="sans-serif" font-size="11" fill="{TEXT}"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', background, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, **attributes: Any) -> str:
    names = {"anchor": "text-anchor", "weight": "font-weight"}
    words = "".join(f' {names[name]}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y}"{words}>{escape(text)}</text>'
