"""Airflow's operator for the commands of ringslice, and what its DAGs share. Imports airflow and the standard library.

The commands run in the project's own environment (`make install`), which need not be Airflow's. The project is the
repository that this file lies in; if the file was copied, `RINGSLICE_HOME` names it.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from airflow.sdk import Asset, BaseOperator, Context, ExceptionRetryPolicy, Param, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowException

HOME = Path(os.environ.get("RINGSLICE_HOME") or Path(__file__).resolve().parent.parent)
DATA = os.environ.get("RINGSLICE_DATA") or f"{HOME}/data"
STOP_TIMEOUT_S = 50  # Airflow kills a task about 60 s after it asked for its end
ERROR = "ringslice: error: "
PRINTABLE = "^[^\\x00-\\x1f]+$"
FOLDER_NAME = "^[^-._/\\x00-\\x1f][^/\\x00-\\x1f]*$"


class RingsliceError(AirflowException):
    """A command ended with another status than 0; the message is its last error line."""


class DataError(RingsliceError):
    """Status 1: the data falls short."""


class UsageError(RingsliceError):
    """Status 2, or a param that the DAG does not have: wrong use."""


class EnvironmentFailure(RingsliceError):
    """Status 3, or a command that was stopped or killed: the machine or the cluster failed."""


ERRORS = {1: DataError, 2: UsageError}  # by exit status
RETRY_POLICY = ExceptionRetryPolicy(
    [RetryRule([DataError, UsageError], RetryAction.FAIL, reason="another try would end likewise")]
)
DAG_OPTIONS: dict[str, Any] = {  # of both DAGs
    "start_date": datetime(2025, 1, 1),
    "catchup": False,
    "is_paused_upon_creation": True,
    "max_active_runs": 1,
    "default_args": {
        "retries": 2,
        "retry_delay": timedelta(minutes=2),
        "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(minutes=30),
    },
    "tags": ["ringslice"],
}
DATASET = Asset("image_dataset")


def text(default: str, help_text: str, pattern: str = PRINTABLE, **more: Any) -> Param:
    """A param that is one line of text."""
    return Param(default, help_text, type="string", pattern=pattern, **more)


def optional(kind: str, help_text: str, default: Any = None, **more: Any) -> Param:
    """A param of a JSON type, ``string``, ``number`` or ``integer``, or null; a text is one line."""
    pattern = {"pattern": "^[^\\x00-\\x1f]*$"} if kind == "string" else {}
    return Param(default, help_text, type=["null", kind], **{**pattern, **more})


def option(name: str) -> str:
    """Template of the option ``--NAME=VALUE`` of the param of this name; of nothing if it is empty."""
    value = f"params.{name.replace('-', '_')}"
    return f"{{{{ '' if {value} in (none, '') else '--{name}=' ~ {value} }}}}"


def flag(name: str) -> str:
    """Template of the option ``--NAME`` if the param is true; else of nothing."""
    return f"{{{{ '--{name}' if params.{name.replace('-', '_')} else '' }}}}"


def dated(text: str, dag_run: Any) -> str:
    """``text`` with the day of the DAG run in place of ``{date}``."""
    return text.replace("{date}", (dag_run.logical_date or dag_run.run_after).strftime("%Y-%m-%d"))


def run_name(dag_run: Any) -> str:
    """Name of the training run of a DAG run: its id, as HDFS takes it for a folder's name."""
    return "airflow-" + re.sub(r"[^A-Za-z0-9._-]+", "-", dag_run.run_id)


def require_declared(context: Any) -> None:
    """Raise UsageError if the DAG run was given params that the DAG does not have; Airflow ignores them."""
    if unknown := sorted(set(context["dag_run"].conf or {}) - set(context["dag"].params)):
        known = ", ".join(sorted(context["dag"].params))
        raise UsageError(f"no such param: {', '.join(map(repr, unknown))}. Give: {known}")


def kill_group(leader: int) -> None:
    """Kill what is left of a process group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class RingsliceOperator(BaseOperator):
    """Runs ``ringslice COMMAND --json OPTIONS -- ARGUMENTS``, without a shell; the JSON summary is its XCom.

    Each of ``options`` and ``arguments`` is a template and one word of the command, whatever it renders to; an option
    that renders to nothing is left out. The command and all that it started end with the task, however that ends.
    """

    template_fields = ("options", "arguments")

    def __init__(self, *, command: str, options: Sequence[str] = (), arguments: Sequence[str] = (), **kwargs: Any):
        super().__init__(**{**kwargs, "retry_policy": kwargs.get("retry_policy") or RETRY_POLICY})
        self.command, self.options, self.arguments = command, options, arguments
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> Any:
        """Run the command. Raises one of `RingsliceError` by its exit status."""
        require_declared(context)
        words = [
            self.command,
            "--json",
            *filter(None, self.options),
            *(["--"] if self.arguments else []),
            *self.arguments,
        ]
        self.log.info("%s", shlex.join(["cd", str(HOME)]) + " && " + shlex.join([".venv/bin/ringslice", *words]))
        with tempfile.TemporaryFile("w+") as output:
            status, error = self._run([f"{HOME}/.venv/bin/ringslice", *words], output)
            if status:
                failure = ERRORS.get(status, EnvironmentFailure)
                raise failure(f"{self.command} ended with status {status}: {error or 'no error line; see its log'}")
            output.seek(0)
            *_, last = ["null", *output.read().splitlines()]
        return json.loads(last)

    def on_kill(self) -> None:
        """End the command in order, by force if that takes too long; `execute`, which this interrupts, waits for it."""
        if process := self._process:
            process.send_signal(signal.SIGTERM)
            timer = threading.Timer(STOP_TIMEOUT_S, kill_group, [process.pid])
            timer.daemon = True
            timer.start()

    def _run(self, words: Sequence[str], output: IO[str]) -> tuple[int, str]:
        """Run a command to its end; returns its exit status and its last error line."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
        tie = {"RINGSLICE_PARENT": f"{os.getpid()} {int(signal.SIGTERM)}"}  # see tie_to_parent of etl/processes.py
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
        try:
            process = subprocess.Popen(
                words, cwd=HOME, env=kept | tie, text=True, errors="backslashreplace", start_new_session=True, **streams
            )
        except OSError as error:
            remedy = "Run make install there, or set RINGSLICE_HOME"
            raise EnvironmentFailure(f"{words[0]}: {error.strerror}. {remedy}") from error
        self._process, errors = process, list[str]()
        log = threading.Thread(target=self._log_lines, args=(process.stderr, errors), daemon=True)
        log.start()
        try:
            status = process.wait()
        except BaseException:  # of Airflow: execution_timeout
            self.on_kill()
            process.wait()  # it ends: by SIGTERM, or by force
            kill_group(process.pid)
            raise
        finally:
            self._process = None
        log.join(STOP_TIMEOUT_S)  # it ends: no process is left that could write
        return status if status >= 0 else 128 - status, (errors or [""])[-1]

    def _log_lines(self, lines: IO[str], errors: list[str]) -> None:
        for line in lines:
            if line.startswith(ERROR):
                errors.append(line.removeprefix(ERROR).rstrip())
            (self.log.error if line.startswith(ERROR) else self.log.info)("%s", line.rstrip())
