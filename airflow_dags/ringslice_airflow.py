"""Airflow's operator for the commands of ringslice, and what its DAGs share. Imports airflow and the standard library.

The commands run in the environment (`make install`) of the repository that this file lies in, or of `RINGSLICE_HOME`.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import IO, Any

from airflow.sdk import Asset, BaseOperator, Context, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException

HOME = Path(os.environ.get("RINGSLICE_HOME") or Path(__file__).resolve().parent.parent).absolute()
DATA = os.environ.get("RINGSLICE_DATA") or f"{HOME}/data"
STOP_TIMEOUT_S = 50  # for a command whose task timed out; then it is killed
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ERROR, INTERRUPTED, BUSY = "ringslice: error: ", "ringslice: interrupted", "is locked by"
END = "$(?!\\n)"  # $ alone allows a line feed at the end
LINE = f"^[^\\x00-\\x1f]+{END}"
FOLDER_NAME = f"^[^-._/\\x00-\\x1f][^/\\x00-\\x1f]{{0,199}}{END}"
MAX_TEXT = 4096  # characters of a param, as of a path


class DataError(AirflowFailException):
    """Status 1: the data falls short. The task is not tried again."""


class UsageError(AirflowFailException):
    """Status 2, or a param that the DAG does not have: wrong use. The task is not tried again."""


class EnvironmentFailure(AirflowException):
    """Status 3, or a command that was stopped or killed: the machine or the cluster failed."""


RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=2), "retry_exponential_backoff": 2}
DAG_OPTIONS: dict[str, Any] = {
    **{"start_date": datetime(2025, 1, 1), "catchup": False, "is_paused_upon_creation": True, "max_active_runs": 1},
    **{"default_args": RETRIES, "tags": ["ringslice"]},
}
DATASET = Asset("image_dataset")


def text(default: str | None, help_text: str, pattern: str = LINE, **more: Any) -> Param:
    """A param that is one line of text; without a default it may be null."""
    more = {"type": "string" if default else ["null", "string"], "maxLength": MAX_TEXT, **more}
    return Param(default, help_text, pattern=pattern, **more)


def number(default: float | None, help_text: str, kind: Any = "integer", minimum: float = 0, **more: Any) -> Param:
    """A param that is a number of a JSON type, or one of a list of types; without a default it may be null."""
    return Param(default, help_text, type=["null", kind] if default is None else kind, minimum=minimum, **more)


def option(name: str, empty: str = "") -> str:
    """Template of the option ``--NAME=VALUE`` of the param of this name; of the word ``empty`` if it is empty."""
    value = f"params.{name.replace('-', '_')}"
    shown = f"'%.15g' % {value} if {value} is float else {value}"  # 2.0 is an integer of JSON
    return f"{{{{ '{empty}' if {value} in (none, '') else '--{name}=' ~ ({shown}) }}}}"


def dated(template: str, dag_run: Any, timezone: tzinfo) -> str:
    """``template`` with the day and the time of the DAG run in place of ``{date}`` and ``{time}``."""
    moment = (dag_run.logical_date or dag_run.run_after).astimezone(timezone)
    return template.replace("{date}", moment.strftime("%Y-%m-%d")).replace("{time}", moment.strftime("%H%M%S"))


def run_name(dag_run: Any) -> str:
    """Name of the training run of a DAG run: its id, as HDFS takes it for a folder's name, and the CRC-32 of the id."""
    return f"airflow-{re.sub('[^A-Za-z0-9._-]+', '-', dag_run.run_id)[:200]}-{zlib.crc32(dag_run.run_id.encode()):08x}"


def require_declared(context: Any) -> None:
    """Raise UsageError if the DAG run was given params that the DAG does not have; Airflow ignores them."""
    if unknown := sorted(set(context["dag_run"].conf or {}) - set(context["dag"].params)):
        known = ", ".join(sorted(context["dag"].params))
        raise UsageError(f"no such param: {', '.join(map(repr, unknown))}. Give: {known}")


class RingsliceOperator(BaseOperator):
    """Runs ``ringslice TASK_ID --json OPTIONS -- ARGUMENTS``, without a shell; the JSON summary is its XCom.

    Each of ``options`` and ``arguments`` is a template and one word of the command, whatever it renders to; an option
    that renders to nothing is left out. The command and all that it started end with the task, however that ends.
    """

    template_fields = ("options", "arguments")

    def __init__(self, *, options: Sequence[str] = (), arguments: Sequence[str] = (), **kwargs: Any):
        super().__init__(**kwargs)
        self.options, self.arguments = options, arguments
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> Any:
        """Run the command. Raises DataError, UsageError or EnvironmentFailure by its exit status."""
        require_declared(context)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # this process ends with Airflow's supervisor
        separated = ["--", *self.arguments] if self.arguments else []
        words = [".venv/bin/ringslice", self.task_id, "--json", *filter(None, self.options), *separated]
        self.log.info("%s", f"{shlex.join(['cd', str(HOME)])} && {shlex.join(words)}")
        with tempfile.TemporaryFile("w+") as output:
            for wait_s in (0, 5, 10, 20, 40):  # for a try that Airflow gave up, and that is about to end
                time.sleep(wait_s)
                status, error = self._run([f"{HOME}/{words[0]}", *words[1:]], output)
                if BUSY not in error:
                    break
            if status:
                failure = {1: DataError, 2: UsageError}.get(status, EnvironmentFailure)
                raise failure(f"{self.task_id} ended with status {status}: {error or 'no error line; see its log'}")
            output.seek(0)
            last = output.read().rstrip("\n").rpartition("\n")[2]
        return json.loads(last or "null")

    def on_kill(self) -> None:
        """End the command in order; `execute`, which this interrupts, waits for it."""
        if self._process:
            self._process.terminate()

    def _run(self, words: Sequence[str], output: IO[str]) -> tuple[int, str]:
        """Run a command to its end; returns its exit status and its last error line."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
        tie = {"RINGSLICE_PARENT": f"{os.getpid()} {int(signal.SIGTERM)}"}  # see tie_to_parent of etl/processes.py
        more: Any = {"cwd": HOME, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
        try:
            process = subprocess.Popen(words, env=kept | tie, errors="backslashreplace", start_new_session=True, **more)
        except OSError as error:
            remedy = "Run make install there, or set RINGSLICE_HOME"
            raise EnvironmentFailure(f"{words[0]}: {error.strerror}. {remedy}") from error
        self._process, errors = process, list[str]()
        log = threading.Thread(target=self._log_lines, args=(process.stderr, errors), daemon=True)
        log.start()
        try:
            status = process.wait()
        except BaseException:  # of Airflow: execution_timeout
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
        log.join(STOP_TIMEOUT_S)  # it ends: no process is left that could write
        return status if status >= 0 else 128 - status, (errors or [""])[-1]

    def _log_lines(self, lines: IO[str], errors: list[str]) -> None:
        for line in map(str.rstrip, lines):
            is_error = line.startswith(ERROR if errors else (ERROR, INTERRUPTED))  # an interruption is not the cause
            errors += [line.removeprefix("ringslice: ").removeprefix("error: ")] * is_error
            (self.log.error if is_error else self.log.info)("%s", line)
