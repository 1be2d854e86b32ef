"""What a verification found: comparisons, their findings, all counted and the first of them named, and their lines."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from etl.values import shorten

MAX_KEPT = 1000  # findings in verification.json
MAX_LINES = 20  # on standard error
MAX_KEYS = 100  # that are named, for each kind of finding

MANIFEST_FILE, DATASET, RAW_DATASET = "manifest.json", "dataset.json", "raw/dataset.json"  # names of markers

# Contents (by SHA-256 of the source image) that several keys have, and the examples that have them: what is counted.
DUPLICATE_COUNTS = ("contents", "examples", "across_splits", "across_classes")


class What(StrEnum):
    """What a finding may be about. Those before KEY are files, named without what is above them."""

    MANIFEST = "manifest"
    TABLE = "table"
    SLICE = "slice"
    INDEX = "index"
    STRAY = "stray"
    PART = "part"
    ROWS = "rows"
    REJECTS = "rejects"
    PACK = "pack"
    LIST = "list"
    REMOVED = "removed"  # a table of removed images
    INPUT = "input"  # a part that does not have the images of its pack
    PARENT = "earlier"  # a table of the slices whose splits were kept
    KEY = "key"


class KeyFault(StrEnum):
    """What may be wrong with a key."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    DOUBLED = "doubled"
    DIFFERENT = "different"
    RETIRED = "departed"
    SAME_CONTENT = "same content"  # as another, though duplicates were to be left out
    SPLIT_GROUP = "split group"  # a group whose images are in several splits


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is wrong: ``what`` it is about, its name, and one line for people."""

    what: str
    name: str
    line: str


def marker_fault(line: str, marker: str = MANIFEST_FILE) -> Finding:
    """A finding about a marker."""
    return Finding(What.MANIFEST, marker, f"{marker}: {line}")


def differences(expected: Any, recorded: Any, path: str = "") -> Iterator[str]:
    """Where the JSON value ``recorded`` is not ``expected``: a line for each path."""
    if isinstance(expected, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys([*expected, *recorded]):
            where = f"{path}.{name}" if path else name
            if name not in recorded or name not in expected:
                yield f"{where} {'is missing' if name in expected else 'should not be there'}"
            else:
                yield from differences(expected[name], recorded[name], where)
    elif isinstance(expected, list | tuple) and isinstance(recorded, list | tuple) and len(expected) == len(recorded):
        for number, pair in enumerate(zip(expected, recorded, strict=True)):
            yield from differences(*pair, f"{path}.{number}")
    elif expected != recorded or isinstance(expected, bool) != isinstance(recorded, bool):
        yield f"{path or 'it'} is {shorten(repr(recorded))}, not {shorten(repr(expected))}"


def table_difference(expected: pa.Table, recorded: pa.Table) -> str | None:
    """The first row in which ``recorded`` is not ``expected``, None if it is.

    A row is named by its key, if both tables have the same one there.
    """
    if expected.equals(recorded):
        return None
    if expected.column_names != recorded.column_names:
        return f"it has the columns {shorten(repr(recorded.column_names))}, not {shorten(repr(expected.column_names))}"
    rows = min(expected.num_rows, recorded.num_rows)
    for name in expected.column_names:
        pairs = zip(expected[name].to_pylist(), recorded[name].to_pylist(), strict=False)
        for row, (due, value) in enumerate(pairs):
            if due != value:
                where = f"{expected['key'][row]}: " if name != "key" and "key" in expected.column_names else ""
                return f"row {row}: {where}{name} is {shorten(repr(value))}, not {shorten(repr(due))}"
    return f"there are {recorded.num_rows} rows, not {expected.num_rows}; the first {rows} are as they should be"


@dataclass
class KeyFindings:
    """What is wrong with keys, by kind: all are counted, the first `MAX_KEYS` of a kind are named."""

    counts: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, kind: str, rows: pa.Table, line: Callable[[dict[str, Any]], str]) -> None:
        """Count all ``rows`` (column key), and name the first, each by its ``line``."""
        if rows.num_rows:
            self.counts[kind] += rows.num_rows
            named = self.named.setdefault(kind, [])
            first = rows.slice(0, MAX_KEYS - len(named)).to_pylist()
            named += [Finding(What.KEY, row["key"], line(row)) for row in first]

    def drop(self, kinds: Iterable[str]) -> None:
        """Forget these kinds."""
        for kind in kinds:
            self.counts.pop(kind, None)
            self.named.pop(kind, None)


@dataclass
class Outcome:
    """All that one check of a set of slices found."""

    files: list[Finding] = field(default_factory=list)
    keys: KeyFindings = field(default_factory=KeyFindings)
    counts: dict[str, int] = field(default_factory=dict)
    duplicates: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        """How many findings there are."""
        return len(self.files) + self.keys.counts.total()

    def findings(self) -> list[Finding]:
        """The named ones, files first."""
        return [*self.files, *(each for kind in sorted(self.keys.named) for each in self.keys.named[kind])]

    def to_json(self) -> dict[str, Any]:
        """As verification.json has it: files by what they are, keys by what is wrong with them."""
        kept, files = self.findings()[:MAX_KEPT], Counter(each.what for each in self.files)
        of_keys = {f"{What.KEY} {fault}": count for fault, count in self.keys.counts.items()}
        return {
            "findings": [vars(each) for each in kept],
            "more_findings": self.number - len(kept),
            "findings_by_kind": dict(sorted(files.items())) | of_keys,
            "counts": self.counts,
            "duplicates": {name: self.duplicates[name] for name in DUPLICATE_COUNTS},
        }

    def lines(self) -> str:
        """The first findings, a line each, for the end of an error message."""
        first = self.findings()[:MAX_LINES]
        left = self.number - len(first)
        more = [f"and {left} more; see verification.json"] if left else []
        return "".join(f"\n  {line}" for line in [*(each.line for each in first), *more])
