"""Do the tests see a defect? Seeds one at a time in a copy of the tree, and runs the tests there.

python -m tests.lib.defects [NAME …] [--tier unit|test|test-all] [--near] [--list]

The paths that a defect names are run first, the cheapest tests first; only a defect that these do not see is tried on
the rest of the tier. A test that hangs has seen it too. Exits 1 if a defect survived.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lib.commands import REPOSITORY
from tests.lib.seeded_defects import DEFECTS, Defect

OWN_TEST = "tests/test_defects.py"  # fails in every copy: the text to change is changed
TIMEOUT_S = 900.0

# What each tier adds to the one before, as pytest's marker expression.
TIERS = {
    "unit": "not (integration or hadoop or witness or chaos)",
    "test": "witness and not chaos",
    "test-all": "(integration or hadoop) and not (witness or chaos)",
}
NO_TESTS = 5  # pytest's exit status where it has selected none
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of a defect: the test that saw it and that test's tier, both empty if none did."""

    defect: Defect
    seen_by: str
    tier: str
    seconds: float

    @property
    def line(self) -> str:
        fate = f"{self.tier}: {self.seen_by}" if self.tier else "SURVIVED"
        return f"{self.defect.name}  {fate}  {self.seconds:.0f} s"


def apply(defect: Defect, tree: Path) -> None:
    """Change the file below ``tree``. Raises ValueError unless the text to change is there exactly once."""
    path = tree / defect.file
    text = path.read_text()
    if (times := text.count(defect.old)) != 1:
        raise ValueError(f"{defect.name}: {defect.file} has its text {times} times, not once; change tests/lib too")
    path.write_text(text.replace(defect.old, defect.new))


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the files that git tracks, or would, as they are in the working tree; without what was compiled."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="ringslice-defect-") as folder:
        tree = Path(folder) / "tree"
        for name in filter(None, listed.split("\0")):
            if (REPOSITORY / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, tree / name)
        yield tree


def run_pytest(tree: Path, words: Sequence[str], timeout_s: float) -> str:
    """The first test that fails, empty if none does. Raises RuntimeError if pytest could not run the tests."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    with subprocess.Popen(
        [*command, f"--deselect={OWN_TEST}", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "a test that hangs"
    if process.returncode in (0, NO_TESTS):
        return ""
    if process.returncode < 0:
        return f"a test that dies of {signal.Signals(-process.returncode).name}"
    failure = _FAILURE.search(told)
    if process.returncode != 1 or failure is None:
        raise RuntimeError(f"pytest exited {process.returncode}:\n{told[-4000:]}")
    return failure[1]


def selections(defect: Defect, tiers: Sequence[str], near: bool) -> Iterator[tuple[str, list[str]]]:
    """What to run, one after the other: the tier, and pytest's words; with ``near`` only the paths to run first."""
    first = [path for path in defect.tests if (REPOSITORY / path).exists()]
    for tier in tiers:
        yield tier, ["-m", TIERS[tier], *first]
    for tier in () if near else tiers:
        share = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
        yield tier, ["-m", TIERS[tier], *share, *(f"--deselect={path}" for path in first)]


def try_defect(defect: Defect, tiers: Sequence[str], near: bool, timeout_s: float) -> Outcome:
    begin = time.monotonic()
    with copied_tree() as tree:
        apply(defect, tree)
        for tier, words in selections(defect, tiers, near):
            left_s = timeout_s - (time.monotonic() - begin)
            if seen_by := run_pytest(tree, words, max(1.0, left_s)):
                return Outcome(defect, seen_by, tier, time.monotonic() - begin)
    return Outcome(defect, "", "", time.monotonic() - begin)


def require_sound(defects: Sequence[Defect], tiers: Sequence[str], timeout_s: float) -> None:
    """Raise RuntimeError if a test of those that run first fails without any defect: it would see all of them."""
    paths = sorted({path for defect in defects for path in defect.tests if (REPOSITORY / path).exists()})
    expression = " or ".join(f"({TIERS[tier]})" for tier in tiers)
    with copied_tree() as tree:
        if seen_by := run_pytest(tree, ["-m", expression, *paths], timeout_s):
            raise RuntimeError(f"without any defect: {seen_by} fails")


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [("place", "defect", "tier", "seen by", "s")]
    rows += [
        (each.defect.place, each.defect.name, each.tier or "-", each.seen_by or "SURVIVED", f"{each.seconds:.0f}")
        for each in outcomes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="defects; all if none is given")
    parser.add_argument("--tier", choices=TIERS, default="test", help="the tests that may see them (default: test)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for each defect")
    parser.add_argument("--near", action="store_true", help="run only the paths that a defect names")
    parser.add_argument("--list", action="store_true", help="list the defects, and end")
    options = parser.parse_args()
    if unknown := set(options.names) - {each.name for each in DEFECTS}:
        parser.error(f"no such defects: {', '.join(sorted(unknown))}; see --list")
    chosen = [each for each in DEFECTS if not options.names or each.name in options.names]
    if options.list:
        print("\n".join(f"{each.name}  {each.place}  {each.file}: {each.what}" for each in chosen))
        return 0
    tiers = list(TIERS)[: list(TIERS).index(options.tier) + 1]
    try:
        require_sound(chosen, tiers, options.timeout)
    except RuntimeError as error:
        sys.exit(str(error))
    outcomes = []
    for each in chosen:
        outcomes.append(try_defect(each, tiers, options.near, options.timeout))
        print(outcomes[-1].line, flush=True)
    survived = sum(not each.tier for each in outcomes)
    print(f"\n{table(outcomes)}\n\n{len(outcomes) - survived} of {len(outcomes)} defects were seen")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
