"""The champion: which of two models is promoted, also on slices of another night; and back again."""

import json
import pkgutil
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest, chi2

from etl.errors import EnvironmentFailure, UsageError
from etl.slices.manifest import Manifest
from etl.slices.prune import KeptRuns, prune, remove_runs
from etl.storage.place import open_place
from tests.lib.commands import failed, ringslice, succeeded
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.train_in_process import evaluate_here, export_here, predict_here, promote_here, train_here
from tests.train.conftest import MODEL, TrainedRun
from train.evaluation.comparison import EXACT_BELOW, Answers, Comparison, Rules, compare, decide, mcnemar
from train.evaluation.trained import find_trained
from train.runs.folder import find_dataset


def test_p_values_are_those_of_scipy() -> None:
    for pairs in range(60):
        for first in range(pairs + 1):
            second = pairs - first
            if pairs < EXACT_BELOW:
                expected = binomtest(first, pairs, 0.5).pvalue if pairs else 1.0
            else:
                expected = chi2.sf(max(0, abs(first - second) - 1) ** 2 / pairs, 1)
            assert mcnemar(first, second) == pytest.approx(expected, rel=1e-9), (first, second)


def comparison(first: int, second: int, drop: float = 0) -> Comparison:
    return Comparison(first, second, mcnemar(first, second), drop, "b")


def test_each_rule() -> None:
    for accuracy, found, candidates, reason in (
        (0.9, None, 1, "it is the first champion"),
        (0.9, comparison(12, 2), 1, "it is more accurate, p 0.0129: 12 examples against 2"),
        (0.79, None, 1, "accuracy 0.7900 is below --min-accuracy 0.8"),
        (0.9, comparison(12, 12), 1, "it is not more accurate: 12 examples against 12"),
        (0.9, comparison(2, 12), 1, "it is not more accurate"),
        (0.9, comparison(8, 2), 1, "p 0.109 is above --max-p 0.05: 8 examples"),
        (0.9, comparison(12, 2), 4, "p 0.0129 is above --max-p 0.05 / 4 candidates"),
        (0.9, comparison(12, 2, 0.11), 1, "class 'b' loses 0.1100, more than --max-class-drop 0.1"),
        (0.9, comparison(12, 2, 2 / 20), 1, "it is more accurate"),
    ):
        is_promoted, why = decide(Rules(min_accuracy=0.8), accuracy, found, candidates)
        assert why.startswith(reason)
        assert is_promoted == reason.startswith(("it is more", "it is the first"))


def test_the_class_that_loses_most_is_named() -> None:
    classes, labels = [*"abcde"], np.array([0] * 10 + [1] * 4 + [2] * 6)
    keys = np.array([b"%d" % number for number in range(20)], object)
    champion = np.where(np.arange(20) < 6, 3, labels)
    candidate = np.where(np.arange(20) == 12, 3, labels)
    found = compare(Answers(keys, labels, candidate), Answers(keys, labels, champion), classes)
    assert (found.only_candidate, found.only_champion) == (6, 1)
    assert (found.dropped_class, found.class_drop) == ("b", 0.25)
    same = Answers(keys, labels, candidate)
    assert (compare(same, same, classes).dropped_class, compare(same, same, classes).class_drop) == ("", 0)
    with pytest.raises(EnvironmentFailure, match="different examples"):
        compare(Answers(keys[::-1], labels, candidate), Answers(keys, labels, champion), classes)


NIGHT = ("--name", "night-2")
RECIPE = ("--model", MODEL, "--crop", 20, "--batch", 15, "--warmup-epochs", 0)


