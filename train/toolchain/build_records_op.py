"""Build the native part of the reader's way into TensorFlow, and install it into this environment.

One small file, ``train/toolchain/native/records_op.cc``, against the TensorFlow of this environment: about 20 seconds.
The library is kept in a cache outside the tree, and its name says what decides its bytes: source, compiler options,
Python and TensorFlow. One that was built for anything else is never loaded. Without it the trainer works too, more
slowly.

    python -m train.toolchain.build_records_op

Needs in the environment: TensorFlow; in the system: a C++ compiler.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from train.toolchain.build_horovod import (
    BuildError,
    add_cache_option,
    key_of,
    publish,
    require_compiler,
    tensorflow_version,
)

SOURCE = Path(__file__).parent / "native" / "records_op.cc"
COMPILER_OPTIONS = ("-O2", "-fPIC", "-shared", "-w")  # -w: TensorFlow's own headers warn by the page

_FLAGS = """
import json, tensorflow as tf
print(json.dumps([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()]))
"""


def main() -> int:
    """Build or take from the cache, then install; returns the exit status, 3 where the environment fails."""
    parser = argparse.ArgumentParser(description="Build and install the reader's native TensorFlow op.")
    add_cache_option(parser, "libraries")
    options = parser.parse_args()
    try:
        target = installed_library()
        cached = options.cache / "ops" / target.name
        if cached.exists():
            print(f"build_records_op: {cached.name} is in the cache", flush=True)
        else:
            build(cached)
        if not target.exists():
            publish(cached, target)
    except (BuildError, OSError) as error:
        print(f"build_records_op: {error}", file=sys.stderr)
        return 3
    print(f"build_records_op: {target.name} is installed", flush=True)
    return 0


def installed_library() -> Path:
    """Where this environment has the library, if it has it. Raises BuildError if there is no TensorFlow."""
    python, tensorflow = f"{sys.version_info[0]}{sys.version_info[1]}", tensorflow_version()
    key = key_of([SOURCE.read_text(), COMPILER_OPTIONS, python, tensorflow, os.uname().machine])
    return Path(sys.prefix) / "lib" / "ringslice" / f"records_op-tf{tensorflow}-py{python}-{key}.so"


def build(library: Path) -> None:
    """Compile; the library appears whole. Raises BuildError with the last lines of what the compiler says."""
    require_compiler()
    compile_flags, link_flags = json.loads(output_of([sys.executable, "-c", _FLAGS]).splitlines()[-1])
    with tempfile.TemporaryDirectory(prefix="ringslice-op-") as folder:
        built = Path(folder) / library.name
        output_of(["g++", *COMPILER_OPTIONS, *compile_flags, str(SOURCE), "-o", str(built), *link_flags])
        publish(built, library)


def output_of(command: list[str]) -> str:
    """The standard output of a command. Raises BuildError, with its last lines of errors, if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        tail = "\n".join(ended.stderr.splitlines()[-20:])
        raise BuildError(f"status {ended.returncode} from {command[0]}; its last lines:\n{tail}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
