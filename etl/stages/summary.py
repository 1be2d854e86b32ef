"""What a stage reports when it ends: counts for people, the same as JSON for programs. Made from the marker alone."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.stages.stage import Stage

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 24


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
        return {"stage": self.stage, "place": self.place, "already_done": self.already_done, **self.facts}

    def show(self, as_json: bool, verbose: bool = False) -> None:
        """Print to standard output."""
        title = f"{self.stage}: {'was done before' if self.already_done else 'done'}"
        if as_json:
            print(json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False), flush=True)
            return
        if self.brief and not verbose:
            counts = [f"{name.replace('_', ' ')} {_text(self.facts[name])}" for name in self.brief]
            print(title, "; ".join(counts), self.place, sep="\n  ", flush=True)
            return
        # imported only here, for most processes that import this module are tasks, and show nothing
        from rich.console import Console
        from rich.table import Table

        console = Console(width=None if Console().is_terminal else 100)
        facts = Table(title=title, title_justify="left", show_header=False)
        facts.add_row("place", self.place)
        for name, value in self.facts.items():
            facts.add_row(name.replace("_", " "), _text(value))
        console.print(facts)
        for title, columns, rows in self.tables:
            console.print(_shortened_table(title, columns, rows))


def ingest_summary(stage: Stage, already_done: bool = False) -> Summary:
    """What a finished ``raw`` tells."""
    marker, run = stage.read_marker(), stage.read_run()
    counts = marker["counts"]
    packs = len(marker["packs"])
    facts = {
        "images": counts["images"],
        "newly_packed": 0 if already_done else run.get("packed", 0),
        "removed_or_changed": 0 if already_done else run.get("removed", 0),
        "classes": len(marker["classes"]),
        "skipped_files": counts["skipped"],
        "source_splits": counts["by_split"],
        "packs": packs,
        "reused_packs": packs if already_done else run.get("reused", 0),
        "bytes": counts["bytes"],
        **_speed(run.get("packed", 0), run.get("seconds", 0.0)),
    }
    rows = [[name, count] for name, count in zip(marker["classes"], counts["by_class"], strict=True)]
    tables = [("images by class", ["class", "images"], rows)]
    changes = ("newly_packed", "removed_or_changed") if facts["reused_packs"] and not already_done else ()
    others = (name for name in ("skipped_files", "source_splits") if facts[name])
    brief = ("images", *changes, *others, "classes", "packs", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, tables, brief)


def normalize_summary(stage: Stage, already_done: bool = False) -> Summary:
    """What a finished ``normalized`` tells."""
    marker, run = stage.read_marker(), stage.read_run()
    counts = marker["counts"]
    parts = len(marker["parts"])
    facts = {
        "images": counts["input"],
        "good": counts["good"],
        "rejects": counts["rejects"],
        "rejects_by_reason": counts["rejects_by_reason"],
        "decoded": 0 if already_done else run.get("decoded", 0),
        **_retried({} if already_done else run),
        "parts": parts,
        "reused_parts": parts if already_done else run.get("reused", 0),
        "bytes": counts["bytes"],
        **_speed(run.get("decoded", 0), run.get("seconds", 0.0)),
    }
    rows = [[name, count] for name, count in zip(marker["classes"], counts["by_class"], strict=True)]
    tables = [("good images by class", ["class", "images"], rows)]
    brief = ("images", "good", "rejects", *(["rejects_by_reason"] if counts["rejects"] else []), "parts", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, tables, brief)


def shard_summary(stage: Stage, already_done: bool = False) -> Summary:
    """What finished slices tell: their sizes, and examples by split and class."""
    manifest, seconds = stage.read_marker(), stage.read_run().get("seconds", 0.0)
    splits = manifest["splits"]
    records = sum(split["records"] for split in splits.values())
    known = manifest["known"]
    has_history = any(count for name, count in (known or {}).items() if name != "new")
    by_class = [
        [name, *(split["by_class"][label] for split in splits.values())]
        for label, name in enumerate(manifest["classes"])
    ]
    sizes = {name: sum(counts) for name, *counts in by_class}
    smallest, largest = (choose(sizes, key=sizes.__getitem__) for choose in (min, max))
    facts = {
        "examples": records,
        "known": known,
        "splits": {name: split["records"] for name, split in splits.items()},
        "slices": {name: len(split["slices"]) for name, split in splits.items()},
        "smallest_class": {smallest: sizes[smallest]},
        "largest_class": {largest: sizes[largest]},
        "manifest_sha256": stage.fingerprint(),
        "bytes": sum(split["bytes"] for split in splits.values()),
        "mean": [round(value, 3) for value in manifest["statistics"]["mean"]],
        "std": [round(value, 3) for value in manifest["statistics"]["std"]],
        **_speed(records, seconds),
    }
    by_slice = [[each["name"], each["records"], each["bytes"]] for split in splits.values() for each in split["slices"]]
    shown = [("examples by class", ["class", *splits], by_class), ("slices", ["slice", "examples", "bytes"], by_slice)]
    brief = ("examples", *(["known"] if has_history else []), "splits", "slices", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, shown, brief)


def verify_summary(stage: Stage, repaired: list[str] | None = None) -> Summary:
    """What a finished verification tells."""
    marker, seconds = stage.read_marker(), stage.read_run().get("seconds", 0.0)
    counts = marker["counts"]
    read = counts.get("bytes", 0) + counts.get("other_bytes", 0)
    facts = {
        "examples": counts.get("examples", 0),
        "slices": counts.get("slices", 0),
        "bytes": read,
        "parts": counts.get("parts", 0),
        "findings": marker["findings_by_kind"],
        "duplicates": marker["duplicates"],
        **({"repaired": repaired or "nothing"} if repaired is not None else {}),
        "seconds": round(seconds, 1),
        "mb_per_s": round(read / seconds / 1e6) if seconds else None,
    }
    brief = ("examples", "slices", "findings", *(["repaired"] if repaired is not None else []), "seconds")
    return Summary(stage.name, str(stage.folder), False, facts, brief=brief)


def _retried(run: dict[str, Any]) -> dict[str, int]:
    return {name: run[name] for name in ("rejects_tried", "now_good") if name in run}


def _speed(images: int, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 1), "images_per_s": round(images / seconds) if seconds else None}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(count)}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _shortened_table(title: str, columns: list[str], rows: list[list[Any]]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    shown = rows if len(rows) <= MOST_ROWS else [*rows[: MOST_ROWS - 1], [f"… {len(rows) - MOST_ROWS + 1} more"]]
    for row in shown:
        table.add_row(*map(_text, row))
    return table
