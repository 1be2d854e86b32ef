"""A run whose storage fails for a while goes on, and loses nothing; one whose storage fails for too long ends."""

import resource
from pathlib import Path

import pytest

from etl.storage.place import open_place
from tests.lib.commands import Finished, failed, succeeded
from tests.lib.ranks.running import checkpoints_of, metric_lines
from tests.lib.train_in_process import train_here
from tests.train.conftest import TrainedRun
from train.runs.hooks import Hooks, Running
from train.runs.position import Position

pytestmark = pytest.mark.integration

FAILS = range(26, 37)  # the steps before which the kernel refuses every write to a file


class FailingStorage(Hooks):
    """The kernel refuses every write to a file in the steps `FAILS`."""

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def on_step(self, running: Running, position: Position) -> None:
        running.checkpoints.wait()
        self.limit(0 if position.step in FAILS else self.most)

    def limit(self, size_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, self.most))


def go_on(made: TrainedRun, *options: object) -> Finished:
    """Have the run, of which 25 steps are taken, take the other 15 on storage that fails in the middle of them."""
    storage = FailingStorage()
    try:
        words = (*made.training, "--epochs", 2, "--resume", "--checkpoint-steps", 4, "--keep", 9, *options)
        return train_here(*words, hooks=storage)
    finally:
        storage.limit(storage.most)


def test_it_goes_on_and_loses_nothing(stopped: TrainedRun, trained: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    outcome = succeeded(go_on(made, "--checkpoint-failures", 4)).stderr
    for step, number in ((28, 1), (32, 2), (36, 3)):
        assert f"checkpoint step-{step:08d} was not written (File too large" in outcome
        assert f"(failure {number} of --checkpoint-failures 4)" in outcome
    assert checkpoints_of(open_place(str(made.folder)))[-2:] == [25, 40]
    assert "lines of metrics were not written (File too large" in outcome
    steps = [line["step"] for line in metric_lines(made.folder) if line["kind"] == "step"]
    assert steps == list(range(1, 41))
    found, expected = ((each.folder / "checkpoints/step-00000040/model.safetensors") for each in (made, trained))
    assert found.read_bytes() == expected.read_bytes()


def test_it_ends_after_too_many_failures_in_a_row(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    failed(go_on(made, "--checkpoint-failures", 2), 3, "File too large: ")
    assert checkpoints_of(open_place(str(made.folder)))[-1] == 25
    assert not (made.folder / "result.json").exists()
