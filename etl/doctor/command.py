"""``ringslice doctor``: all groups of checks, and those of this machine: Python, Horovod, the native op, GPUs."""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata

from etl.doctor import hadoop, storage
from etl.doctor.check import WARNING, Checks, Context, Skipped, run, run_checks, run_python
from etl.errors import EnvironmentFailure

PYTHON, TRAINING = "Python", "training"
PACKAGES = ("ringslice", "pyarrow", "mrjob", "hdfs-native", "numpy", "pillow")
MIN_PYTHON, FIRST_UNSUPPORTED_PYTHON = (3, 11), (3, 13)
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
IMPORT_TIMEOUT_S = 90.0  # TensorFlow from a cold disk
GPU_TIMEOUT_S = 20.0

_WITHOUT_GPU = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
_BUILD = """
import json, horovod.tensorflow as hvd
print(json.dumps({"Gloo": bool(hvd.gloo_built()), "NCCL": bool(hvd.nccl_built()), "MPI": bool(hvd.mpi_built())}))
"""
_NATIVE_OP = "from train.tf_backend.records_op import why_not_native; print(why_not_native() or '')"


def _python_checks(context: Context) -> Checks:
    yield PYTHON, "version", _python_version
    yield PYTHON, "packages", _packages


def _training_checks(context: Context) -> Checks:
    """Horovod, the reader's native op, and the GPUs that the driver reports."""
    built: dict[str, bool] = {}
    yield TRAINING, "Horovod", lambda: _horovod(built)
    yield TRAINING, "native op", _native_op
    yield TRAINING, "GPUs", lambda: _gpus(built)


_GROUPS: dict[str, Callable[[Context], Checks]] = {
    "python": _python_checks,
    "hadoop": hadoop.client_checks,
    "storage": storage.checks,
    "yarn": hadoop.yarn_checks,
    "tasks": hadoop.task_checks,
    "training": _training_checks,
}
GROUPS = tuple(_GROUPS)


def diagnose(context: Context, groups: Sequence[str], as_json: bool) -> int:
    """Run the checks of ``groups``, in order, of all if it is empty; returns 0 if nothing fails, else 3."""
    every = (check for name, checks in _GROUPS.items() if not groups or name in groups for check in checks(context))
    return run_checks(context, every, as_json)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _python_version() -> str:
    text = f"{sys.version.split()[0]} ({sys.executable})"
    if not MIN_PYTHON <= sys.version_info[:2] < FIRST_UNSUPPORTED_PYTHON:
        raise EnvironmentFailure(f"{text}: mrjob needs Python 3.11 or 3.12; install one and run: make install")
    return text


def _packages() -> str:
    versions = {name: _version(name) for name in PACKAGES}
    if missing := [name for name, version in versions.items() if version is None]:
        raise EnvironmentFailure(f"{', '.join(missing)} missing; run: make install (or: pip install -e .)")
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _horovod(built: dict[str, bool]) -> str:
    horovod = _version("horovod")
    tensorflow = next(filter(None, map(_version, TENSORFLOWS)), None)
    if horovod is None:
        raise Skipped("not installed; only needed to train (run: make install)")
    if tensorflow is None:
        raise EnvironmentFailure(f"{horovod} is installed, and no TensorFlow; run: make install")
    made_for = horovod.partition("+")[2]
    if made_for and made_for != "tf" + re.sub(r"\D", "", tensorflow):
        raise EnvironmentFailure(f"{horovod} was built for another TensorFlow than {tensorflow}; run: make install")
    result = run_python(["-c", _BUILD], IMPORT_TIMEOUT_S, **_WITHOUT_GPU)
    if result.status:
        raise EnvironmentFailure(f"{horovod} cannot be imported ({result.reason}); run: make install")
    built |= json.loads(result.output.splitlines()[-1])
    ways = " and ".join(name for name, is_built in built.items() if is_built) or "neither Gloo, NCCL nor MPI"
    text = f"{horovod} with TensorFlow {tensorflow}, built with {ways}"
    if not any(built.values()):
        raise EnvironmentFailure(f"{text}: ranks cannot communicate; run: make install")
    return text


def _native_op() -> str:
    if not any(map(_version, TENSORFLOWS)):
        raise Skipped("not built, because there is no TensorFlow; only needed to train (run: make install)")
    result = run_python(["-c", _NATIVE_OP], IMPORT_TIMEOUT_S, **_WITHOUT_GPU)
    if result.status:
        raise EnvironmentFailure(f"{result.reason}; run: make install")
    if reason := result.output.strip():
        raise Skipped(f"{reason}: the trainer's reader works without it, more slowly; run: make install", WARNING)
    return "the reader's native op is built for this TensorFlow"


def _gpus(built: dict[str, bool]) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Skipped("no nvidia-smi, so no NVIDIA GPU; training uses the CPU")
    result = run([program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], GPU_TIMEOUT_S)
    if result.status:
        lines = result.output.strip().splitlines()
        reason = lines[-1] if lines and not result.errors.strip() else result.reason
        raise EnvironmentFailure(f"{program}: {reason}; look at the driver")
    gpus = Counter(result.output.splitlines())
    text = "; ".join(f"{number} of {gpu}" for gpu, number in gpus.items()) or "none"
    if gpus and built and not built["NCCL"]:
        raise Skipped(
            f"{text}; Horovod is built without NCCL, so gradients go through the CPU; run: make install GPU=1", WARNING
        )
    return text
