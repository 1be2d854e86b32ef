"""Who may import whom, and what modules may be called; read from the source."""

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, run, succeeded

CORE = {"click", "crc32c", "cv2", "google", "hdfs_native", "mrjob", "numpy", "PIL", "pyarrow", "rich", "simplejpeg"}
ALLOWED = {
    "etl": CORE - {"mrjob"},
    "mapreduce": {"etl", "mrjob", "numpy", "packaging"},
    "train": {"etl", "click", "crc32c", "horovod", "keras", "numpy", "pyarrow", "safetensors", "tensorflow"},
}
# asked for by the extra "report", and imported when a report is made only
DRAWN_WITH = {
    "charts.py": {"matplotlib"},
    "drawing.py": {"matplotlib"},
    "render.py": {"jinja2"},
    "run_charts.py": {"matplotlib"},
}
# the core of the reader: a PyTorch reader can stand on it
WITHOUT_TENSORFLOW = {
    "array_file.py",
    "budget.py",
    "buffers.py",
    "build_horovod.py",
    "build_records_op.py",
    "cache.py",
    "cache_files.py",
    "checkpoints.py",
    "damage.py",
    "drawing.py",
    "evaluate.py",
    "export.py",
    "export_files.py",
    "guard.py",
    "holding.py",
    "image_files.py",
    "intervals.py",
    "lanes.py",
    "last_words.py",
    "lateness.py",
    "layouts.py",
    "letterbox.py",
    "main.py",
    "order.py",
    "patience.py",
    "peers.py",
    "predict.py",
    "pulse.py",
    "ranks.py",
    "read_bench.py",
    "reader.py",
    "reading.py",
    "reading_options.py",
    "run_log.py",
    "runs.py",
    "saver.py",
    "schedule.py",
    "settings.py",
    "slice_file.py",
    "stalls.py",
    "state.py",
    "steps.py",
    "watch.py",
    "windows.py",
}

MODULES = [path for package in ALLOWED for path in sorted((REPOSITORY / package).rglob("*.py"))]
by_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add((node.module or "").split(".")[0])
    return names - sys.stdlib_module_names


@by_module
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(REPOSITORY).parts[0]
    drawn_with = DRAWN_WITH.get(path.name, set()) if "report" in path.parts else set()
    assert imported(path) <= ALLOWED[package] | {package} | drawn_with
    if path.name in WITHOUT_TENSORFLOW:
        assert not imported(path) & {"tensorflow", "keras", "horovod"}


@by_module
def test_no_module_is_named_like_another(path: Path) -> None:
    others = set(packages_distributions()) - set(ALLOWED) | sys.stdlib_module_names
    assert path.stem in {"__init__", "main"} or path.stem not in others


def test_modules_and_functions_stay_readable() -> None:
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


def test_a_mapper_starts_without_tensorflow() -> None:
    probe = "import sys, mapreduce.normalize, mapreduce.shard; sys.exit('tensorflow' in sys.modules)"
    succeeded(run("python", "-c", probe))


def test_commands_start_without_what_only_a_report_needs() -> None:
    probe = "import sys, etl.cli; sys.exit(bool({'jinja2', 'matplotlib', 'etl.report'} & set(sys.modules)))"
    succeeded(run("python", "-c", probe))


def test_horovod_is_there_in_seconds_the_second_time() -> None:
    told = succeeded(run("python", "train/toolchain/build_horovod.py", timeout_s=30))
    assert "is in the cache" in told.stdout
    assert "is installed" in told.stdout


def test_the_native_op_is_there_at_once_the_second_time() -> None:
    assert "is installed" in succeeded(run("python", "-m", "train.toolchain.build_records_op", timeout_s=30)).stdout
