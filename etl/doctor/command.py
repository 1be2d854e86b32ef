"""``ringslice doctor``: all checks by group, and those of Python, Horovod, the native op and GPUs."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata

from etl.doctor import hadoop
from etl.doctor.check import WARNING, Check, Context, Skipped, run, run_checks, run_python
from etl.errors import EnvironmentFailure

PACKAGES = ("ringslice", "pyarrow", "mrjob", "hdfs-native", "numpy", "pillow")
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
IMPORT_TIMEOUT_S = 90.0  # TensorFlow from a cold disk
GPU_TIMEOUT_S = 20.0

_WITHOUT_GPU = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
_INSTALL = "run: make install"
_BUILD = """
import json, horovod.tensorflow as hvd
print(json.dumps({"Gloo": bool(hvd.gloo_built()), "NCCL": bool(hvd.nccl_built()), "MPI": bool(hvd.mpi_built())}))
"""
_NATIVE_OP = "from train.tf_backend.records_op import why_not_native; print(why_not_native() or '')"


GROUPS = ("python", "hadoop", "storage", "yarn", "tasks", "training")


def diagnose(context: Context, groups: Sequence[str], as_json: bool) -> int:
    """Run the checks of ``groups``, in order, of all if it is empty; returns 0 if nothing fails, else 3."""
    return run_checks(context, _checks(context), groups or GROUPS, as_json)


def _checks(context: Context) -> Iterator[Check]:
    built: dict[str, bool] = {}
    yield "python", "version", lambda: f"{sys.version.split()[0]} ({sys.executable})"
    yield "python", "packages", _packages
    yield from hadoop.checks(context)
    yield "training", "Horovod", lambda: _horovod(built)
    yield "training", "native op", _native_op
    yield "training", "GPUs", lambda: _gpus(built)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> str:
    return ", ".join(f"{name} {_version(name) or 'of unknown version'}" for name in PACKAGES)


def _horovod(built: dict[str, bool]) -> str:
    horovod = _version("horovod")
    if horovod is None:
        raise Skipped(f"not installed; only needed to train ({_INSTALL})")
    output = run_python(["-c", _BUILD], IMPORT_TIMEOUT_S, _INSTALL, **_WITHOUT_GPU)
    built |= json.loads(output.splitlines()[-1])
    ways = " and ".join(name for name, is_built in built.items() if is_built)
    if not ways:
        raise EnvironmentFailure(f"{horovod}, built without Gloo, NCCL and MPI: ranks cannot communicate; {_INSTALL}")
    return f"{horovod}, built with {ways}"


def _native_op() -> str:
    if not any(map(_version, TENSORFLOWS)):
        raise Skipped(f"not built, because there is no TensorFlow; only needed to train ({_INSTALL})")
    if reason := run_python(["-c", _NATIVE_OP], IMPORT_TIMEOUT_S, _INSTALL, **_WITHOUT_GPU).strip():
        raise Skipped(f"{reason}: the trainer's reader works without it, more slowly; {_INSTALL}", WARNING)
    return "the reader's native op is built for this TensorFlow"


def _gpus(built: dict[str, bool]) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Skipped("no nvidia-smi, so no NVIDIA GPU; training uses the CPU")
    words = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = Counter(run(words, GPU_TIMEOUT_S, "look at the driver").splitlines())
    text = "; ".join(f"{number} of {gpu}" for gpu, number in gpus.items()) or "none"
    if gpus and built and not built["NCCL"]:
        raise Skipped(
            f"{text}; Horovod is built without NCCL, so gradients go through the CPU; {_INSTALL} GPU=1", WARNING
        )
    return text
