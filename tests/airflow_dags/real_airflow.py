"""A real Airflow of `.venvs/airflow`, with a home and a SQLite database of its own, to run the DAG in."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.errors import EnvironmentFailure
from tests.lib.commands import REPOSITORY, Finished, environment

VENV = ".venvs/airflow"
INSTALL = f"make {VENV}/.installed"
BIN = REPOSITORY / VENV / "bin"
DAG_FILE = REPOSITORY / "airflow_dags" / "image_training.py"
DAG_ID = "image_training"
TIMEOUT_S = 900  # a whole DAG run takes 1 minute on two idle cores, the one on Hadoop 3

Params = Mapping[str, object]


@dataclass(frozen=True)
class DagRun:
    """A DAG run that has ended: what it printed, and by task its state, the number of tries, and its XCom."""

    finished: Finished
    states: dict[str, str | None]
    tries: dict[str, int]
    xcoms: dict[str, Any]

    @property
    def log(self) -> str:
        return self.finished.stdout + self.finished.stderr


@dataclass(frozen=True)
class Airflow:
    """``home`` is its ``$AIRFLOW_HOME``."""

    home: Path

    def make(self) -> None:
        """Make its home, with the DAG file linked into it, and its database."""
        if not (BIN / "airflow").exists():
            raise EnvironmentFailure(f"Airflow is missing; install it first: {INSTALL}")
        (self.home / "dags").mkdir(parents=True)
        (self.home / "dags" / DAG_FILE.name).symlink_to(DAG_FILE)
        finished = self.run("airflow", "db", "migrate")
        if finished.returncode != 0:
            cause = (finished.stdout + finished.stderr).strip().rpartition("\n")[2] or f"status {finished.returncode}"
            raise EnvironmentFailure(f"airflow db migrate failed ({cause}). Install it again: rm -r {VENV}; {INSTALL}")

    def start(self, *words: object, **more: str) -> subprocess.Popen[str]:
        """Start a command of Airflow's environment; the project's is not on its PATH."""
        own = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "NO_COLOR": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        kept = {name: value for name, value in environment().items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        return subprocess.Popen(
            [str(BIN / str(words[0])), *map(str, words[1:])],
            cwd=self.home,
            env=kept | own | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: object, **more: str) -> Finished:
        """Run a command of Airflow's environment to its end."""
        return self._finish(self.start(*words, **more))

    @staticmethod
    def _finish(started: subprocess.Popen[str]) -> Finished:
        with started as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            except BaseException:
                process.terminate()  # the task passes it on
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start_dags_test(
        self, params: Params, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return self.start(
            "airflow", "dags", "test", DAG_ID, "--conf", json.dumps(params), *options, **environment or {}
        )

    def dags_test(self, params: Params, environment: Mapping[str, str] | None = None) -> DagRun:
        """Run the whole DAG once with ``params``; ``environment`` is added to a worker's own."""
        finished = self._finish(self.start_dags_test(params, environment=environment))
        rows = self.query("SELECT task_id, state, try_number FROM task_instance WHERE run_id = {newest}")
        xcoms = self.query("SELECT task_id, value FROM xcom WHERE key = 'return_value' AND run_id = {newest}")
        return DagRun(
            finished,
            {task: state for task, state, _ in rows},
            {task: tries for task, _, tries in rows},
            {task: json.loads(value) for task, value in xcoms},
        )

    def query(self, question: str) -> list[tuple[Any, ...]]:
        """Rows of the database; ``{newest}`` stands for the newest DAG run's id."""
        with sqlite3.connect(self.home / "airflow.db", timeout=30) as database:
            newest = "(SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1)"
            rows = database.execute(question.format(newest=newest)).fetchall()
        database.close()
        return rows
