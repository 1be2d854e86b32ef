"""What all ranks check of a run: that they agree, that its losses are finite; its confusions, position and schedule."""

import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from etl.errors import DataError, EnvironmentFailure, RingsliceError, UsageError
from etl.stages.layout import SLICES_FORMAT
from etl.storage.place import Place, json_bytes, open_place, with_checksum
from tests.lib.commands import contents, failed, flip_bit, succeeded
from tests.lib.ranks.running import metric_lines
from tests.lib.ranks.strategies import SingleRank
from tests.lib.ranks.threads import ThreadRank, on_ranks
from tests.lib.train_in_process import train_here
from tests.train.conftest import MODEL, TrainedRun
from train.checkpoints import store
from train.config.recipe import Recipe
from train.config.schedule import Schedule
from train.config.settings import AUTO, Settings
from train.config.stopping import Stopping
from train.monitor.monitor import Monitor
from train.parallel.devices import Device
from train.parallel.trainer import Trainer
from train.reader.state import ReaderState
from train.runs import confusion
from train.runs.checkpointer import load_weights
from train.runs.confusion import Confusion
from train.runs.consistency import disagreement, require_agreement, require_equal_weights
from train.runs.data import Data
from train.runs.divergence import MAX_SKIPPED_STEPS, SkipCheck, check_losses
from train.runs.folder import Dataset, choose_run, find_dataset
from train.runs.learning_rate import schedule_notes
from train.runs.position import Metrics, Position
from train.runs.results import Result, summary_of
from train.runs.run import Choice, Run, open_run, require_possible

FACTS: dict[str, Any] = {
    "host": "one",
    "versions": {"keras": "3.1"},
    "settings": {"--epochs": 5},
    "slices": "ab",
    "has_nccl": True,
    "device": asdict(Device(cores=1)),
}


@pytest.mark.parametrize(
    ("other", "kind", "line"),
    [
        ({"slices": "cd"}, UsageError, " sees other slices (cd) at /slices, rank 0 those of ab;"),
        ({"slices": None}, UsageError, " sees no finished slices at "),
        ({"settings": {"--epochs": 6}}, UsageError, " was started with --epochs 6, rank 0 with 5;"),
        ({"versions": {"keras": "0.1"}}, EnvironmentFailure, " has keras 0.1, rank 0 has 3.1;"),
        ({"device": asdict(Device(lacks="there is no GPU"))}, EnvironmentFailure, ": there is no GPU"),
    ],
)
def test_what_differs_from_rank_0_is_named(other: dict[str, Any], kind: type[RingsliceError], line: str) -> None:
    dataset = cast(Dataset, SimpleNamespace(fingerprint="ab", folder="/slices"))
    assert disagreement([FACTS, FACTS], 1, dataset) is None
    error = disagreement([FACTS, FACTS | other], 1, dataset)
    assert type(error) is kind
    assert str(error).startswith(f"rank 1 on one{line}")


def trainer(*values: bytes, first: int | None = None) -> Trainer:
    """One whose variables have these bytes; of a part of the model that begins at variable ``first``, if given."""
    digests = [(f"v{number}", hashlib.sha256(value).hexdigest()) for number, value in enumerate(values, first or 0)]
    return cast(Trainer, SimpleNamespace(digests=lambda: digests, is_divided=first is not None))


def test_weights_that_differ_are_reported_by_rank_and_name() -> None:
    def compare(*trainers: Trainer) -> None:
        on_ranks(len(trainers), lambda rank: require_equal_weights(trainers[rank.rank], rank))

    line = r"the weights of ranks \[{}\] are not those of rank 0, v1 first"
    same, part = trainer(b"1", b"1", b"1"), trainer(b"1", b"2", first=1)
    compare(same, same, same)
    with pytest.raises(EnvironmentFailure, match=line.format(2)):
        compare(same, same, trainer(b"1", b"2", b"1"))
    compare(part, trainer(b"1", b"1", first=0))  # each has a part of the model; v1 is of both
    with pytest.raises(EnvironmentFailure, match=line.format(1)):
        compare(part, trainer(b"1", b"3", first=0))


