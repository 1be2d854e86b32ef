"""The choice of the champion: candidates and champion answer the same test split, and the better one is recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from etl.errors import DataError, UsageError
from etl.stages.champion import Promoted, champion_file, publish_champions, read_champions
from etl.stages.run import RunRecord
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place
from train.evaluation.comparison import Answers, Rules, compare, decide
from train.evaluation.evaluate import evaluate
from train.evaluation.evaluator import Collector
from train.evaluation.trained import RunCheckpoint, find_promoted, find_trained, require_split
from train.monitor.monitor import Monitor
from train.reader.config import ReaderOptions
from train.runs.folder import Dataset, find_dataset
from train.strategies import Strategy


@dataclass(frozen=True)
class Promotion:
    """Which runs to compare, and how; the options of train/promote.py describe each field."""

    data: str
    name: str | None
    runs: Sequence[str]
    split: str
    checkpoint: str
    strategy: str
    rules: Rules
    rollback: bool
    json: bool
    reading: ReaderOptions


@dataclass(frozen=True)
class Contest:
    """The candidates and the champion, all of which fit ``dataset``; ``champions`` are those recorded so far."""

    dataset: Dataset
    champions: list[Promoted]
    candidates: list[RunCheckpoint]
    champion: RunCheckpoint | None

    @property
    def entrants(self) -> list[RunCheckpoint]:
        """All that are to be evaluated; none if each candidate is the champion already."""
        return [*self.candidates, *([self.champion] if self.champion and self.candidates else [])]


def promote(wanted: Promotion, strategy: Strategy, monitor: Monitor) -> None:
    """Promote the best candidate if it is better than the champion, or roll back, on all ranks of ``strategy``."""
    record, collective = RunRecord(), strategy.collective
    dataset = collective.run_on_root(lambda: find_dataset(wanted.data, wanted.name))
    if wanted.rollback:
        collective.run_on_root(lambda: roll_back(wanted, open_place(dataset.root), record))
    else:
        contest = collective.run_on_root(lambda: prepare(wanted, dataset))
        given = {name: getattr(wanted, name) for name in ("data", "name", "strategy", "json", "reading")}
        answers = {}
        for each in contest.entrants:
            monitor.open_log(open_place(each.folder))
            collector = Collector()
            evaluate(each, dataset, wanted.split, strategy, monitor, given=given, answers=collector)
            answers[each.id] = collector.gather(collective)
        collective.run_on_root(lambda: settle(wanted, contest, answers, record))
    collective.close()


def prepare(wanted: Promotion, dataset: Dataset) -> Contest:
    """Find all that is compared. A candidate that is the champion already is left out.

    Raises UsageError if a run has no checkpoint or does not fit the slices, DataError if the champion's is gone.
    """
    root = open_place(dataset.root)
    champions = read_champions(root)
    champion = find_promoted(root, champions[0]) if champions else None
    found = [find_trained(root, run, wanted.checkpoint) for run in dict.fromkeys(wanted.runs)]
    candidates = [each for each in found if champion is None or each.weights != champion.weights]
    contest = Contest(dataset, champions, candidates, champion)
    if not candidates:
        return contest
    require_split(dataset, wanted.split)
    for each in candidates:
        each.require_fit(dataset)
    if champion is not None:
        name = champion.dataset.name
        champion.require_fit(dataset, f"give --name {name}, or remove {champion_file(root)} to start again")
    return contest


def settle(wanted: Promotion, contest: Contest, answers: Mapping[tuple[str, int], Answers], record: RunRecord) -> None:
    """Decide, record a new champion, and print the decision. Raises DataError if the accuracy is below the wanted."""
    root, champion = open_place(contest.dataset.root), contest.champion
    if not contest.candidates:
        show(wanted, root, record, contest.champions[0] | {"reason": "it is the champion already"}, None)
        return
    best = max(contest.candidates, key=lambda each: answers[each.id].accuracy)
    own = answers[best.id]
    comparison = (
        compare(own, answers[champion.id], contest.dataset.manifest["classes"]) if champion is not None else None
    )
    is_promoted, reason = decide(wanted.rules, own.accuracy, comparison, len(contest.candidates))
    found: dict[str, Any] = {
        "run": best.name,
        **best.weights,
        "evaluated_slices": contest.dataset.fingerprint,
        "split": wanted.split,
        "examples": len(own.keys),
        "accuracy": own.accuracy,
        "candidates": {each.name: answers[each.id].accuracy for each in contest.candidates},
        "rules": asdict(wanted.rules),
        "reason": reason,
    }
    if champion is not None and comparison is not None:
        before = {"before": champion.name, "before_accuracy": answers[champion.id].accuracy}
        found |= before | asdict(comparison)
    if is_promoted:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        champions = [found | {"promoted_at": now}, *contest.champions]
        publish_champions(root, contest.champions, champions, best.require_unchanged)
    show(wanted, root, record, found, is_promoted)
    if own.accuracy < wanted.rules.min_accuracy:
        raise DataError(f"{best.folder}: {reason} on {wanted.split}")


def roll_back(wanted: Promotion, root: Place, record: RunRecord) -> None:
    """Make the champion before this one the champion again. Raises UsageError if there is none."""
    champions = read_champions(root)
    if len(champions) < 2:
        raise UsageError(f"{root} has no champion before this one; promote another run: ringslice promote {root} RUN")
    remedy = f"promote another run: ringslice promote {root} RUN"
    publish_champions(root, champions, champions[1:], lambda: find_promoted(root, champions[1], remedy))
    show(wanted, root, record, champions[1] | {"reason": f"{champions[0]['run']} was rolled back"}, True)


def show(wanted: Promotion, root: Place, record: RunRecord, found: dict[str, Any], is_promoted: bool | None) -> None:
    """Print the decision about the run that ``found`` describes, None if it had been promoted before; and the champion
    there is now.
    """
    champions = read_champions(root)
    decision = {"promoted": bool(is_promoted), "champion": champions[0]["run"] if champions else None}
    rounded = {name: round(found[name], 4) for name in ("accuracy", "before_accuracy") if name in found}
    facts = found | decision | rounded | {"seconds": round(record.seconds, 1)}
    brief = ("promoted", "run", "reason", "accuracy", "champion", "seconds")
    Summary("promote", str(champion_file(root)), is_promoted is None, facts, brief=brief).show(wanted.json)
