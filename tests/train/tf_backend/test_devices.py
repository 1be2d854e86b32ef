"""One GPU for each rank, whatever the scheduler shows it, and what ranks tell of their devices."""

import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from etl.errors import EnvironmentFailure
from tests.lib.commands import run, succeeded
from train.parallel.devices import Device, choose_gpu, has_nvidia_gpu
from train.runs.consistency import describe_devices, device_disagreement
from train.tf_backend.devices import reason_in


@pytest.mark.parametrize(
    ("seen", "local_rank", "local_size", "is_restricted", "number"),
    [
        (8, 7, 8, False, 7),
        (8, 3, 4, False, 3),
        (2, 1, 2, True, 1),
        (1, 7, 8, True, 0),  # a scheduler shows each rank its own
    ],
)
def test_each_rank_has_a_gpu(seen: int, local_rank: int, local_size: int, is_restricted: bool, number: int) -> None:
    assert choose_gpu(seen, local_rank, local_size, is_restricted) == number


@pytest.mark.parametrize(
    ("seen", "local_rank", "local_size", "is_restricted", "line"),
    [
        (0, 1, 2, False, "there is no GPU for local rank 1, TensorFlow sees none on this host; install tensorflow"),
        (1, 0, 2, False, "TensorFlow sees 1 GPU for 2 ranks on this host; start as many ranks as there are GPUs,"),
        (2, 1, 4, True, "TensorFlow sees 2 GPUs for 4 ranks on this host; start as many ranks"),
    ],
)
def test_too_few_gpus(seen: int, local_rank: int, local_size: int, is_restricted: bool, line: str) -> None:
    with pytest.raises(EnvironmentFailure) as failed:
        choose_gpu(seen, local_rank, local_size, is_restricted)
    assert str(failed.value).startswith(line)


def rank(host: str = "one", has_nccl: bool = True, **device: Any) -> dict[str, Any]:
    return {"host": host, "has_nccl": has_nccl, "device": asdict(Device(**device))}


H200: dict[str, Any] = {"name": "NVIDIA H200"}


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ([rank(cores=2)], None),
        ([rank(**H200, uuid="a"), rank(**H200, uuid="b")], None),
        ([rank(**H200), rank(**H200)], None),  # a driver that does not tell
        ([rank(**H200), rank(lacks="no GPU")], ": no GPU"),
        ([rank(**H200), rank()], " computes on the CPU, rank 0 on NVIDIA H200; give every rank a GPU, or"),
        ([rank(**H200), rank(has_nccl=False, **H200)], " reduces gradients by Gloo, rank 0 by NCCL; install the same"),
        ([rank(), rank(has_nccl=False)], None),
        (
            [rank(**H200, uuid="a"), rank(**H200, uuid="b"), rank("two", **H200, uuid="a")],
            " has the same GPU as rank 0 (NVIDIA H200, UUID a); start one rank for each GPU, and let",
        ),
    ],
)
def test_devices_that_do_not_fit(result: list[dict[str, Any]], line: str | None) -> None:
    for before in range(len(result) - 1):
        assert device_disagreement(result, before) is None
    found = device_disagreement(result, len(result) - 1)
    assert found is None if line is None else (found or "").startswith(line)


NO_NCCL = "gradients go through host memory, because this Horovod has no NCCL; run: make install GPU=1"


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        ([rank(cores=2)], ["1 rank on 1 host: CPU (2 cores each)"]),
        ([rank(cores=5), rank(cores=6)], ["2 ranks on 1 host: CPU (5 to 6 cores each), Gloo"]),
        ([rank("one", **H200)] * 4 + [rank("two", **H200)] * 4, ["8 ranks on 2 hosts: NVIDIA H200, NCCL"]),
        ([rank(has_nccl=False, **H200)] * 2, ["2 ranks on 1 host: NVIDIA H200, Gloo", NO_NCCL]),
        ([rank(has_nccl=False, **H200)], ["1 rank on 1 host: NVIDIA H200"]),
        (
            [rank("one", **H200)] * 4 + [rank("two", name="NVIDIA L4")],
            ["5 ranks on 2 hosts: NVIDIA H200 (rank 0 to 3), NVIDIA L4 (rank 4), NCCL"],
        ),
        (
            [rank("one", cores=1, skipped="no libcudnn"), rank("one", cores=1)],
            ["2 ranks on 1 host: CPU (1 core each), Gloo", "one has a GPU that is not used (no libcudnn)"],
        ),
    ],
)
def test_the_first_lines_name_devices_and_transport(result: list[dict[str, Any]], lines: list[str]) -> None:
    assert describe_devices(result) == lines


# TensorFlow 2.21, on a machine without a driver, and on one that lacks cuDNN
NO_DRIVER = (
    "I0000 00:00:1795384002.232464   10807 port.cc:153] oneDNN custom operations are on.\n"
    "I0000 00:00:1795384003.725271   10807 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not"
    " be used.\n"
    "E0000 00:00:1795384003.886331   10807 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed"
    " call to cuInit: UNKNOWN ERROR (303)\n"
)
NO_CUDNN = (
    "2026-11-22 21:00:00.000001: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
    "W0000 00:00:1795381200.000002    4711 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make sure the"
    " missing libraries mentioned above are installed properly if you would like to use GPU.\n"
    "Skipping registering GPU devices...\n"
)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (NO_CUDNN, "TensorFlow: Cannot dlopen some GPU libraries"),
        (
            NO_DRIVER,
            "TensorFlow: Could not find cuda drivers on your machine, GPU will not be used; failed call to cuInit:"
            " INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        ),
        ("", "TensorFlow gives no reason"),
        ("Traceback (most recent call last):\n", "TensorFlow gives no reason"),
    ],
)
def test_tensorflows_reason(log: str, reason: str) -> None:
    assert reason_in(log) == reason


@pytest.mark.integration
def test_tensorflow_is_asked_for_its_reason() -> None:
    code = (
        "from train.tf_backend import devices; devices.PROBE_TIMEOUT_S = 300;"
        "print(devices.why_no_gpu(None)); print(devices.why_no_gpu('-1'))"
    )
    *_, reason, hidden = succeeded(run("python", "-c", code)).stdout.splitlines()
    if tf.test.is_built_with_cuda():
        assert reason.startswith("TensorFlow")
    else:
        assert reason == "this TensorFlow is built without CUDA; run: make install GPU=1"
    assert hidden == "$CUDA_VISIBLE_DEVICES is '-1', which hides all"


def test_a_device_file_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_nvidia_gpu(tmp_path)


DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int* device, int number) { *device = number; return number > 1; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { memset(uuid, 16 + device, 16); return 0; }
"""


@pytest.mark.integration
def test_uuids_of_a_driver(tmp_path: Path) -> None:
    """A library with the functions of NVIDIA's driver that are called, and two GPUs."""
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    code = "from train.parallel.devices import gpu_uuid; print([gpu_uuid(number) for number in range(3)])"
    result = succeeded(run("python", "-c", code, LD_LIBRARY_PATH=str(tmp_path)))
    assert result.stdout.splitlines()[-1] == str(["10" * 16, "11" * 16, ""])
