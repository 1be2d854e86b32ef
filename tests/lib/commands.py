"""Run the commands as a user does, and check how they end."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).parents[2]

BIN = Path(sys.executable).parent

HOROVODRUN = (BIN / "horovodrun",)

DIGITS_OPTIONS = ("--size", "28", "--color", "gray", "--format", "png", "--pack-size", "32KB")

PATIENCE_S = 60  # for a state that comes at once unless something is wrong

Finished = subprocess.CompletedProcess[str]
T = TypeVar("T")


# Variables of the caller that would decide what the commands do.
_FOREIGN = re.compile(
    r"(HADOOP|YARN|MAPRED|HDFS|HOROVOD|RINGSLICE|TF|KERAS|CUDA|AIRFLOW|MRJOB|LC)_.*"
    r"|CLASSPATH|ARROW_LIBHDFS_DIR|LIBHDFS_OPTS|_?J\w+_OPTIONS|COLUMNS|LINES|TZ|LANGUAGE|(NO|FORCE)_COLOR|CLICOLOR.*"
    r"|PYTHON(PATH|STARTUP|WARNINGS|OPTIMIZE|HOME|SAFEPATH|IOENCODING|UTF8|HASHSEED)"
)


def forget_caller() -> None:
    """Drop from this process's environment the variables that would decide what the tests see.

    A PYTHONPATH that is this project stays.
    """
    for name, value in list(os.environ.items()):
        if _FOREIGN.fullmatch(name) and value != str(REPOSITORY):
            del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"


def environment(**more: str) -> dict[str, str]:
    """The environment of a user who has activated the project's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGSLICE_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "2"} | more


def run(
    *words: object,
    cwd: Path = REPOSITORY,
    timeout_s: float = 600,
    variables: Mapping[str, str] | None = None,
    **more: str,
) -> Finished:
    """Run a command to its end, with these ``variables`` in its environment; its output as text."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment(**{**(variables or {}), **more}),
        timeout=timeout_s,
        capture_output=True,
        text=True,
    )


def peak_growth_bytes(prepare: str, work: str) -> int:
    """By how much the peak memory of a new Python process grows while it does ``work``, after ``prepare``."""
    peak = 'int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])'
    code = f"import re\n{prepare}\nbefore = {peak}\n{work}\nprint({peak} - before)"
    return int(succeeded(run(sys.executable, "-c", code)).stdout.split()[-1]) << 10


def ringslice(*words: object, **variables: str) -> Finished:
    return run("ringslice", *words, variables=variables)


def horovodrun(ranks: int, *words: object, timeout_s: float = 240, **variables: str) -> Finished:
    """Run a program of ranks. One of `tests.lib.ranks` is a script in its own folder: it finds `tests` by this path."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return run(*HOROVODRUN, "-np", ranks, *words, timeout_s=timeout_s, variables={"PYTHONPATH": path, **variables})


def succeeded(finished: Finished) -> Finished:
    """The same, if it exited 0; what it printed, if not."""
    assert finished.returncode == 0, (
        f"{finished.args} exited {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
    )
    return finished


def failed(finished: Finished, status: int, line: str) -> None:
    """It exited with ``status`` and one line of error that contains ``line``; no traceback."""
    errors = [each for each in finished.stderr.splitlines() if "ringslice: error:" in each]
    assert finished.returncode == status, f"{finished.returncode}: {finished.stderr}"
    assert len(errors) == 1, finished.stderr
    assert line in errors[0], errors[0]
    assert "Traceback" not in finished.stderr, finished.stderr


def wait_until(
    is_there: Callable[[], T],
    process: "subprocess.Popen[str] | subprocess.Popen[bytes] | None" = None,
    timeout_s: float = 300,
    poll_s: float = 0.02,
    message: Callable[[], object] = lambda: "",
) -> T:
    """Wait for a state, which is returned. Fail with ``message`` if ``process`` ends before, or after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (state := is_there()):
        assert process is None or process.poll() is None, f"it ended before: {message()}"
        assert time.monotonic() < deadline, message()
        time.sleep(poll_s)
    return state


def contents(folder: Path, *left_out: str) -> dict[str, bytes]:
    """Every file below, by its path; without the names in ``left_out``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in left_out)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip_bit(path: Path, position: int) -> None:
    """The last bit of the byte at ``position``, from the end where that is negative, is another one from now on."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def copy_some(digits: Path, folder: Path, labels: str, images: slice) -> Path:
    """Of each of these labels some images, into a folder by class that is made or grows; returns it."""
    for label in labels:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for path in sorted((digits / label).iterdir())[images]:
            shutil.copy(path, folder / label)
    return folder
