"""The checks of a machine that trains: Horovod and the reader's native op against TensorFlow, and GPUs."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from importlib import metadata

from etl.doctor.check import WARNING, Check, Notice
from etl.doctor.child import run_python, run_within
from etl.errors import EnvironmentFailure

GROUP = "training"
IMPORT_TIMEOUT_S = 90.0  # TensorFlow from a cold disk
ASK_TIMEOUT_S = 20.0
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")

_BUILD = """
import json, horovod.tensorflow as hvd
print(json.dumps({"Gloo": bool(hvd.gloo_built()), "NCCL": bool(hvd.nccl_built()), "MPI": bool(hvd.mpi_built())}))
"""
_NATIVE_OP = "from train.tf_backend.records_op import why_not_native; print(why_not_native() or '')"
_NCCL_VERSION = """
import ctypes, glob, sys
packaged = [found for each in sys.path for found in glob.glob(each + "/nvidia/nccl/lib/libnccl.so*")]
for name in ["libnccl.so.2", *packaged]:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        continue
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    print(number.value)
    break
"""


def checks() -> Iterator[Check]:
    """Horovod, the reader's native op, and each GPU that the driver tells of."""
    built: dict[str, bool] = {}
    yield Check(GROUP, "Horovod", lambda: _horovod(built))
    yield Check(GROUP, "native op", _native_op)
    gpus: list[list[str]] = []
    yield Check(GROUP, "GPUs", lambda: _gpus(gpus, built))
    for number, name, memory, driver in gpus:
        yield Check(GROUP, f"GPU {number}", lambda told=f"{name}, {memory}, driver {driver}": told)  # type: ignore[misc]
    if gpus:
        yield Check(GROUP, "NCCL", _nccl)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _horovod(built: dict[str, bool]) -> str:
    horovod = _version("horovod")
    tensorflow = next(filter(None, map(_version, TENSORFLOWS)), None)
    if horovod is None:
        raise Notice("not installed; only needed to train (run: make install)")
    if tensorflow is None:
        raise EnvironmentFailure(f"{horovod} is installed, and no TensorFlow; run: make install")
    tag = "tf" + re.sub(r"\D", "", tensorflow)
    made_for = horovod.partition("+")[2]
    if made_for and made_for != tag:
        raise EnvironmentFailure(f"{horovod} was built for another TensorFlow than {tensorflow}; run: make install")
    # the trainer's own messages are not wanted, nor its GPUs
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    ended = run_python(IMPORT_TIMEOUT_S, ["-c", _BUILD], **variables)
    if ended.status or ended.timeout_s is not None:
        raise EnvironmentFailure(f"{horovod} cannot be imported ({ended.complaint}); run: make install")
    built |= json.loads(ended.output.splitlines()[-1])
    ways = " and ".join(name for name, there in built.items() if there) or "neither Gloo, NCCL nor MPI"
    told = f"{horovod} with TensorFlow {tensorflow}, built with {ways}"
    if not any(built.values()):
        raise EnvironmentFailure(f"{told}: ranks cannot speak with each other; run: make install")
    return told


def _native_op() -> str:
    if next(filter(None, map(_version, TENSORFLOWS)), None) is None:
        raise Notice("not built, for there is no TensorFlow; only needed to train (run: make install)")
    ended = run_python(IMPORT_TIMEOUT_S, ["-c", _NATIVE_OP], TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    if ended.status or ended.timeout_s is not None:
        raise EnvironmentFailure(f"{ended.complaint}; run: make install")
    reason = ended.output.strip()
    if reason:
        raise Notice(f"{reason}: the trainer's reader does without, more slowly; run: make install", WARNING)
    return "the reader's native op is built for this TensorFlow"


def _gpus(gpus: list[list[str]], built: dict[str, bool]) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Notice("no nvidia-smi, so no NVIDIA GPU; training takes the CPU")
    query = "--query-gpu=index,name,memory.total,driver_version"
    ended = run_within(ASK_TIMEOUT_S, [program, query, "--format=csv,noheader"])
    if ended.status or ended.timeout_s is not None:
        said = ended.output.strip().splitlines()
        raise EnvironmentFailure(
            f"{program}: {said[-1] if said and not ended.errors.strip() else ended.complaint}; look at the driver"
        )
    gpus += [row for row in csv.reader(ended.output.splitlines(), skipinitialspace=True) if len(row) == 4]
    header = run_within(ASK_TIMEOUT_S, [program])
    cuda = re.search(r"CUDA Version: *([\d.]+)", header.output)
    told = f"{len(gpus)}" + (f", CUDA {cuda[1]}" if cuda else "")
    if gpus and built and not built["NCCL"]:
        raise Notice(
            f"{told}; Horovod is built without NCCL, so gradients go through the CPU; run: make install GPU=1", WARNING
        )
    return told


def _nccl() -> str:
    ended = run_python(ASK_TIMEOUT_S, ["-c", _NCCL_VERSION])
    if ended.status or ended.timeout_s is not None:
        raise EnvironmentFailure(f"{ended.complaint}; install NCCL again")
    if not ended.output.strip():
        raise Notice("no libnccl.so.2 found; only needed for several GPUs")
    number = int(ended.output)
    parts = (number // 10000, number // 100 % 100) if number >= 10000 else (number // 1000, number // 100 % 10)
    return f"{parts[0]}.{parts[1]}.{number % 100}"