@pytest.fixture(scope="module")
def made(trained: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """The run ``mine``; ``weak``, which took 2 steps; and slices of a second night with brighter pictures, on which
    ``tonight`` was trained as ``mine`` was. Tests share it, and change nothing.
    """
    root = tmp_path_factory.mktemp("promote") / "root"
    made = trained.copy(root)
    succeeded(train_here("--data", root, "--run", "weak", *RECIPE, "--max-steps", 2))
    source = shutil.copytree(made.source, root.parent / "source")
    for number, path in enumerate(sorted(source.glob("*/*.png"))[:40]):
        brighter = np.asarray(Image.open(path)) // 2 + 120
        Image.fromarray(brighter).save(path.with_name(f"new-{number:03d}.png"))
    ingest_here(source, root)
    normalize_here(root, "--size", 24)
    splits = ("--split", "train=0.5,validation=0.1,test=0.4")
    shard_here(root, "--workers", 2, *splits, *NIGHT, "--splits-from", "newest")
    shard_here(root, "--workers", 2, *splits, "--seed", 5, "--name", "apart")
    succeeded(train_here("--data", root, *NIGHT, "--run", "tonight", *RECIPE, "--lr", 1, "--epochs", 2))
    return TrainedRun(source, root)


@pytest.fixture
def mine(made: TrainedRun, tmp_path: Path) -> TrainedRun:
    return made.copy(tmp_path / "root")


def promote(made: TrainedRun, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeeded(promote_here("--data", made.root, *words, "--json")).stdout)
    return found


def champion(made: TrainedRun) -> tuple[str, list[str]]:
    record = json.loads((made.root / "models/champion.json").read_text())
    return record["champion"]["run"], [each["run"] for each in record["history"]]


def test_the_better_one_of_two_is_the_champion_over_two_nights(mine: TrainedRun) -> None:
    first = promote(mine, "weak", "--name", "default")
    assert (first["promoted"], first["reason"]) == (True, "it is the first champion")
    found = promote(mine, "mine", "--name", "default")
    result = mine.read()["result"]
    assert (found["promoted"], found["champion"], found["before"]) == (True, "mine", "weak")
    assert (found["accuracy"], found["examples"]) == (round(result["test_accuracy"], 4), 240)
    gained = found["only_candidate"] - found["only_champion"]
    assert gained / 240 == pytest.approx(found["accuracy"] - found["before_accuracy"], abs=2e-4)
    assert found["p_value"] < 1e-6
    again = promote(mine, "mine", "--name", "default")
    assert (again["promoted"], again["already_done"], again["champion"]) == (False, True, "mine")
    assert promote(mine, "mine", "--name", "apart", "--split", "none") == {**again, "seconds": ANY}  # compares nothing

    kept = promote(mine, "weak", *NIGHT)  # of last night, as the champion is
    assert (kept["promoted"], kept["champion"]) == (False, "mine")
    assert kept["reason"].startswith("it is not more accurate")
    assert kept["examples"] > 240
    both = promote(mine, "weak", "tonight", *NIGHT, "--max-p", 0)
    assert (both["promoted"], both["run"], both["champion"]) == (False, "tonight", "mine")
    assert both["before_accuracy"] == kept["before_accuracy"]
    assert champion(mine) == ("mine", ["weak"])

    words = ("--data", mine.root, "weak", "--min-accuracy", 0.99, "--json", *NIGHT)
    outcome = promote_here(*words)
    failed(outcome, 1, "runs/weak: accuracy 0.")
    assert json.loads(outcome.stdout)["promoted"] is False

    removed = prune(open_place(str(mine.root)), 1, True, KeptRuns(1, "")).to_json()
    reasons = {"tonight": "among the newest", "mine": "the champion", "weak": "a champion before this one"}
    assert (removed["kept_runs"], removed["removed_runs"]) == (reasons, {})
    back = promote(mine, "--rollback")
    assert (back["champion"], champion(mine)) == ("weak", ("weak", []))
    failed(promote_here("--data", mine.root, "--rollback"), 2, "has no champion before this one")

    succeeded(
        train_here("--data", mine.root, "--name", "default", "--run", "weak", *RECIPE, "--max-steps", 30, "--resume")
    )
    newer = promote(mine, "weak", "--name", "default")  # than the checkpoint that is the champion
    assert (newer["before"], newer["run"]) == ("weak", "weak")
    assert newer["only_candidate"] + newer["only_champion"] > 0
    assert newer["accuracy"] > newer["before_accuracy"]


def test_other_commands_know_the_champion(mine: TrainedRun) -> None:
    words = ("--data", mine.root, "--run", "champion")
    failed(evaluate_here(*words), 2, "has no champion; make one with: ringslice promote")
    promote(mine, "mine", "--name", "default")
    succeeded(evaluate_here(*words, *NIGHT))
    found = mine.read("evaluation-test.json")
    assert found["slices"] == find_dataset(str(mine.root), "default").fingerprint
    assert found["evaluated_slices"] == find_dataset(str(mine.root), "night-2").fingerprint
    picture = next(mine.source.glob("3/*"))
    failed(predict_here("champion", picture, "--data", mine.root), 2, "export is not there; make it with")
    succeeded(export_here(*words))
    shown = succeeded(predict_here("champion", picture, "--data", mine.root)).stdout
    assert shown == succeeded(predict_here(mine.export, picture)).stdout
    failed(train_here("--data", mine.root, "--run", "champion"), 2, "is the name of the run that was promoted")
    for marker in mine.folder.glob("checkpoints/*/checkpoint.json"):
        marker.unlink()
    failed(promote_here("--data", mine.root, "weak"), 1, "checkpoint.json is missing; it was promoted")


def remove_after(function: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the run ``mine``, as prune does, when this function has been called."""
    called = pkgutil.resolve_name(function)

    def remove(*arguments: Any, **more: Any) -> Any:
        found = called(*arguments, **more)
        assert remove_runs(open_place(str(root)), ["mine"], KeptRuns(0, "")) == ["mine"]
        return found

    monkeypatch.setattr(function, remove)


def test_a_run_that_is_removed_meanwhile(mine: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not promoted, and the result of an evaluation does not make its folder again."""
    other, third = mine.copy(tmp_path / "other"), mine.copy(tmp_path / "third")
    remove_after("train.evaluation.promote.decide", mine.root, monkeypatch)
    outcome = promote_here("--data", mine.root, "mine", "--name", "default")
    failed(outcome, 3, "runs/mine: step-00000040 was removed or replaced meanwhile; run again")
    assert not (mine.root / "models").exists()
    remove_after("train.evaluation.evaluate.load_weights", other.root, monkeypatch)
    failed(evaluate_here(*other.words, "--name", "default"), 3, "runs/mine was removed while it was evaluated")
    assert not other.folder.exists()
    remove_after("train.serving.exporter.load_weights", third.root, monkeypatch)
    failed(export_here(*third.words, "--name", "default"), 3, "step-00000040 was removed or replaced meanwhile")
    assert not third.folder.exists()


def test_a_run_sees_other_slices_with_its_own_mean_and_deviation(made: TrainedRun) -> None:
    own, other = (find_dataset(str(made.root), name) for name in ("default", "night-2"))
    trained = find_trained(open_place(str(made.root)), "mine", "newest")
    run = trained.run_on(other, trained.settings(data=str(made.root)))
    ours, theirs = Manifest.from_json(own.manifest), Manifest.from_json(other.manifest)
    assert ours.mean != theirs.mean
    assert (run.manifest.mean, run.manifest.std, run.manifest.splits) == (ours.mean, ours.std, theirs.splits)
    with pytest.raises(UsageError, match="whose classes differ from those of"):
        trained.require_fit(replace(other, manifest=other.manifest | {"classes": ["0"]}))


def test_what_cannot_be_compared(mine: TrainedRun) -> None:
    words = ("--data", mine.root, "mine")
    failed(promote_here("--data", mine.root), 2, "give RUN: the runs to compare")
    failed(promote_here(*words, "--rollback"), 2, "give RUN: the runs to compare")
    failed(promote_here(*words[:2], "--rollback", "--split", "test"), 2, "--split has no meaning with --rollback")
    failed(promote_here(*words, "--max-p", 5), 2, "--max-p 5 is out of range")
    for seconds in ("nan", "inf", "-5", "1.4", "soon"):
        failed(promote_here(*words, "--stall-timeout", seconds), 2, "Invalid value for '--stall-timeout'")
    failed(promote_here(*words, "--name", "apart"), 2, "does not keep its splits (--splits-from)")
    failed(promote_here(*words, "--split", "none"), 2, "has only train, validation, test; give another --split")
    assert not (mine.root / "models").exists()
    promote(mine, "mine", "--name", "default")
    succeeded(train_here(*words[:2], "--name", "apart", "--run", "apart", *RECIPE, "--max-steps", 2))
    failed(promote_here(*words[:2], "apart", "--name", "apart"), 2, "split there; give --name default, or remove")


@pytest.mark.integration
def test_two_ranks_decide_as_one(mine: TrainedRun) -> None:
    promote(mine, "weak", "--name", "default")
    words = ("promote", mine.root, "--ranks", 2, "mine", "--name", "default", "--json")
    found = json.loads(succeeded(ringslice(*words)).stdout)
    assert (found["promoted"], found["examples"], champion(mine)) == (True, 240, ("mine", ["weak"]))
