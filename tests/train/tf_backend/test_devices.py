"""One GPU for each rank, whatever the scheduler shows it, and what ranks report of their devices."""

import ctypes
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.parallel.devices import Device, choose_gpu, gpu_uuid, has_nvidia_gpu
from train.runs.consistency import describe_devices, device_disagreement
from train.tf_backend import devices


@pytest.mark.parametrize(
    ("seen", "local_rank", "local_size", "is_restricted", "found"),
    [
        (8, 3, 4, False, 3),
        (1, 7, 8, True, 0),  # a scheduler shows each rank its own
        (0, 1, 2, False, "there is no GPU for local rank 1, TensorFlow sees none on this host; install tensorflow"),
        (1, 0, 2, False, "TensorFlow sees 1 GPU for 2 ranks on this host; start as many ranks as there are GPUs,"),
        (2, 1, 4, True, "TensorFlow sees 2 GPUs for 4 ranks on this host; start as many ranks"),
    ],
)
def test_each_rank_has_a_gpu(
    seen: int, local_rank: int, local_size: int, is_restricted: bool, found: int | str
) -> None:
    if isinstance(found, int):
        assert choose_gpu(seen, local_rank, local_size, is_restricted) == found
    else:
        with pytest.raises(EnvironmentFailure, match=found):
            choose_gpu(seen, local_rank, local_size, is_restricted)


def rank(host: str = "one", has_nccl: bool = True, **device: Any) -> dict[str, Any]:
    return {"host": host, "has_nccl": has_nccl, "device": asdict(Device(**device))}


H200: dict[str, Any] = {"name": "NVIDIA H200"}


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([rank(**H200), rank(**H200)], None),  # a driver without UUIDs
        ([rank(**H200), rank()], " computes on the CPU, rank 0 on NVIDIA H200; give every rank a GPU, or"),
        ([rank(**H200), rank(has_nccl=False, **H200)], " reduces gradients by Gloo, rank 0 by NCCL; install the same"),
        (
            [rank(**H200, uuid="a"), rank(**H200, uuid="b"), rank("two", **H200, uuid="a")],
            " has the same GPU as rank 0 (NVIDIA H200, UUID a); start one rank for each GPU, and let",
        ),
    ],
)
def test_devices_that_do_not_fit(ranks: list[dict[str, Any]], line: str | None) -> None:
    *others, last = (device_disagreement(ranks, number) for number in range(len(ranks)))
    assert others == [None] * len(others)
    assert last is None if line is None else str(last).startswith(line)


NO_NCCL = "gradients go through host memory, because this Horovod has no NCCL; run: make install GPU=1"


@pytest.mark.parametrize(
    ("ranks", "lines"),
    [
        ([rank(cores=5), rank(cores=6)], ["2 ranks on 1 host: CPU (5 to 6 cores each), Gloo"]),
        ([rank(has_nccl=False, **H200)] * 2, ["2 ranks on 1 host: NVIDIA H200, Gloo", NO_NCCL]),
        (
            [rank("one", **H200)] * 4 + [rank("two", name="NVIDIA L4")],
            ["5 ranks on 2 hosts: NVIDIA H200 (rank 0 to 3), NVIDIA L4 (rank 4), NCCL"],
        ),
        (
            [rank("one", cores=1, skipped="no libcudnn")],
            ["1 rank on 1 host: CPU (1 core each)", "one has a GPU that is not used (no libcudnn)"],
        ),
    ],
)
def test_the_first_lines_name_devices_and_transport(ranks: list[dict[str, Any]], lines: list[str]) -> None:
    assert describe_devices(ranks) == lines


# lines of TensorFlow 2.21, on a machine without a driver, and on one that lacks cuDNN
PORT = "I0000 00:00:1795384002.232464   10807 port.cc:153] oneDNN custom operations are on.\n"
NO_DRIVER = (
    "E0000 00:00:1795384003.886331   10807 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed"
    " call to cuInit: UNKNOWN ERROR (303)\n"
)
NO_CUDNN = (
    "W0000 00:00:1795381200.000002    4711 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make sure the"
    " missing libraries mentioned above are installed properly if you would like to use GPU.\n"
)


def test_tensorflows_reason() -> None:
    driver = "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)"
    reason = f"TensorFlow: {driver}; Cannot dlopen some GPU libraries"
    assert devices.reason_in(PORT + NO_DRIVER + NO_CUDNN) == reason
    assert devices.reason_in(f"{PORT}Traceback (most recent call last):\n") == "TensorFlow gives no reason"


@pytest.mark.integration
def test_tensorflow_is_asked_for_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROBE_TIMEOUT_S", 300)
    assert devices.why_no_gpu(None).startswith(("TensorFlow: ", "this TensorFlow is built without CUDA; run: make"))


def test_a_device_file_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_nvidia_gpu(tmp_path)


def test_uuids_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the functions of NVIDIA's driver that are called, and two GPUs."""

    def get_device(device: Any, number: int) -> int:
        device._obj.value = number
        return number > 1

    def get_uuid(uuid: Any, device: ctypes.c_int) -> int:
        uuid[:] = [16 + device.value] * 16
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: flags, cuDeviceGet=get_device, cuDeviceGetUuid_v2=get_uuid)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert [gpu_uuid(number) for number in range(3)] == ["10" * 16, "11" * 16, ""]


def test_processes_of_a_host_share_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found, taken = list(range(5)), list[list[int]]()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: found)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: taken.append(gpus))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, grows: None)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {})
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "2")
    numbers = []
    for rank in "01":
        monkeypatch.setenv("HOROVOD_LOCAL_RANK", rank)
        numbers.append(devices.take_all_gpus("auto")[1])
    assert (numbers, taken) == ([3, 2], [[0, 2, 4], [1, 3]])
    del found[1:]
    with pytest.raises(
        EnvironmentFailure, match=r"TensorFlow sees no GPU \(of 1 none is left for local rank 1\); give"
    ):
        devices.take_all_gpus("gpu")
