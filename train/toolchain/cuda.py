"""CUDA's compiler and NCCL, to build Horovod for GPUs: those of this machine or environment, or of the package index.

No GPU and no driver are needed. Imports the standard library only.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

# The last release for CUDA 12 that the index has lacks nvcc itself. What 13 compiles needs a driver from 580 on.
COMPILER_WHEELS = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
)
CUDA_HOMES = ("/usr/local/cuda", "/usr/lib/cuda", "/usr")
PACKAGED_NCCL = "nvidia/nccl"  # where TensorFlow's CUDA packages have it, below site-packages
# Of Horovod's library: it finds NCCL in the environment it is installed into, wherever that is.
NCCL_RUNPATH = rf"\$ORIGIN/../../{PACKAGED_NCCL}/lib"

# Changes of Horovod's source for GPUs: (file, the text to replace, its replacement, why)
SOURCE_CHANGES = (
    (
        "horovod/tensorflow/mpi_ops.cc",
        """// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
""",
        """#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
""",
        "no library of TensorFlow exports this function any more",
    ),
    (
        "horovod/tensorflow/CMakeLists.txt",
        'set_target_properties(${TF_TARGET_LIB} PROPERTIES PREFIX "")\n',
        'set_target_properties(${TF_TARGET_LIB} PROPERTIES PREFIX ""'
        f' BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "{NCCL_RUNPATH}")\n',
        "the path of NCCL while it was built is no other machine's",
    ),
    (
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
        "CUDA's headers need it",
    ),
)


class MissingError(Exception):
    """What a build for GPUs lacks, and what to do about it."""


def gpu_settings(cache: Path, work: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of Horovod's build for GPUs. Raises MissingError.

    CUDA is looked for where ``HOROVOD_CUDA_HOME`` or ``CUDA_HOME`` say, then in the usual places; then it is fetched
    into ``cache``. NCCL is looked for where ``HOROVOD_NCCL_HOME`` or ``NCCL_HOME`` say, then in this environment.
    """
    cuda = find_home("bin/nvcc", "CUDA_HOME", CUDA_HOMES, environment) or fetch_compiler(cache)
    nccl = find_home("include/nccl.h", "NCCL_HOME", (), environment) or packaged_nccl(work)
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(cuda),
        "HOROVOD_NCCL_HOME": str(nccl),
        "HOROVOD_NCCL_LINK": "SHARED",
        "CUDAToolkit_ROOT": str(cuda),
        "CUDA_PATH": str(cuda),
        "CPLUS_INCLUDE_PATH": str(cuda / "include" / "cccl"),
    }


def find_home(file: str, variable: str, usual: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """The first folder with ``file``: that of ``HOROVOD_variable``, of ``variable``, or a usual one.

    Raises MissingError if a variable names a folder without it.
    """
    for name in (f"HOROVOD_{variable}", variable):
        if home := environment.get(name):
            if not (Path(home) / file).exists():
                raise MissingError(f"${name} is {home}, which has no {file}; correct it, or unset it")
            return Path(home)
    return next((Path(home) for home in usual if (Path(home) / file).exists()), None)


def fetch_compiler(cache: Path) -> Path:
    """CUDA's compiler and headers from the package index, 120 MB, kept in ``cache``. Raises MissingError."""
    folder = cache / "cuda" / COMPILER_WHEELS[0].partition("==")[2]
    home = folder / "nvidia" / "cu13"
    if not folder.exists():
        print("build_horovod: fetching CUDA's compiler from the package index, once", flush=True)
        attempt = folder.with_name(f".{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-compile", "--target", str(attempt), *COMPILER_WHEELS]
        if subprocess.run(command, check=False).returncode:
            raise MissingError("CUDA's compiler cannot be fetched; install CUDA, and set CUDA_HOME to its folder")
        made = attempt / home.relative_to(folder)
        (made / "lib64").symlink_to("lib")  # where nvcc looks
        (made / "lib" / "libcudart.so").symlink_to("libcudart.so.13")  # what CMake looks for
        attempt.rename(folder)
    return home


def packaged_nccl(work: Path) -> Path:
    """NCCL of this environment's packages, under the names by which a linker looks for it. Raises MissingError."""
    packaged = Path(sysconfig.get_path("purelib")) / PACKAGED_NCCL
    if not (packaged / "include" / "nccl.h").exists():
        raise MissingError(
            "NCCL is missing; install TensorFlow's CUDA packages: pip install 'tensorflow[and-cuda]', or set NCCL_HOME"
        )
    home = work / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(packaged / "include")
    (home / "lib" / "libnccl.so").symlink_to(packaged / "lib" / "libnccl.so.2")
    return home
