"""Loads libhdfs and starts its JVM, in a process of its own: ``python -m etl.doctor.libhdfs_probe``. Connects to
nothing.

It prints the libhdfs.so that pyarrow has loaded. What Java says goes to standard error.
"""

import os
import re
import resource
from pathlib import Path

from pyarrow import fs

from etl.errors import DEBUG_VARIABLE, EnvironmentFailure, end_process, run_reporting
from etl.storage.hdfs_settings import HdfsSettings
from etl.storage.libhdfs import start_environment

_LOADED = re.compile(r"\s(/\S.*/libhdfs\.so\S*)$", re.MULTILINE)


def main() -> int:
    """Returns the exit status: 3, with one line, where something fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ[DEBUG_VARIABLE] = "1"  # what Java says is wanted
    start_environment(HdfsSettings.from_environment().heap_bytes)
    os.environ["LIBHDFS_OPTS"] += f" -XX:ErrorFile={os.devnull}"  # a crash writes no hs_err file here
    try:
        fs.HadoopFileSystem("127.0.0.1", 1)  # makes a client and asks it nothing: no NameNode is needed
    except OSError as error:
        loaded = _loaded()
        raise EnvironmentFailure(f"{loaded or 'libhdfs.so'}: {error}") from None
    print(_loaded())
    return 0


def _loaded() -> str:
    found = _LOADED.search(Path("/proc/self/maps").read_text())
    return found[1] if found else ""


if __name__ == "__main__":
    end_process(run_reporting(main))
