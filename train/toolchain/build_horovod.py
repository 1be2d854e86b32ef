#!/usr/bin/env python3
"""Build Horovod for the TensorFlow of this environment, and install it.

Horovod's last release (0.28.1, 2023) is a source distribution that does not compile against today's TensorFlow.
This script takes that sdist by name from the package index, checks its SHA-256, makes some small source changes,
builds a wheel (Gloo for the ring, with --gpu also NCCL, no MPI) and keeps it in a cache outside the tree, keyed by
everything that decides its bytes: sdist, changes, build settings, Python and TensorFlow. Once it is cached, a run takes
seconds.

    python train/toolchain/build_horovod.py            # build or take from the cache, then install
    python train/toolchain/build_horovod.py --jobs 8   # more compilers at once
    python train/toolchain/build_horovod.py --gpu      # for TensorFlow with its CUDA packages

Needs in the environment: TensorFlow, ``setuptools<81``, wheel, packaging and cmake 3; in the system: a C++ compiler.
What --gpu needs is in train/toolchain/cuda.py. Imports the standard library only.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from train.toolchain import cuda
from train.toolchain.horovod_changes import SOURCE_CHANGES

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}

# run after a build for GPUs, which is of no use if it cannot be loaded or has no NCCL
CHECK = "import horovod.tensorflow as hvd; assert hvd.nccl_built(), 'it has no NCCL'"


def main() -> int:
    """Build or take from the cache, then install; returns the exit status, 3 where the environment fails."""
    options = parse_arguments()
    try:
        tensorflow = cuda_tensorflow_version() if options.gpu else tensorflow_version()
        wheel_folder = cache_folder(options.cache, tensorflow, options.gpu)
        wheel = cached_wheel(wheel_folder)
        if wheel is None:
            require_compiler()
            wheel = build_wheel(wheel_folder, tensorflow, options)
        else:
            print(f"build_horovod: {wheel.name} is in the cache", flush=True)
        if is_installed(wheel):
            print(f"build_horovod: {wheel.name} is installed", flush=True)
        else:
            # the wheel's needs come from the index, the wheel itself from the cache
            run([sys.executable, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel)])
            run([sys.executable, "-m", "pip", "install", "--quiet", str(wheel)])
        if options.gpu:
            require_nccl()
    except (BuildError, OSError, cuda.MissingError) as error:
        print(f"build_horovod: {error}", file=sys.stderr)
        return 3
    return 0


class BuildError(Exception):
    """The environment cannot build Horovod; the message says what to do about it."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Build Horovod for this environment's TensorFlow, and install it.",
        epilog="example: python train/toolchain/build_horovod.py --jobs 8",
    )
    add_cache_option(parser, "wheels")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (default: %(default)s)"
    )
    parser.add_argument("--gpu", action="store_true", help="build with NCCL, for TensorFlow with its CUDA packages")
    return parser.parse_args()


def add_cache_option(parser: argparse.ArgumentParser, built: str) -> None:
    """Add --cache, the folder for what is ``built``, by default as `make` has it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--cache", type=Path, default=home / "ringslice", help=f"folder for {built} (default: %(default)s)"
    )


def tensorflow_version() -> str:
    """The version of this environment's TensorFlow. Raises BuildError if it has none."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise BuildError("no TensorFlow in this environment; install it first: pip install 'ringslice[train]'")


def cuda_tensorflow_version() -> str:
    """The version of the package with CUDA. Raises BuildError; both packages together overwrite each other's files."""
    names = {each.name.replace("_", "-") for each in importlib.metadata.distributions()}
    installed = names & {"tensorflow", "tensorflow-cpu"}
    if installed != {"tensorflow"}:
        raise BuildError(
            f"--gpu needs tensorflow[and-cuda] alone, and here is {' and '.join(sorted(installed)) or 'no TensorFlow'};"
            " run: make install GPU=1, which makes an environment of its own"
        )
    return tensorflow_version()


def require_nccl() -> None:
    """Raise BuildError unless Horovod can be loaded here and has NCCL."""
    checked = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    if checked.returncode:
        reason = (checked.stderr.strip().splitlines() or [f"status {checked.returncode}"])[-1]
        raise BuildError(f"Horovod was built for GPUs, and cannot be used: {reason}")
    print("build_horovod: Horovod is loaded, with NCCL", flush=True)


