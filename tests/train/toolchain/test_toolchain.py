"""The cache of what is built, installs at the same time, and where CUDA and NCCL are found for a build for GPUs."""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, run, succeeded
from train.toolchain import cuda
from train.toolchain.build_horovod import BuildError, add_cache_option, cuda_tensorflow_version
from train.toolchain.cuda import MissingError, find_home, packaged_nccl


@pytest.mark.integration
def test_make_and_the_builds_have_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for variables in ({}, {"HOME": "/elsewhere"}, {"XDG_CACHE_HOME": "/cache"}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        add_cache_option(parser := argparse.ArgumentParser(), "wheels")
        kept = [f"{name}={os.environ[name]}" for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ]
        words = ("env", "-i", *kept, "make", "--dry-run", "--always-make", "install")
        assert succeeded(run(*words)).stdout.count(f'--cache "{parser.parse_args([]).cache}"') == 2


STAND_IN = """#!/bin/sh
case "$*" in -c* | -V) exit ;; esac
echo begin >> {log}; sleep 0.1; echo end >> {log}
case "$*" in "-m venv"*) mkdir -p {venv}/bin; cp "$0" {venv}/bin/python ;; esac
"""


@pytest.mark.integration
@pytest.mark.parametrize(("variable", "target", "commands"), [("VENV", "install", 5), ("AIRFLOW_CACHED", "airflow", 2)])
def test_two_makes_install_once(variable: str, target: str, commands: int, tmp_path: Path) -> None:
    venv, log, python = tmp_path / "venvs/own", tmp_path / "log", tmp_path / "python"
    python.write_text(STAND_IN.format(log=log, venv=venv))
    python.chmod(0o755)
    words = ["make", f"{variable}={venv}", f"AIRFLOW_VENV={tmp_path / 'link'}", f"PYTHON={python}", target]
    makes = [subprocess.Popen(words, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [make.wait(PATIENCE_S) for make in makes] == [0, 0]
    assert log.read_text().split() == ["begin", "end"] * commands


TENSORFLOW = "tensorflow==2.21.0"
BUILD_NEEDS = ("setuptools<81", "wheel", "packaging", "cmake>=3.25,<4", "nvidia-nccl-cu12>=2.27.7,<3")
BUILD_TIMEOUT_S = 1800


def home_of(folder: Path, file: str) -> str:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    return str(folder)


def test_folders_of_variables_precede_the_usual_ones(tmp_path: Path) -> None:
    own, other = home_of(tmp_path / "own", "bin/nvcc"), home_of(tmp_path / "other", "bin/nvcc")
    absent = str(tmp_path / "absent")
    for variables, usual, home in (
        ({"HOROVOD_CUDA_HOME": own, "CUDA_HOME": other}, (other,), own),
        ({"CUDA_HOME": own}, (other,), own),
        ({}, (absent, other), other),
        ({"CUDA_HOME": ""}, (absent,), None),
    ):
        found = find_home("bin/nvcc", "CUDA_HOME", usual, variables)
        assert found == (home and Path(home))
    with pytest.raises(MissingError, match=rf"\$CUDA_HOME is {absent}, which has no bin/nvcc; correct it, or unset"):
        find_home("bin/nvcc", "CUDA_HOME", (), {"CUDA_HOME": absent})


def test_packaged_nccl_has_the_linkers_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    with pytest.raises(MissingError, match=r"NCCL is missing; install TensorFlow's CUDA packages: pip install"):
        packaged_nccl(tmp_path / "work")
    home_of(tmp_path / "site" / cuda.PACKAGED_NCCL, "include/nccl.h")
    home_of(tmp_path / "site" / cuda.PACKAGED_NCCL / "lib", "libnccl.so.2")
    home = packaged_nccl(tmp_path / "work")
    assert (home / "include/nccl.h").exists()
    assert os.readlink(home / "lib/libnccl.so").endswith("nvidia/nccl/lib/libnccl.so.2")


def test_an_environment_for_cpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, named in (
        (["tensorflow_cpu"], "tensorflow-cpu"),
        (["tensorflow", "tensorflow-cpu"], "tensorflow and tensorflow-cpu"),
    ):
        found = [SimpleNamespace(name=name) for name in installed]
        monkeypatch.setattr(importlib.metadata, "distributions", lambda found=found: found)
        line = f"needs tensorflow.and-cuda. alone, and here is {named}; run: make install"
        with pytest.raises(BuildError, match=line):
            cuda_tensorflow_version()


# what Horovod's source calls unless it is changed
TWIN = """
namespace stream_executor { class Stream; namespace gpu { void* AsGpuStreamValue(Stream* stream); } }
void* called(stream_executor::Stream* stream) { return stream_executor::gpu::AsGpuStreamValue(stream); }
"""


def relocated(library: Path, site: Path) -> str:
    """The dynamic linker's output on a library and all its symbols, with TensorFlow of this environment."""
    variables = os.environ | {"LD_LIBRARY_PATH": str(site / "tensorflow")}
    result = subprocess.run(["ldd", "-r", library], env=variables, capture_output=True, text=True, check=True)
    return result.stdout + result.stderr


@pytest.mark.chaos
def test_horovod_for_gpus_is_built_and_loaded_without_a_gpu(tmp_path: Path) -> None:
    """Its library has NCCL, and every symbol that it needs is there; those of the unchanged source are not."""
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", TENSORFLOW, *BUILD_NEEDS], check=True)
    script = REPOSITORY / "train/toolchain/build_horovod.py"
    words: list[str | Path] = [python, script, "--gpu", "--cache", tmp_path / "cache"]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    built = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    assert built.returncode == 0, built.stderr
    assert built.stdout.splitlines()[-1] == "build_horovod: Horovod is loaded, with NCCL"
    [site] = (tmp_path / "venv/lib").glob("python*/site-packages")
    [library] = (site / "horovod/tensorflow").glob("mpi_lib*.so")
    result = relocated(library, site)
    assert f"libnccl.so.2 => {library.parent}/../../nvidia/nccl/lib/libnccl.so.2" in result
    assert "not found" not in result and "undefined symbol" not in result, result
    (tmp_path / "twin.cc").write_text(TWIN)
    twin = tmp_path / "twin.so"
    tensorflow = site / "tensorflow/libtensorflow_cc.so.2"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", twin, tmp_path / "twin.cc", tensorflow], check=True)
    assert "undefined symbol: _ZN15stream_executor3gpu16AsGpuStreamValue" in relocated(twin, site)
