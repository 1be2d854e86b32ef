"""The steps of n ranks are those of one process that is fed their batches, for every recipe; with negative controls."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.fed_by_all import fed_by_all
from tests.lib.ranks.outcomes import distance
from tests.lib.train_in_process import train_here

pytestmark = pytest.mark.integration

SEVERAL = "tests/lib/ranks/several_runs.py"
SMOOTH, NORMED = (("--model", f"tests.lib.ranks.tiny:{name}") for name in ("smooth", "smooth_normed"))
UPDATE = ("--clip-norm", 1, "--weight-decay", 0.01, "--label-smoothing", 0.1)

# The recipe of each case, what only the ranks have of it, and the largest distance after an epoch of 12 steps, by the
# precision of its gradients and the conditioning of batch norm. The last step has 29 examples of 128.
CASES: dict[str, tuple[Sequence[object], Sequence[object], float]] = {
    "plain": (SMOOTH, (), 1e-5),
    # at twice this rate it does not settle, and rounding errors grow a hundredfold
    "synchronised": ((*NORMED, "--lr", 0.05, "--batch-norm", "synchronised"), (), 1e-4),
    "accumulated": ((*SMOOTH, *UPDATE), ("--accumulate", 4, "--batch", 16), 1e-5),
    "lars": ((*SMOOTH, "--optimizer", "lars", "--lars-coefficient", 0.05), (), 1e-5),
    "compressed": (SMOOTH, ("--compression", "fp16"), 5e-3),
    "float16": ((*SMOOTH, "--precision", "float16"), (), 5e-3),
    "bfloat16": ((*SMOOTH, "--precision", "bfloat16"), (), 3e-2),
}
FLOAT32 = ("plain", "synchronised", "accumulated", "lars")
WITNESSES, IDENTITY = ("plain", "synchronised", "float16"), "identity"
WIDELY = 10.0  # times the limit: how much a negative control differs at least


@pytest.mark.parametrize(
    ("ranks", "cases", "controls"),
    [
        pytest.param(
            2,
            WITNESSES,
            (*((IDENTITY, case) for case in WITNESSES), ("local", "synchronised"), ("counted", "plain")),
            marks=pytest.mark.witness,
            id="witnesses",
        ),
        pytest.param(2, ("accumulated", "lars", "compressed", "bfloat16"), (), id="others"),
        pytest.param(4, ("plain", "synchronised"), ((IDENTITY, "plain"),), marks=pytest.mark.chaos, id="four ranks"),
    ],
)
def test_ranks_take_the_steps_of_one_fed_their_batches(
    ranks: int, cases: Sequence[str], controls: Sequence[tuple[str, str]], root: Path
) -> None:
    """And the negative controls of `tests.lib.ranks.several_runs` do not."""
    # TensorFlow goes by the processor, and aborts if oneDNN may not use the processor's bfloat16
    cases = [case for case in cases if case != "bfloat16" or "ONEDNN_MAX_CPU_ISA" not in os.environ]
    common = ("--data", root, "--epochs", 1, "--lr", 0.36, "--warmup-epochs", 0, "--decay", "none")
    for case in cases:
        with fed_by_all(ranks, keeps_filling=case == "synchronised"):
            succeeded(train_here(*common, *CASES[case][0], "--batch", 128, "--run", case))
    runs = [*(("ring", case) for case in cases), *controls]
    words = [[k, *common, "--batch", 128 // ranks, *CASES[c][0], *CASES[c][1], "--run", f"{c}-{k}"] for k, c in runs]
    succeeded(horovodrun(ranks, SEVERAL, json.dumps(words, default=str), timeout_s=600))
    for kind, case in runs:
        # beside the scale of float16's losses, nothing else would count
        found = distance(root, case, f"{case}-{kind}", "" if case in FLOAT32 else "kernel") / CASES[case][2]
        print(f"{case}-{kind}: {found:.2g} of its limit")
        assert found < 1 if kind == "ring" else found > WIDELY, f"{case}-{kind}"
