"""A real scheduler, api-server and dag-processor on a real PostgreSQL, all on loopback; they end with the block.

LocalExecutor, as on one machine in production; PostgreSQL runs as the user postgres if this process is root's.
"""

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etl.errors import EnvironmentFailure
from tests.airflow_dags.real_airflow import Airflow, Params
from tests.hadoop.configuration import free_ports
from tests.lib.commands import REPOSITORY
from tests.lib.ranks.running import wait_until

SERVICES = ("api-server", "scheduler", "dag-processor")  # nothing is deferred, so there is no triggerer
ENDED = ("success", "failed")
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Scheduler:
    """``processes`` are the services by name; PostgreSQL is one of them."""

    airflow: Airflow
    url: str
    processes: dict[str, "subprocess.Popen[str]"]

    def call(self, method: str, path: str, content: Any = None, token: str = "") -> Any:
        """What the REST API answers."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = json.dumps(content).encode() if content is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def api(self, method: str, path: str, content: Any = None) -> Any:
        token = self.call("GET", "/auth/token")["access_token"]
        return self.call(method, f"/api/v2{path}", content, token)

    def page(self, path: str, has_login: bool = True) -> tuple[int, str, str]:
        """Status, text and content security policy of a page, by the token of a user or without."""
        token = self.call("GET", "/auth/token")["access_token"] if has_login else ""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers["Content-Security-Policy"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), ""

    def unpause(self, dag: str) -> None:
        self.api("PATCH", f"/dags/{dag}?update_mask=is_paused", {"is_paused": False})

    def trigger(self, dag: str, params: Params, run: str) -> None:
        self.api("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run, "conf": params, "logical_date": None})

    def runs(self, dag: str) -> dict[str, str]:
        return {each["dag_run_id"]: each["state"] for each in self.api("GET", f"/dags/{dag}/dagRuns")["dag_runs"]}

    def wait_for_end(self, dag: str, run: str = "") -> str:
        """The state that the DAG run ends in: that of the name ``run``, or the only one that there is."""
        found = ""

        def has_ended() -> bool:
            nonlocal found
            states = self.runs(dag)
            found = states.get(run, "") if run else next(iter(states.values()), "")
            return found in ENDED

        wait_until(has_ended, self.processes["scheduler"], 600)
        return found

    def tasks(self, dag: str, run: str) -> dict[str, tuple[str, int]]:
        """State and number of tries by task, as in ``train 0`` if it is mapped."""
        rows = self.api("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        names = [each["task_id"] + (f" {each['map_index']}" if each["map_index"] >= 0 else "") for each in rows]
        return {name: (each["state"], each["try_number"]) for name, each in zip(names, rows, strict=True)}


@contextmanager
def running_scheduler(airflow: Airflow, folder: Path) -> Iterator[Scheduler]:
    """A home with the DAGs in it, and the services that work with it; raises EnvironmentFailure if one cannot start."""
    if shutil.which("postgres") is None:
        raise EnvironmentFailure("PostgreSQL is missing; install it first: apt-get install postgresql")
    ports = free_ports(("postgres", *SERVICES))
    port = ports["api-server"]
    with ExitStack() as stack:
        database = stack.enter_context(_postgres(folder, ports["postgres"]))
        variables = _variables(airflow.home, ports["postgres"], port)
        airflow.make(variables)
        (airflow.home / "plugins").mkdir()
        (airflow.home / "plugins/ringslice_report.py").symlink_to(REPOSITORY / "airflow_dags/ringslice_report.py")
        processes: dict[str, subprocess.Popen[str]] = {"postgres": database}
        for name in SERVICES:
            words = [name, *(["--skip-serve-logs"] if name == "scheduler" else [])]
            own = {"AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(ports[name])}
            processes[name] = stack.enter_context(_service(airflow, words, folder, variables | own))
        scheduler = Scheduler(airflow, f"http://127.0.0.1:{port}", processes)

        def is_up() -> bool:
            try:
                return scheduler.api("GET", "/dags")["total_entries"] >= 2
            except OSError:
                return False

        wait_until(is_up, processes["api-server"])
        yield scheduler


def _variables(home: Path, database_port: int, port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://postgres@127.0.0.1:{database_port}/postgres",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of sixty-four characters, which all services must share.",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{home}/logs",
    }


@contextmanager
def _service(
    airflow: Airflow, words: list[str], folder: Path, variables: dict[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    with (folder / f"{words[0]}.log").open("w") as log:
        process = airflow.start("airflow", *words, log=log, variables=variables)
    with _ended(process, signal.SIGTERM):
        yield process


@contextmanager
def _postgres(folder: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    """PostgreSQL, which refuses to run as root; its data is outside of pytest's folders, which are closed to others."""
    become: list[str] = []
    programs = Path(shutil.which("postgres") or "").resolve().parent
    with TemporaryDirectory(prefix="ringslice-postgres-") as data:
        if os.getuid() == 0:
            shutil.chown(data, "postgres", "postgres")
            become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        initdb = [*become, str(programs / "initdb"), "--auth=trust", "--username=postgres", "--no-sync", data]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/")
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data}", "-c", "fsync=off"]
        with (folder / "postgres.log").open("w") as log:
            words = [*become, str(programs / "postgres"), "-D", data, "-p", str(port), *options]
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, cwd="/", text=True)
        with _ended(process, signal.SIGINT):
            wait_until(lambda: "ready to accept connections" in (folder / "postgres.log").read_text(), process)
            yield process


@contextmanager
def _ended(process: "subprocess.Popen[str]", number: signal.Signals) -> Iterator[None]:
    """End the process and its session once the block has ended; a second Ctrl-C does not wait for it.

    A scheduler that is killed leaves its executor's processes, and these the tasks that they run.
    """
    try:
        yield
    finally:
        try:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        finally:
            for each in _of_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            process.wait()


def _of_session(leader: int) -> list[int]:
    """The processes of a session; proc(5) has its number in the sixth field."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(stat.parent.name))
    return found
