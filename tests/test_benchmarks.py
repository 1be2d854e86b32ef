"""The benchmarks run, name what is missing in one line, and fill the table of `make bench`; speed is not tested."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from tests.lib.commands import REPOSITORY, run, succeeded

BENCHMARKS = REPOSITORY / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script or a module of the benchmarks into this process, until the test ends."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_has_an_example(name: str, load: Callable[[str], ModuleType]) -> None:
    command = load(name).main
    assert isinstance(command, click.Command)
    shown = CliRunner().invoke(command, ["--help"]).output
    assert f"    python benchmarks/{name}.py" in shown
    assert "--json" in shown
    assert name == "all" or "--short" in shown


def test_make_bench_runs_every_script(load: Callable[[str], ModuleType]) -> None:
    assert sorted([*load("all").NAMES, "all"]) == SCRIPTS


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("reader", "--workload small --fashion /proc/none", "--fashion: /proc/none (it has no train-images-idx3"),
        ("normalize", "--peer-python /proc/none", "peer: img2dataset (its environment is missing). Install it: make"),
        ("torch_input", "--peer-python /proc/none", "peer: torch-peers (its environment is missing). Install it: make"),
        ("task_memory", "/proc/none", "SOURCE: /proc/none (it has no *-ubyte files). Give a folder"),
        ("gpu", "--framework torch --device cpu", "framework: torch (not installed here). Install it: make"),
        ("trainer", "--part ddp --torch /proc/none", "--torch: /proc/none (no bin/python there). Make it: make torch"),
        ("trainer", "--part loop --data /proc/none", "--data: /proc/none (no finished slices under /proc/none)."),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    name: str, words: str, line: str, load: Callable[[str], ModuleType]
) -> None:
    finished = CliRunner().invoke(load(name).main, words.split())
    assert finished.exit_code == 3, finished
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    assert finished.stderr.startswith(f"benchmarks/{name}.py: {line}"), finished.stderr


@pytest.mark.integration
def test_the_short_form_leaves_out_what_is_not_installed(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ways = ("--way", "ringslice", "--way", "opencv", "--way", "img2dataset")
    words = ("--short", "--usual", 2, "--large", 0, "--repeats", 1, *ways, "--peer-python", "/proc/none")
    finished = succeeded(run("python", BENCHMARKS / "normalize.py", *words, "--json", report))
    line = "peer: img2dataset (its environment is missing). Install it: make img2dataset."
    assert f"left out: {line}" in finished.stdout
    content = json.loads(report.read_text())
    assert content["left_out"] == [line]
    assert [(each["claim"], each["peer"]) for each in content["results"]] == [("normalize, usual", "opencv")]
    assert all(each["ratio"] == each["ours"] / each["theirs"] for each in content["results"])


def test_ratios_are_taken_round_by_round(load: Callable[[str], ModuleType]) -> None:
    results = load("lib.results")
    result = results.compare("claim", "s", [1.0, 10.0, 2.0], "peer", [2.0, 20.0, 8.0])
    assert (result.ours, result.theirs, result.ratio) == (2.0, 8.0, 0.5)
    assert "ratio 0.500" in str(result)
    too_short = results.compare("claim", "s", [1.0, 1.0], "peer", [0.0, 1.0])
    assert too_short.ratio is None
    assert "ratio" not in str(too_short)
