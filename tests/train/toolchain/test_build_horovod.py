"""What Horovod is built with, by what is found on the machine."""

from pathlib import Path

import pytest

from train.toolchain import build_horovod
from train.toolchain.build_horovod import SETTINGS, build_settings


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in the usual places."""
    monkeypatch.setattr(build_horovod, "CUDA_HOMES", ())
    monkeypatch.setattr(build_horovod, "NCCL_HOMES", ())


def home_of(folder: Path, file: str) -> str:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    return str(folder)


@pytest.mark.usefixtures("nowhere")
def test_nccl_is_taken_where_it_and_cuda_are_found(tmp_path: Path) -> None:
    cuda, nccl = home_of(tmp_path / "cuda", "bin/nvcc"), home_of(tmp_path / "nccl", "include/nccl.h")
    found = build_settings({"CUDA_HOME": cuda, "HOROVOD_NCCL_HOME": nccl, "NCCL_HOME": "/elsewhere"})
    of_gpu = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": cuda, "HOROVOD_NCCL_HOME": nccl}
    assert found == SETTINGS | of_gpu
    for lacking in ({}, {"CUDA_HOME": cuda}, {"NCCL_HOME": nccl}, {"CUDA_HOME": nccl, "NCCL_HOME": cuda}):
        assert build_settings(lacking) == SETTINGS
    assert build_settings({"CUDA_HOME": cuda, "NCCL_HOME": nccl, "HOROVOD_GPU_OPERATIONS": ""}) == SETTINGS


def test_usual_places_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_horovod, "CUDA_HOMES", ("/nowhere", home_of(tmp_path / "cuda", "bin/nvcc")))
    monkeypatch.setattr(build_horovod, "NCCL_HOMES", (home_of(tmp_path / "nccl", "include/nccl.h"),))
    assert build_settings({})["HOROVOD_CUDA_HOME"] == str(tmp_path / "cuda")