def is_installed(wheel: Path) -> bool:
    """True if the files that are installed are those of ``wheel``: other source changes leave the version as it is.

    A wheel names its files with their SHA-256, and so does what was installed from it (PEP 376).
    """
    try:
        installed = importlib.metadata.distribution("horovod").read_text("RECORD") or ""
    except importlib.metadata.PackageNotFoundError:
        return False
    with zipfile.ZipFile(wheel) as archive:
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        lines = archive.read(record).decode().splitlines()
    return {line for line in lines if line.startswith("horovod/")} <= set(installed.splitlines())


def cache_folder(cache: Path, tensorflow: str, gpu: bool) -> Path:
    """The folder of the wheel for this TensorFlow, Python and machine, by all that decides its bytes."""
    identity: list[object] = [SDIST_SHA256, SOURCE_CHANGES, SETTINGS, sys.version_info[:2], tensorflow]
    identity.append(os.uname().machine)
    homes = [os.environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "HOROVOD_NCCL_HOME", "NCCL_HOME")]
    key = key_of([*identity, cuda.SOURCE_CHANGES, cuda.COMPILER_WHEELS, homes] if gpu else identity)
    return cache / "wheels" / f"horovod-{VERSION}-tf{tensorflow}-py{sys.version_info[0]}{sys.version_info[1]}-{key}"


def key_of(identity: list[object]) -> str:
    """What is in the name of something built: a hash of all that decides its bytes."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def publish(built: Path, final: Path) -> None:
    """Copy; who looks meanwhile finds all of it or nothing."""
    final.parent.mkdir(parents=True, exist_ok=True)
    attempt = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.copyfile(built, attempt)
    attempt.rename(final)


def cached_wheel(folder: Path) -> Path | None:
    """The wheel in ``folder``; None if it is not built yet."""
    wheels = sorted(folder.glob("horovod-*.whl"))
    return wheels[0] if wheels else None


def require_compiler() -> None:
    """Raise BuildError if a tool that the build needs is missing."""
    for tool, package in (("g++", "g++"), ("make", "make")):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is missing; install it first: apt-get install {package}")


def build_wheel(folder: Path, tensorflow: str, options: argparse.Namespace) -> Path:
    """Build in a temporary folder; the wheel appears in ``folder`` whole. Raises BuildError with the log's end."""
    kind = " and GPUs" if options.gpu else ""
    print(
        f"build_horovod: building Horovod {VERSION} for TensorFlow {tensorflow}{kind}, 2 to 5 minutes, once", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="ringslice-horovod-") as name:
        work = Path(name)
        settings = SETTINGS | (cuda.gpu_settings(options.cache, work, os.environ) if options.gpu else {})
        source = unpack(download(work), work)
        for change in (*SOURCE_CHANGES, *(cuda.SOURCE_CHANGES if options.gpu else ())):
            replace_once(source, *change[:3])
        log = work / "build.log"
        environment = os.environ | settings
        environment["HOROVOD_LOCAL_VERSION"] = "tf" + re.sub(r"\D", "", tensorflow)
        environment["CMAKE_BUILD_PARALLEL_LEVEL"] = environment["MAX_JOBS"] = str(options.jobs)
        environment["MAKEFLAGS"] = f"-j{options.jobs}"
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            str(work),
            str(source),
        ]
        with log.open("wb") as output:
            status = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
        built = cached_wheel(work)
        if status != 0 or built is None:
            of_build = log.read_text(errors="replace").partition("error: subprocess-exited-with-error")[0]
            tail = "\n".join(of_build.splitlines()[-40:])
            raise BuildError(f"the build failed; its last lines:\n{tail}")
        final = folder / built.name
        publish(built, final)
        return final


def download(work: Path) -> Path:
    """The sdist from the package index. Raises BuildError if its SHA-256 is not the known one."""
    target = work / "sdist"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", "horovod", "--dest", str(target), f"horovod=={VERSION}"]
    run(command)
    sdist = target / f"horovod-{VERSION}.tar.gz"
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise BuildError(f"{sdist.name} has SHA-256 {digest}, expected {SDIST_SHA256}; not building it")
    return sdist


def unpack(sdist: Path, work: Path) -> Path:
    """Unpack the sdist into ``work``; the folder of its source."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(work)  # noqa: S202 - its SHA-256 is that of the file that was looked at
    return work / f"horovod-{VERSION}"


def replace_once(source: Path, name: str, old: str, new: str) -> None:
    """Replace ``old`` in the source file ``name`` by ``new``, once. Raises BuildError if it is not there."""
    path = source / name
    text = path.read_text()
    if old not in text:
        raise BuildError(f"{name} no longer holds {old!r}; this script's source changes need a look")
    path.write_text(text.replace(old, new, 1))


def run(command: list[str]) -> None:
    """Run a command. Raises BuildError if it fails."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise BuildError(f"status {status} from: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
