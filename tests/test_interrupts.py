"""Stages that are stopped in the middle, and run again: the same bytes as if nothing had happened."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hadoop.processes import Process
from tests.lib.commands import BIN, DIGITS_OPTIONS, contents, ringslice, succeeded, wait_until
from tests.lib.session import POLL_S, Session

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("end_sessions")]


@dataclass(frozen=True)
class Stage:
    """A stage's folder, its options, its marker, and the files that show it at work."""

    name: str
    folder: str
    options: tuple[str, ...]
    marker: str
    sign: str


STAGES = (
    Stage("ingest", "raw", ("--pack-size", "4KB"), "raw/dataset.json", "raw/packs/*.parquet"),
    Stage("normalize", "normalized", DIGITS_OPTIONS[:6], "normalized/dataset.json", "normalized/parts/*.parquet"),
    Stage(
        "shard", "slices", ("--slices", "64"), "slices/default/manifest.json", "slices/default/_work/slices/*.parquet"
    ),
)


class Running(Session):
    def __init__(self, stage: Stage, source: Path, root: Path, **variables: str) -> None:
        words = ["ingest", str(source)] if stage.name == "ingest" else [stage.name, "-r", "local"]
        log = root.parent / f"{stage.name}-{time.monotonic_ns()}.log"
        super().__init__(log, "ringslice", *words, root, *stage.options, **variables)

    def reaches(self, is_there: Callable[[], object]) -> bool:
        """Wait for a state; False if the stage was done before it was seen."""
        wait_until(lambda: is_there() or self.process.poll() is not None, None, self.timeout_s, POLL_S, self.errors)
        assert self.process.poll() in (None, 0), self.errors()
        return self.process.poll() is None

    def stop(self, number: signal.Signals, everyone: bool) -> None:
        """Send the signal, to all processes or to the first alone, and see every process of the session end."""
        (os.killpg if everyone else os.kill)(self.process.pid, number)
        self.wait()
        wait_until(lambda: not self.processes(), message=self.processes)

    def tasks(self) -> list[Process]:
        return self.processes("--mapper")


@pytest.fixture(scope="module")
def undisturbed(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed") / "root"
    for stage in STAGES:
        running = Running(stage, digits, root)
        assert running.wait() == 0, running.errors()
    return root


TRIES = 5  # a stage of few files may be done before its observer is given the processor again
CASES = [(stage, number, True) for stage in STAGES for number in (signal.SIGINT, signal.SIGKILL)]


@pytest.mark.parametrize(
    ("stage", "number", "everyone"),
    [*(pytest.param(*case, marks=pytest.mark.witness) for case in CASES), (STAGES[1], signal.SIGTERM, False)],
    ids=lambda each: getattr(each, "name", "all" if each else "first"),
)
def test_a_stopped_stage_goes_on(
    stage: Stage, number: signal.Signals, *, everyone: bool, digits: Path, undisturbed: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for earlier in STAGES[: STAGES.index(stage)]:
        shutil.copytree(undisturbed / earlier.folder, root / earlier.folder)
    for _ in range(TRIES):
        shutil.rmtree(root / stage.folder, ignore_errors=True)
        stopped = Running(stage, digits, root)
        if stopped.reaches(lambda: list(root.glob(stage.sign))):
            stopped.stop(number, everyone)
            if not (root / stage.marker).exists():
                break
    else:
        pytest.fail(f"{stage.name} was done before it was stopped, {TRIES} times")
    again = Running(stage, digits, root)
    assert again.wait() == 0, again.errors()
    assert contents(root / stage.folder, "run.json") == contents(undisturbed / stage.folder, "run.json")
    if number == signal.SIGKILL:
        assert stopped.process.returncode == -signal.SIGKILL
        if stage.name == "shard":
            succeeded(ringslice("verify", root, "--every-stage"))
    else:
        assert stopped.process.returncode == 130
        assert stopped.errors().count("ringslice: error: interrupted") == 1, stopped.errors()
        assert "Traceback" not in stopped.errors()


@pytest.fixture
def slow(digits: Path, tmp_path: Path) -> Iterator[Running]:
    """A stage whose tasks would work on for minutes; it publishes nothing."""
    succeeded(ringslice("ingest", digits, tmp_path / "root"))
    yield Running(Stage("normalize", "normalized", ("--size", "3000"), "", ""), digits, tmp_path / "root")
    assert not list(tmp_path.glob("root/normalized/parts/*"))


@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGTERM, "before the tasks"), (signal.SIGTERM, "in a task"), (signal.SIGKILL, "in a task")],
)
def test_long_tasks_end_with_it(number: signal.Signals, when: str, slow: Running, tmp_path: Path) -> None:
    attempts = "root/normalized/_work/*/attempt-*"
    slow.wait_until(when, slow.tasks if when == "in a task" else lambda: list(tmp_path.glob(attempts)))
    if number == signal.SIGKILL:  # a task that takes no other signal ends, too
        slow.wait_until("every task at work", lambda: len(list(tmp_path.glob(attempts))) >= len(slow.tasks()))
        slow.tasks()[0].send(signal.SIGSTOP)
    slow.stop(number, everyone=False)
    assert slow.process.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL)


def test_sort_ends_with_its_command(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed / "normalized", tmp_path / "root/normalized")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sort").write_text("#!/bin/sh\nexec sleep 1000\n")
    (programs / "sort").chmod(0o755)
    path = f"{BIN}{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}"
    running = Running(STAGES[2], Path(), tmp_path / "root", PATH=path)
    running.wait_until("sort", lambda: running.processes("sleep"))
    running.stop(signal.SIGKILL, everyone=False)


def test_a_task_that_dies_alone_is_reported(slow: Running) -> None:
    slow.wait_until("a task", slow.tasks)
    slow.tasks()[0].send(signal.SIGKILL)
    assert slow.wait() == 3
    assert "a task was ended by SIGKILL (out of memory?" in slow.errors().splitlines()[-1]
