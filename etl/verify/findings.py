"""What a verification found: its findings, all counted and the first of them named, and their lines."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_KEPT = 1000  # findings in verification.json
MAX_LINES = 20  # on standard error
MAX_KEYS = 100  # that are named, for each kind of finding

# What a finding may be about. Those before KEY are files, named without what is above them.
MANIFEST, TABLE, SLICE, INDEX, STRAY = "manifest", "table", "slice", "index", "stray"
PART, ROWS, REJECTS, PACK, LISTED = "part", "rows", "rejects", "pack", "list"
REMOVED = "removed"  # a table of removed images
INPUT = "input"  # a part that does not have the images of its pack
EARLIER = "earlier"  # a table of the slices whose splits were kept
KEY = "key"

MANIFEST_FILE, DATASET, RAW_DATASET = "manifest.json", "dataset.json", "raw/dataset.json"  # names of markers

# What may be wrong with a key.
MISSING, UNKNOWN, DOUBLED, DIFFERENT, DEPARTED = "missing", "unknown", "doubled", "different", "departed"
SAME_CONTENT = "same content"  # as another, though duplicates were to be left out
SPLIT_GROUP = "split group"  # a group whose images are in several splits

# Contents (by SHA-256 of the source image) that several keys have, and the examples that have them: what is counted.
DUPLICATE_COUNTS = ("contents", "examples", "across_splits", "across_classes")


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is wrong: ``what`` it is about, its name, and one line for people."""

    what: str
    name: str
    line: str


def marker_fault(line: str, marker: str = MANIFEST_FILE) -> Finding:
    """A finding about a marker."""
    return Finding(MANIFEST, marker, f"{marker}: {line}")


@dataclass
class KeyFindings:
    """What is wrong with keys, by kind: all are counted, the first `MAX_KEYS` of a kind are named."""

    counts: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[Finding]] = field(default_factory=dict)

    def add(self, kind: str, number: int, first: Iterable[tuple[str, str]]) -> None:
        """Count so many; ``first`` are the keys of the first ones, with a line each."""
        if number:
            self.counts[kind] += number
            named = self.named.setdefault(kind, [])
            named += [Finding(KEY, key, line) for key, line in first][: MAX_KEYS - len(named)]

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
        by_kind = dict(sorted(files.items())) | {f"{KEY} {kind}": count for kind, count in self.keys.counts.items()}
        return {
            "findings": [vars(each) for each in kept],
            "more_findings": self.number - len(kept),
            "findings_by_kind": by_kind,
            "counts": self.counts,
            "duplicates": {name: self.duplicates[name] for name in DUPLICATE_COUNTS},
        }

    def lines(self) -> str:
        """The first findings, a line each, for the end of an error message."""
        first = self.findings()[:MAX_LINES]
        left = self.number - len(first)
        more = [f"and {left} more; verification.json names them"] if left else []
        return "".join(f"\n  {line}" for line in [*(each.line for each in first), *more])