def test_a_run_ends_after_a_loss_that_is_not_finite_or_many_steps_in_a_row_that_were_not_taken() -> None:
    assert check_losses([1, 2], [0.5, 1e30]) == ""
    assert check_losses([3, 4, 5], [0.5, math.inf, math.nan]) == "the loss is inf by step 4"
    check = SkipCheck()
    for step in range(2 * MAX_SKIPPED_STEPS):  # one that is taken begins the row anew
        assert check.add(step, is_skipped=step % MAX_SKIPPED_STEPS != 0) == ""
    found = check.add(2 * MAX_SKIPPED_STEPS, is_skipped=True)
    assert found.startswith("the gradients of the last 50 steps, up to step 100, are not finite")


def test_counts_are_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confusion, "CELLS_AT_ONCE", 20)  # of 49
    generator = np.random.default_rng(1)
    labels, predicted, weights = (generator.integers(0, most, (3, 40)) for most in (7, 7, 2))

    def of_rank(strategy: ThreadRank) -> bytes:
        made, rank = Confusion("test", [f"class {label}" for label in range(7)]), strategy.rank
        for batch in range(0, 40, 8):
            own = slice(batch, batch + 8)
            made.add(labels[rank, own], predicted[rank, own], weights[rank, own].astype(np.float32))
        made.sum_over_ranks(strategy.all_reduce)
        return json_bytes(made.to_json())

    expected = np.zeros((7, 7), int)
    np.add.at(expected, (labels, predicted), weights)
    for result in on_ranks(3, of_rank):
        assert result.count(b"\n") == 7 + 7  # a row on each line
        assert json.loads(result)["counts"] == expected.tolist()


TOTAL, RANKS, BATCH = 1_437, 2, 32
WHOLE = 23  # steps of an epoch
EPOCH_BEGIN = ReaderState("these", "train", 0, 1, 16, ((0, TOTAL),), RANKS, 1, BATCH)
TAKEN = EPOCH_BEGIN.after(7)
BY_OTHERS = TAKEN.shared(3, 1, BATCH).after(2)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("state", [EPOCH_BEGIN, TAKEN, BY_OTHERS])
def test_epochs_after_some_steps(state: ReaderState, drop_last: bool) -> None:
    state = replace(state, drop_last=drop_last)
    position = Position(100, state)
    left = state.steps.number - state.taken
    result = [position.epochs_after(steps, TOTAL, WHOLE) for steps in range(left + 2 * WHOLE + 1)]
    assert result[0] == pytest.approx(position.epochs_done(TOTAL))
    assert result == sorted(result)
    assert (result[left], result[left + WHOLE], result[left + 2 * WHOLE]) == (1, 2, 3)
    later = Position(100, replace(state, epoch=4))
    assert later.epochs_after(left, TOTAL, WHOLE) == 4
    assert later.epochs_after(1, TOTAL, WHOLE) == pytest.approx(3 + result[1])


def finish_slices(folder: Path, finished: str, **facts: object) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(with_checksum({"format": SLICES_FORMAT, **facts})))
    (folder / "run.json").write_text(json.dumps({"finished": finished}))


def test_ranks_that_differ_raise_on_every_rank_and_rank_0_reports_it(tmp_path: Path) -> None:
    """Each sees its own slices at the place that rank 0 has chosen."""
    for rank in "01":
        finish_slices(tmp_path / rank / "slices/mine", "2026-01-02", rank=rank)
    chosen = find_dataset(str(tmp_path / "0"), None)

    def agree(rank: ThreadRank) -> bool:
        dataset = replace(chosen, root=str(tmp_path / str(rank.rank)))
        with pytest.raises(UsageError, match=r"rank 1 on .* sees other slices") as raised:
            require_agreement(Settings("d"), dataset, rank, {name: FACTS[name] for name in ("has_nccl", "device")})
        return raised.value.is_reported

    assert on_ranks(2, agree) == [False, True]


