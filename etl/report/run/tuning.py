"""What a page tells of a run's waits, and what people change about them."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from etl.report.run.charts import share_areas
from etl.report.run.metrics import OWN, PARTS, Step
from etl.report.run.waits import last_ranks, part_times, share_curve, shares
from etl.report.text import milliseconds, percent

MOST_RANKS = 16  # with more, a page shows those that came last most often
INPUT_BOUND, REDUCE_BOUND = 0.10, 0.25  # shares of the time from which on they are worth a change
LATE, LATE_SHARE = 1.15, 2 / 3  # times the others' own work; of the steps, in which it is the same rank that comes last


def gather_waits(steps: Sequence[Step], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the template needs to tell of waits; ``waits`` is empty where no step is known."""
    if not steps:
        return {"waits": [], "wait_charts": [], "advice": [], "last_ranks": [], "hidden_ranks": 0}
    last = last_ranks([step for step in steps if step.ranks > 1])
    return {
        "waits": part_times(steps),
        "last_ranks": last[:MOST_RANKS],
        "hidden_ranks": len(last[MOST_RANKS:]),
        "wait_charts": [share_areas(*share_curve(steps), shares(steps))] if len(steps) > 1 else [],
        "advice": _advise(steps, recipe),
    }


def _advise(steps: Sequence[Step], recipe: Mapping[str, Any]) -> list[str]:
    """What stands out, what it means, and what people change then; one sentence or two each."""
    told = dict(zip(PARTS, shares(steps).tolist(), strict=True))
    several = [step for step in steps if step.ranks > 1]
    about_ranks, is_late = _compare_ranks(several)
    found = []
    if told["input"] >= INPUT_BOUND:
        found.append(
            f"{percent(told['input'])} of the time goes to waiting for input: the reader is behind. Give it more slices"
            " at once (--slices-at-once), more memory (--reader-memory) or a local cache (--cache);"
            " ringslice read-bench tells what storage and decoding can do."
        )
    if told["all-reduce"] >= REDUCE_BOUND and several:
        least = median(max(0.0, float(step.mean_s.sum() - step.largest_s[OWN])) for step in several)
        found.append(
            f"{percent(told['all-reduce'])} of the time goes to the all-reduce, which holds the waits for late ranks,"
            f" too: the last rank, which waits least, spends {milliseconds(least)} ms a step in it. A larger"
            f" {_batch(recipe)} makes it rarer, --compression fp16 halves what is sent."
        )
    if not found and not is_late:
        found.append(
            f"Nothing stands out: computing takes {percent(told['compute'])} of the time. Faster steps need a faster"
            " device, a lower precision or a smaller model; more ranks share the same work."
        )
    return [*about_ranks, *found]


def _batch(recipe: Mapping[str, Any]) -> str:
    own = f"batch ({recipe['batch']} now)" if "batch" in recipe else "batch"
    return f"{own}, or more batches to a step (--accumulate)"


def _compare_ranks(steps: Sequence[Step]) -> tuple[list[str], bool]:
    """What is to be told of the rank that comes last, and whether the others wait for it; of a rank alone nothing."""
    if not steps:
        return [], False
    last = last_ranks(steps)[0]
    line = (
        f"Rank {last.rank} is the last in {percent(last.share)} of the steps, more often than any other, with"
        f" {milliseconds(last.own_median_s)} ms of work of its own then (median) to"
        f" {milliseconds(last.others_median_s)} ms on the others"
    )
    if last.share < LATE_SHARE or last.own_median_s < LATE * last.others_median_s:
        return [f"{line}: no rank holds up the others."], False
    told = (
        f"{line}: the others wait for it in the all-reduce. It is behind in {last.part}; look at what else runs on its"
        " host, at its disk or device, and at its log."
    )
    return [told], True
