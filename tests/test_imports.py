"""Who may import whom, how large modules and packages may be, and what they may be called; read from the source."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.lib.commands import REPOSITORY, run, succeeded

# The packages in the order of their imports: each may import its own modules and those of the levels above it.
LEVELS = (
    ("etl", "etl.errors", "etl.values", "etl.progress", "etl.threads", "etl.processes"),
    ("etl.hadoop", "etl.partition", "etl.images"),
    ("etl.storage",),
    ("etl.options", "etl.formats", "etl.stages", "etl.sources", "etl.doctor"),
    ("etl.raw",),
    ("etl.normalized",),
    ("etl.slices",),
    ("etl.verify", "etl.report", "etl.inspection", "etl.erase"),
    ("etl.cli",),
    ("mapreduce", "mapreduce.jobs"),
    ("mapreduce.shuffle",),
    ("mapreduce.normalize", "mapreduce.shard", "mapreduce.verify"),
    ("train", "train.toolchain", "train.monitor"),
    ("train.checkpoints",),
    ("train.reader",),
    ("train.input", "train.config", "train.runs"),
    ("train.model", "train.parallel"),
    ("train.trainer",),
    ("train.loop", "train.serving"),
    ("train.main", "train.evaluate", "train.export", "train.predict", "train.read_bench"),
)
LEVEL_OF = {package: level for level, packages in enumerate(LEVELS) for package in packages}
# Modules of one level that stand on each other: the leaves first.
IMPORTERS = {"import_module", "__import__"}  # functions that import what their argument names
ANY = "<any>"  # said of a module whose name is known only at run time
BY_NAME = {"train.model.builders": {ANY}}  # the user's own models
# Modules that name one of a higher package in a text, for a child process: the only ways against the order.
STARTED_BY_NAME = {
    "etl.cli": "a person's command starts the job, or the reader's benchmark, that does the work",
    "etl.doctor.training_checks": "asks the trainer whether its native op can be loaded, which may crash",
    "etl.doctor.yarn_checks": "imports the jobs with the cluster's Python, and has its archive checked",
    "mapreduce.jobs.python_archive": "imports the jobs with the packed Python, to prove that tasks can start",
}
LEAVES = {"etl", "etl.errors", "etl.processes", "etl.values", "mapreduce", "train", "train.main"}

CORE = {"click", "crc32c", "cv2", "google", "hdfs_native", "numpy", "PIL", "pyarrow", "rich", "simplejpeg"}
THIRD_PARTY = {
    "etl": CORE,
    "mapreduce": {"mrjob", "numpy", "packaging"},
    "train": {"click", "crc32c", "horovod", "keras", "numpy", "pyarrow", "safetensors", "tensorflow"},
}
# of the extra "report": imported only while a report is made
DRAWING = {
    "etl.report.render": {"jinja2"},
    "etl.report.drawing": {"matplotlib"},
    "etl.report.dataset.charts": {"matplotlib"},
    "etl.report.run.charts": {"matplotlib"},
}
HEAVY = {"tensorflow", "keras", "horovod"}
WITHOUT_TENSORFLOW = ("train.reader", "train.monitor", "train.config", "train.checkpoints", "train.toolchain")
STARTERS = ("train.main", "train.evaluate", "train.export", "train.predict", "train.read_bench")
TENSORFLOW_AT_ITS_EDGE = {"train.checkpoints.variables"}  # takes its arrays from, and puts them into, a model

MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_MODULES = 350, 60, 16


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for top in THIRD_PARTY for path in sorted((REPOSITORY / top).rglob("*.py"))}


@cache
def imports_of(module: str) -> frozenset[str]:
    """Every module that ``module`` imports, anywhere in it; of ours the module itself, not its package."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= inner or {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in IMPORTERS:
            names = [word.value if isinstance(word, ast.Constant) else ANY for word in node.args[:1]]
            found |= {str(name) for name in names}
    return frozenset(found)


def ours(module: str) -> frozenset[str]:
    return imports_of(module) & set(MODULES)


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def upward(module: str, others: Iterable[str] | None = None) -> Iterator[str]:
    """Of ``others``, or else of the imports of ``module``, those that go against the order of `LEVELS`."""
    own = package_of(module)
    for other in sorted(ours(module) if others is None else others):
        package = package_of(other)
        is_leaf = package in LEAVES and LEVEL_OF[package] == LEVEL_OF[own]
        if package != own and not is_leaf and LEVEL_OF[package] >= LEVEL_OF[own]:
            yield other


def started_by(module: str) -> set[str]:
    """Our modules that a text in ``module`` names to be imported or run: whole, after -m, or beside an import."""
    tree = ast.parse(MODULES[module].read_text())
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in prose]
    started = [text for text in texts if isinstance(text, str) and _STARTS.search(text)]
    return {name for text in started for name in _NAME.findall(text)} & set(MODULES)


_NAME = re.compile(rf"\b(?:{'|'.join(THIRD_PARTY)})(?:\.[a-z_]+)+")
_STARTS = re.compile(rf"\bimport\s|-m\s|^{_NAME.pattern}$")


