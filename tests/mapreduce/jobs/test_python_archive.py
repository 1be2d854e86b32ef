"""The archive with the Python of YARN containers: relocatable, complete, no larger, and made once for each version."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import features

from etl.errors import EnvironmentFailure
from mapreduce.jobs import python_archive
from mapreduce.jobs.python_archive import SITE, cached_archive, fingerprint, own_files, required_distributions
from tests.lib.commands import REPOSITORY, Finished, run, succeeded

MAX_BYTES = 160_000_000  # half of it OpenCV
FINGERPRINT = """
from mapreduce.jobs.python_archive import fingerprint, own_files, required_distributions
print(fingerprint(required_distributions(), own_files()))
"""
EVERY_MODULE = """
import importlib, io, pkgutil, sys
import click, crc32c, google.protobuf, hdfs_native, mrjob, numpy, PIL, pyarrow.parquet, rich
import etl, mapreduce
from PIL import features
for package in (etl, mapreduce):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
table = pyarrow.table({"key": ["a", "b", "a"], "sums": [[1, 2], [3], []]})
pyarrow.parquet.write_table(table.sort_by("key"), file := io.BytesIO(), compression="zstd")
assert pyarrow.parquet.read_table(file).num_rows == 3
outside = [name for name, module in sys.modules.items() if not (getattr(module, "__file__", None) or sys.prefix)
           .startswith((sys.prefix, sys.base_prefix))]
assert not outside, outside
print(*sorted(features.get_supported()))
etl.entry_point.end_process(0)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the archive of this environment and, in ``moved``, its content."""
    folder = tmp_path_factory.mktemp("python-of-containers")
    path = cached_archive(folder / "cache")
    subprocess.run(["tar", "-x", "-z", "-f", path, "--one-top-level=unpacked"], cwd=folder, check=True)
    (folder / "unpacked").rename(folder / "moved")
    return folder


def in_container(made: Path, *words: object) -> Finished:
    """Run the archive's Python as in a container: without this environment's variables and without a home."""
    python = made / "moved/bin/python"
    return subprocess.run(
        ["env", "-i", f"HOME={made / 'absent'}", "PYTHONDONTWRITEBYTECODE=1", python, *map(str, words)],
        cwd=made,
        timeout=300,
        capture_output=True,
        text=True,
    )


@pytest.mark.integration
def test_jobs_and_all_modules_run_from_any_folder(made: Path) -> None:
    job = succeeded(in_container(made, made / "moved" / SITE / "mapreduce/normalize.py", "--help"))
    assert "Normalize the raw images" in job.stdout
    modules = succeeded(in_container(made, "-W", "error:::etl", "-c", EVERY_MODULE))
    assert modules.stdout.split() == sorted(features.get_supported()), "images decode alike"


@pytest.mark.integration
def test_it_contains_what_tasks_need_and_no_path_of_this_machine_but_the_interpreter(made: Path) -> None:
    (tar_gz,) = (made / "cache").glob("*.tar.gz")
    assert tar_gz.stat().st_size < MAX_BYTES
    moved = made / "moved"
    assert {path.name for path in moved.iterdir()} == {"bin", "lib", "pyvenv.cfg"}
    tops = {path.name for path in (moved / SITE).iterdir()}
    assert tops >= {"etl", "mapreduce", "hdfs_native", "mrjob", "pyarrow"}
    assert not tops & {"train", "tensorflow", "keras", "horovod", "pytest", "pip", "sklearn", "tests", "colorama"}
    for path in moved.rglob("*"):
        assert not ("/etl/report" in str(path) or path.suffix in (".pyx", ".h") or path.name == "tests"), path
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            assert os.fsencode(REPOSITORY) not in content and os.fsencode(made) not in content, path
        if path.suffix == ".py" and SITE in str(path):
            byte_code = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
            assert byte_code.read_bytes()[4:8] == b"\1\0\0\0", path  # PEP 552: by hash, not checked
    assert (moved / "bin/python").readlink() == Path(os.path.realpath(sys.executable))


@pytest.mark.integration
def test_the_fingerprint_follows_the_sources_and_the_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributions, before = required_distributions(), own_files()
    packages = tuple(shutil.copytree(package, tmp_path / package.name) for package in python_archive.PACKAGES)
    monkeypatch.setattr(python_archive, "PACKAGES", packages)
    assert own_files() == before
    found = fingerprint(distributions, before)
    variables = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    assert succeeded(run("python", "-c", FINGERPRINT, variables=variables)).stdout.strip() == found
    with (tmp_path / "etl/errors.py").open("a") as file:
        file.write("# changed\n")
    assert len({found, fingerprint(distributions, own_files()), fingerprint([], before)}) == 3


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    with pytest.raises(EnvironmentFailure, match="this user has no home; set XDG_CACHE_HOME to a folder"):
        cached_archive()


@pytest.mark.integration
def test_the_cache_keeps_the_archives_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(python_archive, "required_distributions", list)
    left_over, at_work = tmp_path / "old.tmp", tmp_path / "new.tmp"
    for number, text in enumerate("abcad"):
        monkeypatch.setattr(python_archive, "own_files", lambda text=text: {"text": text.encode()})
        if text == "d":
            left_over.mkdir()
            at_work.mkdir()
            os.utime(left_over, (0, 0))
        made.append(cached_archive(tmp_path))
        if number < 3:
            os.utime(made[-1], (number, number))
    assert made[3] == made[0]
    assert set(tmp_path.iterdir()) == {made[4], made[0], made[2], at_work}


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (None, r"pyyaml is not installed in this environment \(pip install 'PyYAML>=3\.10'\)"),
        ({"RECORD": None}, "pyyaml has no list of its files"),
        ({"direct_url.json": '{"dir_info": {"editable": true}}'}, "pyyaml is installed to be edited"),
        ({}, r"\.py is missing; install its distribution again"),
    ],
)
def test_a_distribution_that_cannot_be_packed_is_named(
    files: dict[str, str | None] | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        found = installed(name)
        if name == "pyyaml":
            if files is None:
                raise metadata.PackageNotFoundError(name)
            read = found.read_text
            monkeypatch.setattr(found, "read_text", lambda file: files[file] if file in files else read(file))
            monkeypatch.setattr(found, "locate_file", lambda file: tmp_path / file)
        return found

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(python_archive, "_is_needed", lambda path: path.startswith("yaml/"))
    with pytest.raises(EnvironmentFailure, match=line):
        cached_archive(tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))
