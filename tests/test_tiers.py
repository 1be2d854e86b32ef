"""The tiers of tests: a unit test starts no process, and loads TensorFlow only where that is what is tested."""

import ast
import asyncio
import multiprocessing
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lib import tiers
from tests.lib.commands import REPOSITORY

TRUE = ["/bin/true"]


# --- processes ---


def fork() -> None:
    if (number := os.fork()) == 0:
        os._exit(0)
    os.waitpid(number, 0)


def fork_with_terminal() -> None:
    number, terminal = pty.fork()
    if number == 0:
        os._exit(0)
    os.waitpid(number, 0)
    os.close(terminal)


def posix_spawn() -> None:
    os.waitpid(os.posix_spawn(TRUE[0], TRUE, {}), 0)


def posix_spawn_by_path() -> None:
    os.waitpid(os.posix_spawnp("true", TRUE, {}), 0)


def spawn_and_wait() -> None:
    os.spawnv(os.P_WAIT, TRUE[0], TRUE)


def await_process() -> None:
    async def wait() -> None:
        await (await asyncio.create_subprocess_exec(*TRUE)).wait()

    asyncio.run(wait())


def multiprocess(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=os.getpid)  # type: ignore[attr-defined]
    process.start()
    process.join()
    process.close()


STARTS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run(TRUE, check=True),
    "os.system": lambda: os.system("true"),
    "os.popen": lambda: os.popen("true").close(),
    "os.fork": fork,
    "pty.fork": fork_with_terminal,
    "os.posix_spawn": posix_spawn,
    "os.posix_spawnp": posix_spawn_by_path,
    "os.spawnv": spawn_and_wait,
    "asyncio": await_process,
    "multiprocessing by fork": lambda: multiprocess("fork"),
    "multiprocessing by spawn": lambda: multiprocess("spawn"),
}


def item_with(*markers: str) -> Any:
    """What `pytest_runtest_teardown` looks at of a test."""
    return SimpleNamespace(get_closest_marker=lambda name: name in markers)


@pytest.mark.integration
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    tiers.pytest_runtest_teardown(item_with())
    start()
    tiers.pytest_runtest_teardown(item_with("integration"))
    with pytest.raises(pytest.fail.Exception, match="a unit test started a process"):
        tiers.pytest_runtest_teardown(item_with())


# --- TensorFlow ---

HEAVY = ("tensorflow", "keras", "horovod.tensorflow")
# Tests of what is made of TensorFlow, or of what has to be as TensorFlow has it.
WITH_TENSORFLOW = (
    "tests.etl.formats.test_records",
    "tests.train.input",
    "tests.train.model",
    "tests.train.parallel",
    "tests.train.reader.test_reader",
    "tests.train.reader.test_state",
    "tests.train.runs.test_confusion",
    "tests.train.runs.test_metrics",
    "tests.train.serving",
    "tests.train.test_parts",
    "tests.train.test_read_bench",
    "tests.train.trainer",
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    name_of(path): path for top in ("etl", "mapreduce", "tests", "train") for path in (REPOSITORY / top).rglob("*.py")
}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported, but for the bodies of classes."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from statements(node.body)


@cache
def loaded_by(module: str) -> frozenset[str]:
    """What is imported when ``module`` is; its package, and the conftest.py beside it, too."""
    if module not in MODULES:
        return frozenset()
    found = set()
    for node in statements(ast.parse(MODULES[module].read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    folder = module.rpartition(".")[0]
    return frozenset(found | {folder, f"{folder}.conftest"} - {module})


def way_to_tensorflow(module: str) -> tuple[str, ...]:
    """By which imports ``module`` loads TensorFlow; empty if it does not."""
    waiting: list[tuple[str, ...]] = [(module,)]
    seen = {module}
    while waiting:
        way = waiting.pop(0)
        for other in sorted(loaded_by(way[-1]) - seen):
            seen.add(other)
            if other in HEAVY:
                return (*way, other)
            waiting.append((*way, other))
    return ()


def test_tensorflow_is_loaded_only_by_tests_of_what_is_made_of_it() -> None:
    names = [name for name in MODULES if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")]
    others = [name for name in names if not name.startswith(WITH_TENSORFLOW)]
    assert {name: way for name in others if (way := way_to_tensorflow(name))} == {}


def test_a_test_that_loads_tensorflow_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_wrong.py").write_text("from train.input import feed\n")
    monkeypatch.setitem(MODULES, "tests.etl.test_wrong", tmp_path / "test_wrong.py")
    assert way_to_tensorflow("tests.etl.test_wrong") == ("tests.etl.test_wrong", "train.input.feed", "tensorflow")
