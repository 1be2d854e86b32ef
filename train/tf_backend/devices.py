"""The device of this rank: a GPU of its own, or the CPU."""

import functools
import os
import re
import subprocess
import sys

import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.config.settings import CPU, GPU
from train.monitor.launcher import local_rank, local_size
from train.parallel.cores import own_cores
from train.parallel.devices import VISIBLE, Device, choose_gpu, gpu_uuid, has_nvidia_gpu
from train.parallel.startup import suppress_stderr

HIDING = ("", "-1")  # values of it that hide all GPUs
PROBE_TIMEOUT_S = 30.0  # TensorFlow from a cold disk

_PROBE = "import tensorflow as tf; tf.config.list_physical_devices('GPU'); print(tf.test.is_built_with_cuda())"
_LOGGED = re.compile(r"(?:\d{4}-\d\d-\d\d \S+: )?[IWEF]\d{0,4} [^]]*\] (?P<text>.*)")
_OF_GPU = re.compile(r"(?i)(?<![a-z])(cuda|cudnn|cuinit|gpus?|dlopen|libcu\w*|nvml)(?![a-z])")


@functools.cache
def take_device(device: str) -> Device:
    """Take this rank's GPU, or none.

    The first time must be before anything else of TensorFlow's runs: from then on devices cannot be chosen.
    """
    cores, visible, found = len(own_cores()), os.environ.get(VISIBLE), _visible_gpus(device)
    if not found and device != GPU:
        tf.config.set_visible_devices([], "GPU")
        return Device(cores=cores, skipped=_skipped(device, visible))
    try:
        number = choose_gpu(len(found), local_rank(), local_size(), visible is not None)
    except EnvironmentFailure as error:
        reason = f" ({why_no_gpu(visible)})" if not found and local_rank() == 0 else ""
        return Device(cores=cores, lacks=f"--device {device}: {error}{reason}")
    own = found[number]
    tf.config.set_visible_devices(own, "GPU")
    tf.config.experimental.set_memory_growth(own, True)
    return Device(_name_of(own), gpu_uuid(number), cores)


def take_all_gpus(device: str) -> tuple[Device, int]:
    """Take all GPUs that TensorFlow sees, or none; what this process computes on, and the number of these GPUs. The
    processes that one launcher started on a host share them.

    As for `take_device`, before anything else of TensorFlow's runs. Raises EnvironmentFailure if there is no GPU for
    --device gpu.
    """
    cores, visible, found = len(own_cores()), os.environ.get(VISIBLE), _visible_gpus(device)
    gpus = found[local_rank() :: local_size()]
    tf.config.set_visible_devices(gpus, "GPU")
    if not gpus and device == GPU:
        reason = why_no_gpu(visible) if not found else f"of {len(found)} none is left for local rank {local_rank()}"
        raise EnvironmentFailure(f"--device gpu: TensorFlow sees no GPU ({reason}); give --device cpu")
    if not gpus:
        return Device(cores=cores, skipped=_skipped(device, visible) if not found else ""), 0
    for each in gpus:
        tf.config.experimental.set_memory_growth(each, True)
    return Device(_name_of(gpus[0]), cores=cores), len(gpus)


def _visible_gpus(device: str) -> list[tf.config.PhysicalDevice]:
    with suppress_stderr():  # TensorFlow logs a missing driver as an error
        return [] if device == CPU else tf.config.list_physical_devices("GPU")


def _skipped(device: str, visible: str | None) -> str:
    """Why a GPU of this host is not used though it may be; empty if there is none, or another rank says so."""
    is_skipped = device != CPU and visible not in HIDING and local_rank() == 0 and has_nvidia_gpu()
    return why_no_gpu(visible) if is_skipped else ""


def _name_of(gpu: tf.config.PhysicalDevice) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


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
