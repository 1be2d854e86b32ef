"""What a stage reports when it ends: counts for people, the same as JSON for programs."""

import json
from dataclasses import dataclass, field
from typing import Any

from etl.errors import printable


@dataclass
class Summary:
    """``facts`` are names and values in the order of showing; ``tables`` (title, columns, rows) are for people only.

    ``brief`` are the names of the facts that people see without --verbose; all of them, and the tables, if empty.
    """

    stage: str
    place: str
    already_done: bool
    facts: dict[str, Any]
    tables: list[tuple[str, list[str], list[list[Any]]]] = field(default_factory=list)
    brief: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The summary without ``tables``, as ``--json`` prints it."""
        return {"stage": self.stage, "place": self.place, "already_done": self.already_done, **self.facts}

    def show(self, as_json: bool, verbose: bool = False) -> None:
        """Print to standard output."""
        title = f"{self.stage}: {'was done before' if self.already_done else 'done'}"
        if as_json:
            print(json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False), flush=True)
            return
        if self.brief and not verbose:
            counts = [f"{name.replace('_', ' ')} {text_of(self.facts[name])}" for name in self.brief]
            print(title, "; ".join(counts), text_of(self.place), sep="\n  ", flush=True)
            return
        # imported here because most processes that import this module are tasks, which show nothing
        from rich.console import Console
        from rich.table import Table

        console = Console(width=None if Console().is_terminal else 100, markup=False, emoji=False)
        facts = Table(title=title, title_justify="left", show_header=False)
        facts.add_row("place", text_of(self.place))
        for name, value in self.facts.items():
            facts.add_row(name.replace("_", " "), text_of(value))
        console.print(facts)
        for title, columns, rows in self.tables:
            table = Table(title=title, title_justify="left")
            for number, column in enumerate(columns):
                table.add_column(column, justify="right" if number else "left")
            for row in rows:
                table.add_row(*map(text_of, row))
            console.print(table)


def speed(images: int, seconds: float) -> dict[str, Any]:
    """The facts of how fast this many images were processed."""
    return {"seconds": round(seconds, 1), "images_per_s": round(images / seconds) if seconds else None}


def text_of(value: Any) -> str:
    """A value of JSON for people, on one line and `printable`: it may be a text of the source."""
    if isinstance(value, dict):
        return ", ".join(f"{text_of(key)} {text_of(count)}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else printable(str(value), kept="")
