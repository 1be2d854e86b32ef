"""What a page tells of a run's waits, and what people change about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from etl.report.run.charts import share_areas, share_bars
from etl.report.run.curves import Series
from etl.report.run.metrics import PARTS, Step
from etl.report.run.waits import RankWaits, share_curve, shares, slowest, stack_steps, waits_by_rank
from etl.report.text import milliseconds, percent

MOST_RANKS = 16  # with more, a page shows those with the most work of their own and those with the least
SHOWN_AT_EACH_END = 8
INPUT_BOUND, REDUCE_BOUND = 0.10, 0.25  # shares of the time from which on they are worth a change
LATE = 1.15  # times the median rank's own work


def gather_waits(steps: Sequence[Step], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the template needs to tell of waits; ``waits`` is empty where no step is known."""
    if not steps:
        return {"waits": [], "wait_charts": [], "advice": [], "hidden_ranks": 0, "overall": []}
    stacks = stack_steps(steps)
    waits, overall = waits_by_rank(stacks), shares(stacks)
    shown = _ends(waits)
    return {
        "waits": shown,
        "hidden_ranks": len(waits) - len(shown),
        "overall": list(zip(PARTS, overall.tolist(), strict=True)),
        "wait_charts": [*([share_areas(*share_curve(steps), overall)] if len(steps) > 1 else []), share_bars(shown)],
        "advice": _advise(waits, overall, recipe),
    }


def _ends(waits: Sequence[RankWaits]) -> list[RankWaits]:
    """All ranks in their order, or of very many the busiest and the idlest."""
    if len(waits) <= MOST_RANKS:
        return list(waits)
    ordered = sorted(waits, key=lambda each: (-each.own_median_s, each.rank))
    return ordered[:SHOWN_AT_EACH_END] + ordered[-SHOWN_AT_EACH_END:]


def _advise(waits: Sequence[RankWaits], overall: Series, recipe: Mapping[str, Any]) -> list[str]:
    """What stands out, what it means, and what people change then; one sentence or two each."""
    told = dict(zip(PARTS, overall.tolist(), strict=True))
    about_ranks, is_late = _compare_ranks(waits)
    found = []
    if told["input"] >= INPUT_BOUND:
        found.append(
            f"{percent(told['input'])} of the time goes to waiting for input: the reader is behind. Give it more slices"
            " at once (--slices-at-once), more memory (--reader-memory) or a local cache (--cache);"
            " ringslice read-bench tells what storage and decoding can do."
        )
    if told["all-reduce"] >= REDUCE_BOUND and len(waits) > 1:
        least = min(waits, key=lambda each: each.part("all-reduce").median_s)
        found.append(
            f"{percent(told['all-reduce'])} of the time goes to the all-reduce, which holds the waits for late ranks,"
            f" too: rank {least.rank}, which waits least, spends {milliseconds(least.part('all-reduce').median_s)} ms"
            f" a step in it. A larger {_batch(recipe)} makes it rarer, --compression fp16 halves what is sent."
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


def _compare_ranks(waits: Sequence[RankWaits]) -> tuple[list[str], bool]:
    """What is to be told of the slowest rank, and whether the others wait for it; of a rank alone nothing."""
    last = slowest(waits)
    own = sorted(each.own_median_s for each in waits if each is not last)
    if not own:
        return [], False
    usual = own[(len(own) - 1) // 2]
    line = (
        f"Rank {last.rank} has the most work of its own, {milliseconds(last.own_median_s)} ms a step (median) to"
        f" {milliseconds(usual)} ms on the others"
    )
    if last.own_median_s < LATE * usual:
        return [f"{line}: no rank holds up the others."], False
    parts = [part for part in last.parts if part.part != "all-reduce"]
    most = max(parts, key=lambda part: part.median_s)
    told = (
        f"{line}, and is the last in {percent(last.last_share)} of its steps: the others wait for it in the all-reduce."
        f" Most of it is {most.part}; look at what else runs on its host, at its disk or device, and at its log."
    )
    return [told], True
