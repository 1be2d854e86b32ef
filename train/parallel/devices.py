"""The device of a rank: which GPU is its own, and what it tells the other ranks of it. Imports no framework."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from etl.errors import EnvironmentFailure

VISIBLE = "CUDA_VISIBLE_DEVICES"
TENSORFLOW, TORCH = "TensorFlow", "PyTorch"
INSTALL = {
    TENSORFLOW: "install tensorflow with its CUDA packages (make install GPU=1)",
    TORCH: "install a PyTorch that was built for CUDA",
}


@dataclass(frozen=True)
class Device:
    """What a rank computes on, as it reports it to the other ranks.

    ``name`` and ``uuid`` are those of its GPU, empty on the CPU; ``cores`` counts its physical cores. ``lacks`` is why
    the rank cannot have the device that was asked for, ``skipped`` why it has the CPU although its host has a GPU.
    """

    name: str = ""
    uuid: str = ""
    cores: int = 0
    lacks: str = ""
    skipped: str = ""


def choose_gpu(seen: int, local_rank: int, local_size: int, is_restricted: bool, framework: str = TENSORFLOW) -> int:
    """The number of a rank's GPU among the ``seen`` ones. Pure.

    A scheduler shows each rank all GPUs of the host, or by ``$CUDA_VISIBLE_DEVICES`` (``is_restricted``) its own only.
    Raises EnvironmentFailure if there are too few.
    """
    if seen >= local_size:
        return local_rank
    if seen == 1 and is_restricted:
        return 0
    if not seen:
        raise EnvironmentFailure(
            f"there is no GPU for local rank {local_rank}, {framework} sees none on this host;"
            f" {INSTALL[framework]}, look at nvidia-smi, or give --device cpu"
        )
    raise EnvironmentFailure(
        f"{framework} sees {seen} {'GPU' if seen == 1 else 'GPUs'} for {local_size} ranks on this host; start as many"
        f" ranks as there are GPUs, set ${VISIBLE} to one GPU for each rank, or give --device cpu"
    )


def has_nvidia_gpu(devices: Path = Path("/dev")) -> bool:
    """True if the driver has made a device file for a GPU."""
    return any(devices.glob("nvidia[0-9]*"))


def gpu_uuid(number: int) -> str:
    """The UUID of a GPU, or of its MIG instance, by its number among the visible ones; empty if there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetUuid_v2(uuid, device):
        return ""
    return bytes(uuid).hex()
