"""The step of n ranks is the step of one process that is fed their batches, for every recipe; with negative controls.

The ranks begin each step from the state that the one process had. So what is compared is what one step computes, and
the limits follow from the rounding of the recipe's dtype alone, on any processor.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.results import Result, results_of

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
CASES = list(DTYPES)
EXACT = ("plain", "synchronised", "accumulated")
CONTROLS = [*(f"{case}-identity" for case in CASES), "synchronised-local", "plain-counted"]
# Run by `make test`; the others by `make test-all`. Each group is one start of two ranks.
WITNESSES = (
    *("plain-ring", "synchronised-ring", "float16-ring"),
    *("plain-identity", "synchronised-local", "plain-counted"),
)
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


def compare(root: Path, ranks: int, scenarios: Sequence[str]) -> dict[str, list[Result]]:
    shutil.rmtree(root / "runs", ignore_errors=True)  # of another group
    found = results_of(succeeded(horovodrun(ranks, SCRIPT, root, *scenarios, timeout_s=600)))
    assert list(found) == list(scenarios)
    assert all(len(each) == ranks for each in found.values())
    return found


def can_run(case: str) -> bool:
    """TensorFlow goes by the processor, and aborts if oneDNN may not use the processor's bfloat16."""
    return case != "bfloat16" or "ONEDNN_MAX_CPU_ISA" not in os.environ


@pytest.fixture(scope="module")
def root(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("equivalence") / "digits"
    shutil.copytree(digits_root / "slices", root / "slices")
    return root


Results = Callable[[str], list[Result]]


@pytest.fixture(scope="module")
def results(root: Path) -> Results:
    """What two ranks print of a scenario, which run with all of their group at its first call."""
    others = tuple({*(f"{case}-ring" for case in CASES), *CONTROLS} - {*WITNESSES})

    @cache
    def run(group: tuple[str, ...]) -> dict[str, list[Result]]:
        return compare(root, 2, [each for each in sorted(group) if can_run(each.partition("-")[0])])

    def result_of(scenario: str) -> list[Result]:
        if not can_run(scenario.partition("-")[0]):
            pytest.skip("ONEDNN_MAX_CPU_ISA is set")
        return run(WITNESSES if scenario in WITNESSES else others)[scenario]

    return result_of


def scenarios(names: Iterable[str]) -> list[Any]:
    return [pytest.param(each, marks=[pytest.mark.witness] if each in WITNESSES else []) for each in names]


def require_equal_steps(case: str, result: Sequence[Result]) -> None:
    for each in result:
        assert each["same"], "the ranks differ"
        assert each["examples"] == EXAMPLES
        assert excess(f"{case}-ring", each) < 1


@pytest.mark.parametrize("scenario", scenarios(f"{case}-ring" for case in CASES))
def test_two_ranks_take_the_steps_of_one_fed_their_batches(scenario: str, results: Results) -> None:
    require_equal_steps(scenario.removesuffix("-ring"), results(scenario))


@pytest.mark.parametrize("control", scenarios(CONTROLS))
def test_a_control_that_leaves_something_out_does_not(control: str, results: Results) -> None:
    """The all-reduce, that of batch norm's statistics, or the weights of examples that fill up a batch."""
    for each in results(control):
        assert each["same"] == control.endswith("counted")
        assert excess(control, each) > WIDELY


@pytest.mark.chaos
def test_four_ranks_too(root: Path) -> None:
    for scenario, result in compare(root, 4, [f"{case}-ring" for case in EXACT]).items():
        require_equal_steps(scenario.partition("-")[0], result)