def test_the_newest_finished_slices_are_found(tmp_path: Path) -> None:
    finish_slices(tmp_path / "a/slices/default", "2026-01-02")
    finish_slices(tmp_path / "b/slices/default", "2026-01-03")
    finish_slices(tmp_path / "b/slices/old", "2026-01-01")
    (tmp_path / "c" / "slices" / "unfinished").mkdir(parents=True)
    found = find_dataset(str(tmp_path), None)
    assert (found.root, found.name) == (str(tmp_path / "b"), "default")
    assert find_dataset(str(tmp_path / "a"), None).root == str(tmp_path / "a")
    assert find_dataset(str(tmp_path), "old").name == "old"
    with pytest.raises(UsageError, match="no slices called 'none'"):
        find_dataset(str(tmp_path), "none")
    with pytest.raises(UsageError, match="no finished slices under"):
        find_dataset(str(tmp_path / "c"), None)


def test_runs_are_numbered_or_named(tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    assert choose_run(root, None, resume=AUTO).name == "run-0001"
    (tmp_path / "runs/run-0000/checkpoints").mkdir(parents=True)
    assert choose_run(root, None, resume=AUTO).name == "run-0000"
    assert choose_run(root, None, resume=None).name == "run-0001"
    for name in ("run-0001/checkpoints", "run-0009/audit", "run-0010/_work", "mine/checkpoints", "killed-early/_work"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert choose_run(root, None, resume=None).name == "run-0011"
    assert choose_run(root, None, resume=AUTO).name == "run-0009"
    assert choose_run(root, "killed-early", resume=None).name == "killed-early"
    assert choose_run(root, "mine", resume=AUTO).name == "mine"
    with pytest.raises(UsageError, match="already exists; give --resume"):
        choose_run(root, "mine", resume=None)
    for name in ("../x", "-m"):
        with pytest.raises(UsageError, match=rf"--run '{name}' is not a plain folder name"):
            choose_run(root, name, resume=AUTO)
        with pytest.raises(UsageError, match=rf"--to '{name}' is not a plain folder name"):
            choose_run(root, name, AUTO, "--to")


def test_a_checkpoint_that_a_trainer_removes_meanwhile_is_not_damaged(place: Place, staging: Place) -> None:
    """As --keep does between the choice of a checkpoint and its loading."""
    run = cast(Run, SimpleNamespace(folder=place, settings=Settings("d")))
    loaded: list[Any] = []
    trainer = cast(Trainer, SimpleNamespace(load_state=lambda state, source: loaded.append(state)))
    for step in (10, 20):
        store.write(place, staging, step, {"model": {"v": np.array(step)}}, {"score": 0.5, "framework": "tensorflow"})
    old = store.open_checkpoint(place, 10).marker
    store.amend(place, staging, 10, {"score": 0.6, "framework": "tensorflow"})
    load_weights(run, trainer, old, Monitor())
    assert loaded == [{"model": {"v": 10}}]
    store.prune(place, staging, 1)  # the best stays
    flip_bit(Path(place.path) / "checkpoints/step-00000010/model.safetensors", -1)
    with pytest.raises(DataError, match=r"is damaged: .*; give another --checkpoint"):
        load_weights(run, trainer, old, Monitor())
    store.write(place, staging, 10, {"model": {"v": np.array(11)}}, {"framework": "tensorflow"})
    with pytest.raises(EnvironmentFailure, match="step-00000010 was removed or replaced meanwhile; run again"):
        load_weights(run, trainer, old, Monitor())
    store.prune(place, staging, 1)
    with pytest.raises(EnvironmentFailure, match="step-00000010 was removed or replaced meanwhile; run again"):
        load_weights(run, trainer, old, Monitor())
    assert len(loaded) == 1


def test_the_best_is_found_though_a_trainer_removes_it_meanwhile(
    place: Place, staging: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(place, staging, 10, {"model": {}}, {"score": 0.5})

    def remove_and_choose(scores: Any, choose: Any = store._best) -> Any:
        store.remove(place, staging, 10)
        return choose(scores)

    monkeypatch.setattr(store, "_best", remove_and_choose)
    best = store.best(place)
    assert best is not None
    with pytest.raises(EnvironmentFailure, match="run again"):
        best.require_unchanged()


SCORE = "validation_accuracy"


@pytest.mark.parametrize(("epoch", "score"), [(1, 0.75), (2, 0.5), (3, 0.5)])
def test_a_summary_has_the_metrics_of_one_set_of_weights(epoch: int, score: float) -> None:
    """Of the best epoch, of the last, and of the last before the end of the next."""
    run = cast(Run, SimpleNamespace(folder="runs/a", seconds=1.0, settings=Settings("d")))
    data = cast(Data, SimpleNamespace(ranks=1, replicas=1, global_batch=8, score_split="validation"))
    history: tuple[Metrics, ...] = ({"epoch": 1, SCORE: 0.75}, {"epoch": 2, SCORE: 0.5})
    result = Result("", {"test_accuracy": 0.7}, {"epoch": epoch, "step": 9}, Confusion("test", ["a"]))
    summary = summary_of(run, data, replace(Position(9, EPOCH_BEGIN), history=history), result, was_over=False)
    assert (summary.facts[SCORE], summary.facts["test_accuracy"]) == (score, 0.7)


# --- the schedule of a run: kept by its checkpoints, changed only by --decay-until ---


def notes(epochs: int, max_steps: int | None = None, max_time_s: float | None = None, **recipe: Any) -> list[str]:
    """Of a run of 10 steps per epoch."""
    stopping = Stopping(epochs, max_steps=max_steps, max_time_s=max_time_s)
    settings = Settings("d", Recipe(**recipe).resolved(epochs), stopping)
    return list(schedule_notes(settings, 256, math.inf if max_steps is None else max_steps / 10))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"decay": "step", "max_steps": 100}, None),
        ({"warmup_epochs": 5}, None),
        ({"max_steps": 32}, "ends the run at epoch 3.2 of 10, at a learning rate of 0.86 of its peak"),
        ({"decay_until": 3, "warmup_epochs": 5}, "--warmup-epochs 5 is not below the end of the decay at epoch 3: the"),
        ({"decay_until": 8}, "the learning rate is 0 from epoch 8 to the end of the run at epoch 10"),
        ({"max_time_s": 90}, "--max-time 90 s may end the run before epoch 10, until which the learning rate decays;"),
        ({"warmup_epochs": 10, "decay": "none"}, "--warmup-epochs 10: --epochs 10 ends the run at epoch 10"),
    ],
)
def test_a_schedule_that_is_not_followed_to_its_end_is_reported(options: dict[str, Any], line: str | None) -> None:
    found = notes(10, **options)
    assert found == [] if line is None else line in found[0]