def cycle_from(module: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A circle of imports that ``module`` leads to; empty if there is none."""
    if module in above:
        return (*above[above.index(module) :], module)
    if module in _ACYCLIC:
        return ()
    for other in sorted(ours(module)):
        if other != module and (found := cycle_from(other, (*above, module))):
            return found
    _ACYCLIC.add(module)
    return ()


_ACYCLIC: set[str] = set()


def test_imports_follow_the_order_of_packages() -> None:
    assert {package_of(module) for module in MODULES} == set(LEVEL_OF)
    assert {module: found for module in MODULES if (found := list(upward(module)))} == {}


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("from etl.cli import cli", "etl.cli"),
        ("from etl import cli", "etl.cli"),
        ("import etl.cli as c", "etl.cli"),
        ("importlib.import_module('etl.cli')", "etl.cli"),
        ("import_module('etl.cli')", "etl.cli"),
        ("__import__('etl.cli')", "etl.cli"),
        ("import etl.sources.idx", "etl.sources.idx"),
        ("import mapreduce", "mapreduce"),
        ("from train import main", "train.main"),
    ],
)
def test_an_upward_import_is_found(statement: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.py").write_text(f"from etl.errors import DataError\n\ndef late():\n    {statement}\n")
    monkeypatch.setitem(MODULES, "etl.storage.wrong", tmp_path / "wrong.py")
    imports_of.cache_clear()
    assert list(upward("etl.storage.wrong")) == [found]


def test_what_is_started_by_name_follows_the_order_too() -> None:
    assert {module for module in MODULES if list(upward(module, started_by(module)))} == set(STARTED_BY_NAME)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("run_module('mapreduce.normalize', [])", ["mapreduce.normalize"]),
        ("words = [sys.executable, '-m', 'train.read_bench']", ["train.read_bench"]),
        ("os.system('python3 -m etl.cli --help')", ["etl.cli"]),
        ("words = ['-c', 'from train.input.records_op import why_not_native']", ["train.input.records_op"]),
        ("run(f'import sys, mapreduce.shard, etl.errors; print({late})')", ["mapreduce.shard"]),
        ("'''Started by `python -m mapreduce.normalize`.'''", []),
        ("raise ValueError('train.main says so')", []),
        ("words = ['-D', 'mapreduce.job.name', 'etl.storage.place']", []),
    ],
)
def test_an_upward_start_by_name_is_found(
    statement: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.py").write_text(f"def late():\n    {statement}\n")
    monkeypatch.setitem(MODULES, "etl.storage.wrong", tmp_path / "wrong.py")
    assert list(upward("etl.storage.wrong", started_by("etl.storage.wrong"))) == found


@pytest.mark.parametrize("statement", ["from etl.storage import wrong_b", "import_module('etl.storage.wrong_b')"])
def test_a_circle_of_late_imports_is_found(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(f"def late():\n    {statement}\n")
    (tmp_path / "b.py").write_text("import etl.storage.wrong_a as a\n")
    monkeypatch.setitem(MODULES, "etl.storage.wrong_a", tmp_path / "a.py")
    monkeypatch.setitem(MODULES, "etl.storage.wrong_b", tmp_path / "b.py")
    imports_of.cache_clear()
    circle = ("etl.storage.wrong_a", "etl.storage.wrong_b", "etl.storage.wrong_a")
    assert cycle_from("etl.storage.wrong_a") == circle


def test_no_module_imports_itself_in_a_circle() -> None:
    assert [circle for module in MODULES if (circle := cycle_from(module))] == []


def test_third_party_packages_are_those_of_the_core_and_the_extras() -> None:
    for module in MODULES:
        top = module.split(".")[0]
        others = {name.split(".")[0] for name in imports_of(module)} - set(THIRD_PARTY) - sys.stdlib_module_names
        assert others <= THIRD_PARTY[top] | DRAWING.get(module, set()) | BY_NAME.get(module, set()), module


def test_the_dag_imports_airflow_and_the_standard_library_only() -> None:
    tree = ast.parse((REPOSITORY / "airflow_dags/image_training.py").read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes]
    assert {str(name).split(".")[0] for name in names} - sys.stdlib_module_names == {"airflow"}


def test_tensorflow_is_imported_only_where_it_is_needed() -> None:
    for module in MODULES:
        without = module.startswith(WITHOUT_TENSORFLOW) and module not in TENSORFLOW_AT_ITS_EDGE
        if without or module in STARTERS:
            assert not {name.split(".")[0] for name in imports_of(module)} & HEAVY, module


def test_no_module_is_named_like_another() -> None:
    others = set(packages_distributions()) - set(THIRD_PARTY) | sys.stdlib_module_names
    assert {path.stem for path in MODULES.values()} & others <= {"__init__", "main"}


def test_modules_and_functions_stay_readable() -> None:
    for module, path in MODULES.items():
        text = path.read_text()
        assert text.count("\n") <= MAX_MODULE_LINES, module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{module}: {node.name}"


def test_packages_stay_small_and_say_what_belongs_in_them() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MAX_MODULES, f"{folder}: {len(modules)} modules"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


@pytest.mark.integration
def test_a_task_starts_without_what_it_does_not_need() -> None:
    tasks, heavy = "mapreduce.normalize, mapreduce.shard", {"tensorflow", "pyarrow.compute"}
    succeeded(run("python", "-c", f"import sys, {tasks}; sys.exit(bool({heavy} & set(sys.modules)))"))


@pytest.mark.integration
def test_commands_start_without_what_only_a_report_needs() -> None:
    probe = "import sys, etl.cli; sys.exit(bool({'jinja2', 'matplotlib', 'etl.report'} & set(sys.modules)))"
    succeeded(run("python", "-c", probe))


@pytest.mark.integration
def test_horovod_is_there_in_seconds_the_second_time() -> None:
    told = succeeded(run("python", "train/toolchain/build_horovod.py"))
    assert "is in the cache" in told.stdout
    assert "is installed" in told.stdout


@pytest.mark.integration
def test_the_native_op_is_there_at_once_the_second_time() -> None:
    told = succeeded(run("python", "-m", "train.toolchain.build_records_op"))
    assert "is in the cache" in told.stdout
    assert "is installed" in told.stdout
