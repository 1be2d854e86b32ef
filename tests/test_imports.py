"""What a module may import of third parties, how large modules and packages may be, and what they may be called.

The order of the packages is checked by import-linter (`make check`), as pyproject.toml has it.
"""

import ast
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

from tests.lib.commands import REPOSITORY, run, succeeded

CORE = {"click", "crc32c", "cv2", "google", "hdfs_native", "numpy", "PIL", "pyarrow", "rich", "simplejpeg"}
ENTRY = "ringslice_entry"  # imports the standard library only, and `mapreduce.cli` last
THIRD_PARTY = {
    "etl": CORE,
    "mapreduce": {"click", "mrjob", "numpy", "packaging"},
    "train": {
        *("click", "crc32c", "cv2", "google", "numpy", "pyarrow", "safetensors", "simplejpeg"),
        *("horovod", "keras", "tensorflow", "torch"),
    },
}
# of the extra "report": imported only while a report is made
DRAWING = {"etl.report.render": {"jinja2"}, "etl.report.charts": {"matplotlib"}}

MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_MODULES = 350, 60, 16


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for top in THIRD_PARTY for path in sorted((REPOSITORY / top).rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def test_third_party_packages_are_those_of_the_core_and_the_extras() -> None:
    graph = grimp.build_graph(*THIRD_PARTY, include_external_packages=True, cache_dir=None)
    for module, path in MODULES.items():
        assert "__import__" not in path.read_text(), f"{module} imports what neither grimp nor import-linter sees"
        others = graph.find_modules_directly_imported_by(module) - {*MODULES, ENTRY, *sys.stdlib_module_names}
        assert others <= THIRD_PARTY[module.split(".")[0]] | DRAWING.get(module, set()), module


# They write between processes of ours, in TOML and in messages, or to check text; all other calls write a file or
# standard output, for other programs: no bare NaN, no Infinity.
WITH_LAX_JSON = {
    *("etl.hadoop.yarn_api", "etl.images.sandbox", "mapreduce.jobs.python_archive", "train.config.recipe_options"),
    *("train.monitor.kv_store", "train.monitor.watchdog_process"),
    "train.toolchain.build_horovod",
}


def test_every_call_that_writes_json_is_strict() -> None:
    lax = {
        module
        for module in MODULES
        for call in ast.walk(tree_of(module))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("json.dump", "json.dumps")
        if "allow_nan" not in {each.arg for each in call.keywords}
    }
    assert lax == WITH_LAX_JSON, lax ^ WITH_LAX_JSON


IN_AIRFLOW = {"airflow", "ringslice_airflow", "fastapi"}  # which its api-server is made with


def test_the_dags_import_airflow_and_the_standard_library_only() -> None:
    for path in (REPOSITORY / "airflow_dags").glob("*.py"):
        every = ast.walk(ast.parse(path.read_text()))
        nodes = [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes]
        assert {str(name).split(".")[0] for name in names} - sys.stdlib_module_names <= IN_AIRFLOW


def test_no_module_is_named_like_another() -> None:
    others = set(packages_distributions()) - set(THIRD_PARTY) | sys.stdlib_module_names
    assert {path.stem for path in MODULES.values()} & others <= {"__init__", "main"}


def test_modules_and_functions_stay_readable() -> None:
    for module, path in MODULES.items():
        assert path.read_text().count("\n") <= MAX_MODULE_LINES, module
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{module}: {node.name}"


def test_packages_stay_small_and_say_what_belongs_in_them() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MAX_MODULES, f"{folder}: {len(modules)} modules"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


@pytest.mark.integration
def test_tasks_and_commands_start_without_what_they_do_not_need() -> None:
    for started, unwanted in (
        ("mapreduce.normalize, mapreduce.shard", {"tensorflow", "pyarrow.compute"}),
        ("mapreduce.cli", {"jinja2", "matplotlib", "train"}),
    ):
        succeeded(run("python", "-c", f"import sys, {started}; sys.exit(bool({unwanted} & set(sys.modules)))"))


@pytest.mark.integration
def test_a_second_installation_takes_what_the_first_built() -> None:
    for words in ("train/toolchain/build_horovod.py", "-m train.toolchain.build_records_op"):
        printed = succeeded(run("python", *words.split())).stdout
        assert "is in the cache" in printed and "is installed" in printed


@pytest.mark.integration
def test_a_cache_at_a_relative_path_is_found_from_any_folder() -> None:
    rule = "show: ; @echo $(AIRFLOW_CACHED) $(TORCH_CACHED)"
    shown = succeeded(run("make", "--no-print-directory", "--eval", rule, "show", "CACHE=some/cache")).stdout.split()
    folder = REPOSITORY / "some/cache"
    assert [path.rpartition("-")[0] for path in shown] == [f"{folder}/airflow", f"{folder}/torch"]