@pytest.mark.integration
def test_a_ring_keeps_the_batch_of_the_first_one(stopped: TrainedRun) -> None:
    """300 examples: a batch of 8 on 1 rank, of 4 on 8 ranks."""
    settings = Settings(str(stopped.root), Recipe(model=MODEL, crop=20), run="new")
    earlier = Run.of(settings, Choice(find_dataset(settings.data, None), str(stopped.root / "runs/new"), replicas=8))
    for each, batch in ((None, 8), (earlier, 4)):
        strategy = SingleRank(earlier=each)
        assert open_run(settings, strategy, print).settings.recipe.batch == batch
    with pytest.raises(UsageError, match="301 ranks for 300 training examples; start fewer ranks or replicas"):
        require_possible(open_run(settings, SingleRank(), print), ranks=301)


@pytest.mark.integration
def test_a_refused_resume_writes_nothing_and_an_allowed_one_is_kept(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    before = contents(made.folder)
    refused = train_here(*made.training, "--epochs", 3, "--resume")
    failed(refused, 2, "give --decay-until 3, which lifts it from 0.31 to 0.63")
    assert contents(made.folder) == before
    more = ("--epochs", 3, "--resume", "--max-steps")
    result = succeeded(train_here(*made.training, *more, 26, "--decay-until", 3)).stderr
    assert "decays until epoch 3 instead of 2, and goes on at 0.63 of its peak instead of 0.31\n" in result
    assert "--max-steps 26 ends the run at epoch 1.3 of 3, at a learning rate of 0.6 of its peak" in result
    assert "without a validation split" not in result
    assert "decays until" not in succeeded(train_here(*made.training, *more, 27)).stderr
    rates = {line["step"]: line["rate"] for line in metric_lines(made.folder) if line["kind"] == "step"}
    ends = {25: 2, 26: 3, 27: 3}  # where the decay ended for these steps, of 20 in an epoch
    assert {step: rates[step] for step in ends} == pytest.approx(
        {step: Schedule(1, 0, end).rate((step - 1) / 20, 15) for step, end in ends.items()}
    )
