"""The step of n ranks is the step of one process that is fed their batches, for every recipe; with negative controls.

The ranks begin each step from the state that the one process had. So what is compared is what one step computes, and
the limits follow from the rounding of the recipe's dtype alone, on any processor.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.outcomes import Result, results_of

pytestmark = pytest.mark.integration

SCRIPT = "tests/lib/ranks/same_steps.py"
EXAMPLES = 1437

# relative rounding error of one operation
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# of a sum of 128 examples, whose errors are independent; four times, as the sum is smaller than its terms
SUM = 4 * math.sqrt(128)
PRODUCTS = 8  # of a product of matrices, which is summed in float32 and then rounded, of two ranks and of one process
BATCH_NORM = 2.0**14  # of gradients that pass batch norm, which are small differences of large sums
DTYPES = {
    "plain": "float32",
    "synchronised": "float32",
    "accumulated": "float32",
    "lars": "float32",
    "compressed": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
}
# Scenarios of one start of the ranks. A negative control leaves out the all-reduce (identity), that of batch norm's
# statistics (local), or the weights of examples that fill up a batch (counted).
WITNESSES = (
    *("plain-ring", "synchronised-ring", "float16-ring"),
    *("plain-identity", "synchronised-local", "plain-counted"),
)
OTHERS = sorted({f"{case}-{kind}" for case in DTYPES for kind in ("ring", "identity")} - {*WITNESSES})
EXACT = ("plain-ring", "synchronised-ring", "accumulated-ring")
WIDELY = 10.0  # times the limit: how much a negative control differs at least


def limits(case: str) -> dict[str, float]:
    """The largest difference of a step, relative to its change: of a kernel, and of any other variable."""
    rounding = ROUNDING[DTYPES[case]]
    if case == "synchronised":
        return dict.fromkeys(("kernels", "others"), BATCH_NORM * rounding)
    return {"kernels": PRODUCTS * rounding + SUM * ROUNDING["float32"], "others": SUM * rounding}


def excess(scenario: str, result: Result) -> float:
    """The difference in parts of its limit, the larger one of both kinds."""
    own = limits(scenario.partition("-")[0])
    for kind, limit in own.items():
        difference, of = result[kind]
        print(f"{scenario}: {kind} differ by {difference:.1e}, limit {limit:.1e} ({of})")
    return max(float(result[kind][0]) / limit for kind, limit in own.items())


def can_run(case: str) -> bool:
    """TensorFlow goes by the processor, and aborts if oneDNN may not use the processor's bfloat16."""
    return case != "bfloat16" or "ONEDNN_MAX_CPU_ISA" not in os.environ


@pytest.mark.parametrize(
    ("ranks", "scenarios"),
    [
        pytest.param(2, WITNESSES, marks=pytest.mark.witness, id="witnesses"),
        pytest.param(2, OTHERS, id="others"),
        pytest.param(4, EXACT, marks=pytest.mark.chaos, id="four ranks"),
    ],
)
def test_two_ranks_take_the_steps_of_one_fed_their_batches(ranks: int, scenarios: Sequence[str], root: Path) -> None:
    """And a negative control does not."""
    possible = [each for each in scenarios if can_run(each.partition("-")[0])]
    found = results_of(succeeded(horovodrun(ranks, SCRIPT, root, *possible, timeout_s=600)))
    assert list(found) == possible
    for scenario, results in found.items():
        assert len(results) == ranks
        for each in results:
            require(scenario, each)


def require(scenario: str, result: Result) -> None:
    kind = scenario.partition("-")[2]
    difference = excess(scenario, result)
    if kind == "ring":
        assert result["same"], f"{scenario}: the ranks differ"
        assert result["examples"] == EXAMPLES, scenario
        assert difference < 1, scenario
    else:
        assert result["same"] == (kind == "counted"), scenario
        assert difference > WIDELY, scenario
