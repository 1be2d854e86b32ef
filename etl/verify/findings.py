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


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is wrong: ``what`` it is about, its name, and one line for people."""

    what: str
    name: str
    line: str


@dataclass
class KeyFindings:
    """What is wrong with keys, by kind: all are counted, the first `MAX_KEYS` of a kind are named, with a line each."""

    counts: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, kind: str, number: int, first: Iterable[tuple[str, str]]) -> None:
        if not number:
            return
        self.counts[kind] += number
        named = self.named.setdefault(kind, [])
        named += list(first)[: MAX_KEYS - len(named)]

    def without(self, *kinds: str) -> "KeyFindings":
        """The same but for these kinds."""
        counts = Counter({kind: count for kind, count in self.counts.items() if kind not in kinds})
        return KeyFindings(counts, {kind: named for kind, named in self.named.items() if kind not in kinds})

    def findings(self) -> list[Finding]:
        """Those that are named."""
        return [Finding(KEY, key, line) for kind in sorted(self.named) for key, line in self.named[kind]]


# Contents (by SHA-256 of the source image) that several keys have, and the examples that have them: what is counted.
DUPLICATE_COUNTS = ("contents", "examples", "across_splits", "across_classes")


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

    @property
    def by_kind(self) -> dict[str, int]:
        """Findings by what they are about; keys by what is wrong with them."""
        files = Counter(each.what for each in self.files)
        return dict(sorted(files.items())) | {f"{KEY} {kind}": self.keys.counts[kind] for kind in self.keys.counts}

    def findings(self) -> list[Finding]:
        """The named ones, files first."""
        return [*self.files, *self.keys.findings()]

    def to_json(self) -> dict[str, Any]:
        """As verification.json has it."""
        kept = self.findings()[:MAX_KEPT]
        return {
            "findings": [vars(each) for each in kept],
            "more_findings": self.number - len(kept),
            "findings_by_kind": self.by_kind,
            "counts": self.counts,
            "duplicates": {name: self.duplicates[name] for name in DUPLICATE_COUNTS},
        }

    def lines(self) -> str:
        """The first findings, a line each, for the end of an error message."""
        first = self.findings()[:MAX_LINES]
        left = self.number - len(first)
        more = [f"and {left} more; verification.json names them"] if left else []
        return "".join(f"\n  {line}" for line in [*(each.line for each in first), *more])
