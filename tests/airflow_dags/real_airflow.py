"""A real Airflow of `.venvs/airflow`, with a home and a SQLite database of its own, to run the DAG in."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from etl.errors import EnvironmentFailure
from tests.hadoop.processes import Process, find_all
from tests.lib.commands import REPOSITORY, Finished, environment, succeeded

BIN = REPOSITORY / ".venvs/airflow/bin"
DAGS = ("image_dataset", "image_model")
DAG_FILES = tuple(REPOSITORY / f"airflow_dags/{dag}.py" for dag in DAGS)
TIED = ("setpriv", "--pdeathsig", "KILL")
TIMEOUT_S = 900  # a whole DAG run takes half a minute on two idle cores, the one on Hadoop 2

Params = Mapping[str, object]


def processes_of(root: Path) -> list[Process]:
    """The processes of commands that have this root among their words; not Airflow's own."""
    return find_all(lambda words, _: any(str(root).encode() in word for word in words) and b"--conf" not in words)


@dataclass(frozen=True)
class DagRun:
    """A DAG run that has ended: its exit status, what it printed, and by task its state, number of tries and XCom.

    A task that is mapped to several has an entry for each: ``train 0``, ``train 1``.
    """

    status: int
    log: str
    states: dict[str, str | None]
    tries: dict[str, int]
    xcoms: dict[str, Any]


@dataclass(frozen=True)
class DagsTest:
    """A call of ``airflow dags test``, with variables that are added for this call and those after it."""

    dag: str
    params: Params
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Airflow:
    """``home`` is its ``$AIRFLOW_HOME``."""

    home: Path

    def make(self, variables: Mapping[str, str] | None = None, files: Sequence[Path] = DAG_FILES) -> None:
        """Make its home with ``files`` of DAGs linked into it, and its database: SQLite's, or that of ``variables``."""
        if not (BIN / "airflow").exists():
            raise EnvironmentFailure("Airflow is missing; install it first: make airflow")
        (self.home / "dags").mkdir(parents=True)
        for file in files:
            (self.home / "dags" / file.name).symlink_to(file)
        succeeded(self.run("airflow", "db", "migrate", variables=variables))

    def start(
        self, *words: object, variables: Mapping[str, str] | None = None, log: IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of Airflow's environment; the project's is not on its PATH.

        With a ``log``, a service, in a session of its own. Else it is killed if this process ends.
        """
        own = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "NO_COLOR": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        kept = {name: value for name, value in environment().items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        return subprocess.Popen(
            [*([] if log else TIED), str(BIN / str(words[0])), *map(str, words[1:])],
            cwd=self.home,
            env=kept | own | dict(variables or {}),
            stdout=log or subprocess.PIPE,
            stderr=log or subprocess.PIPE,
            text=True,
            start_new_session=log is not None,
        )

    def run(self, *words: object, variables: Mapping[str, str] | None = None) -> Finished:
        """Run a command of Airflow's environment to its end."""
        return self._finish(self.start(*words, variables=variables))

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
        self, dag: str, params: Params, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        words = ("airflow", "dags", "test", dag, "--conf", json.dumps(params), *options)
        return self.start(*words, variables=environment)

    def dags_test(self, dag: str, params: Params, environment: Mapping[str, str] | None = None) -> DagRun:
        """Run the whole DAG once with ``params``; ``environment`` is added to a worker's own."""
        finished = self._finish(self.start_dags_test(dag, params, environment=environment))
        return self._ended(finished.returncode, finished.stdout + finished.stderr)

    def several_dags_tests(self, tests: Sequence[DagsTest], environment: Mapping[str, str]) -> list[DagRun]:
        """Run DAGs in one process, one after the other, with what `dags_test` adds to its environment."""
        words = [[[each.dag, "--conf", json.dumps(each.params), *each.options], each.variables] for each in tests]
        program, begin = Path(__file__).with_name("several_tests.py"), "--- the next run ---"
        finished = self.run("python", program, json.dumps(words), begin, variables=environment)
        logs = succeeded(finished).stdout.split(f"{begin}\n")[1:]
        return [self._ended(int(log.split()[-1]), log, len(logs) - 1 - number) for number, log in enumerate(logs)]

    def _ended(self, status: int, log: str, later: int = 0) -> DagRun:
        task = "task_id || CASE map_index WHEN -1 THEN '' ELSE ' ' || map_index END"
        rows = self.query(f"SELECT {task}, state, try_number FROM task_instance WHERE run_id = {{newest}}", later)
        xcoms = self.query(f"SELECT {task}, value FROM xcom WHERE key = 'return_value' AND run_id = {{newest}}", later)
        return DagRun(
            status,
            log,
            {name: state for name, state, _ in rows},
            {name: tries for name, _, tries in rows},
            {name: json.loads(value) for name, value in xcoms},
        )

    def query(self, question: str, later: int = 0) -> list[tuple[Any, ...]]:
        """Rows of the database; ``{newest}`` stands for the id of the newest DAG run but those that are ``later``."""
        with sqlite3.connect(self.home / "airflow.db", timeout=30) as database:
            newest = f"(SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1 OFFSET {later})"
            rows = database.execute(question.format(newest=newest)).fetchall()
        database.close()
        return rows
