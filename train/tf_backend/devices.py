"""The device of this rank: a GPU of its own, or the CPU."""

import ctypes
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.config.settings import CPU, GPU
from train.parallel.cores import physical_cores
from train.parallel.startup import suppress_stderr

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = ("", "-1")  # values of it that hide all GPUs
PROBE_TIMEOUT_S = 30.0  # TensorFlow from a cold disk

_PROBE = "import tensorflow as tf; tf.config.list_physical_devices('GPU'); print(tf.test.is_built_with_cuda())"
_LOGGED = re.compile(r"(?:\d{4}-\d\d-\d\d \S+: )?[IWEF]\d{0,4} [^]]*\] (?P<text>.*)")
_OF_GPU = re.compile(r"(?i)(?<![a-z])(cuda|cudnn|cuinit|gpus?|dlopen|libcu\w*|nvml)(?![a-z])")


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


@functools.cache
def take_device(device: str) -> Device:
    """Take this rank's GPU, or none.

    The first time must be before anything else of TensorFlow's runs: from then on devices cannot be chosen.
    """
    cores = len(physical_cores(os.sched_getaffinity(0)))
    local_rank = int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))
    local_size = int(os.environ.get("HOROVOD_LOCAL_SIZE", "1"))
    visible = os.environ.get(VISIBLE)
    with suppress_stderr():  # TensorFlow logs a missing driver as an error
        found = [] if device == CPU else tf.config.list_physical_devices("GPU")
    if not found and device != GPU:
        tf.config.set_visible_devices([], "GPU")
        is_skipped = device != CPU and visible not in HIDING and local_rank == 0 and has_nvidia_gpu()
        return Device(cores=cores, skipped=why_no_gpu(visible) if is_skipped else "")
    try:
        number = choose_gpu(len(found), local_rank, local_size, visible is not None)
    except EnvironmentFailure as error:
        reason = f" ({why_no_gpu(visible)})" if not found and local_rank == 0 else ""
        return Device(cores=cores, lacks=f"--device {device}: {error}{reason}")
    own = found[number]
    tf.config.set_visible_devices(own, "GPU")
    tf.config.experimental.set_memory_growth(own, True)
    return Device(_name_of(own), gpu_uuid(number), cores)


def take_all_gpus(device: str) -> tuple[Device, int]:
    """Take all GPUs that TensorFlow sees, or none; what this process computes on, and the number of these GPUs.

    As for `take_device`, before anything else of TensorFlow's runs. Raises EnvironmentFailure if there is no GPU for
    --device gpu.
    """
    cores = len(physical_cores(os.sched_getaffinity(0)))
    gpus = [] if device == CPU else tf.config.list_physical_devices("GPU")
    if not gpus and device == GPU:
        raise EnvironmentFailure("--device gpu: TensorFlow sees no GPU; give --device cpu")
    if not gpus:
        tf.config.set_visible_devices([], "GPU")
        return Device(cores=cores), 0
    for each in gpus:
        tf.config.experimental.set_memory_growth(each, True)
    return Device(_name_of(gpus[0]), cores=cores), len(gpus)


def _name_of(gpu: tf.config.PhysicalDevice) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def choose_gpu(seen: int, local_rank: int, local_size: int, is_restricted: bool) -> int:
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
            f"there is no GPU for local rank {local_rank}, TensorFlow sees none on this host; install tensorflow with"
            " its CUDA packages (make install GPU=1), look at nvidia-smi, or give --device cpu"
        )
    raise EnvironmentFailure(
        f"TensorFlow sees {seen} {'GPU' if seen == 1 else 'GPUs'} for {local_size} ranks on this host; start as many"
        f" ranks as there are GPUs, set ${VISIBLE} to one GPU for each rank, or give --device cpu"
    )


def has_nvidia_gpu(devices: Path = Path("/dev")) -> bool:
    """True if the driver has made a device file for a GPU."""
    return any(devices.glob("nvidia[0-9]*"))


def why_no_gpu(visible: str | None) -> str:
    """Why TensorFlow uses no GPU, in one line. It logs the reason as a warning, which ranks suppress: ask a process."""
    if visible in HIDING:
        return f"${VISIBLE} is {visible!r}, which hides all"
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"TensorFlow gave no reason within {PROBE_TIMEOUT_S:.0f} s"
    if asked.stdout.strip().endswith("False"):
        return "this TensorFlow is built without CUDA; run: make install GPU=1"
    return reason_in(asked.stderr)


def reason_in(log: str) -> str:
    """What TensorFlow's log has about GPUs, in one line, without dates and places in its source. Pure."""
    texts = [found["text"] for line in log.splitlines() if (found := _LOGGED.match(line))]
    reasons = dict.fromkeys(text.partition(". ")[0].rstrip(". ") for text in texts if _OF_GPU.search(text))
    return "TensorFlow: " + "; ".join(reasons) if reasons else "TensorFlow gives no reason"


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
