"""A real scheduler, api-server, dag-processor and triggerer on a real PostgreSQL, on loopback; they end with the block.

They end with this process, too, however it ends. LocalExecutor, as on one machine in production; PostgreSQL runs as
the user postgres if this process is root's.
"""

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from etl.errors import EnvironmentFailure
from tests.airflow_dags.real_airflow import TIMEOUT_S, Airflow, Params
from tests.hadoop.configuration import named_ports
from tests.hadoop.state import MARK, end_processes, launch_guardian
from tests.lib.commands import REPOSITORY, wait_until

SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
POSTGRES = "postgres"
ENDED = ("success", "failed")
STOP_SIGNALS = {POSTGRES: signal.SIGINT}  # of the others SIGTERM, for which PostgreSQL would wait for its clients
STOP_TIMEOUT_S = 30
REQUEST_TIMEOUT_S = 300
POLL_S = 1.0  # between requests, each of which takes 0.1 s of processor time


@dataclass(frozen=True)
class Scheduler:
    """``processes`` are the services by name; PostgreSQL is one of them."""

    url: str
    processes: dict[str, "subprocess.Popen[str]"]
    start: Callable[[str], None]

    def is_up(self) -> bool:
        try:
            return self.api("GET", "/dags")["total_entries"] >= 2
        except OSError:
            return False

    def restart(self, service: str) -> None:
        """Kill a service, PostgreSQL in order, and start it again."""
        self.processes[service].send_signal(STOP_SIGNALS.get(service, signal.SIGKILL))
        self.processes[service].wait(STOP_TIMEOUT_S)
        self.start(service)
        wait_until(self.is_up, self.processes[service], poll_s=POLL_S)

    def open(self, path: str, token: str, method: str = "GET", content: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        data = json.dumps(content).encode() if content is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        return urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S)

    def token(self) -> str:
        with self.open("/auth/token", "") as answer:
            return str(json.load(answer)["access_token"])

    def api(self, method: str, path: str, content: Any = None) -> Any:
        """What the REST API answers."""
        with self.open(f"/api/v2{path}", self.token(), method, content) as answer:
            return json.load(answer)

    def page(self, path: str, has_login: bool = True) -> tuple[int, str, str]:
        """Status, text and content security policy of a page, by the token of a user or without."""
        try:
            answer = self.open(path, self.token() if has_login else "")
        except urllib.error.HTTPError as error:  # which is an answer, too
            answer = error
        with answer:
            return answer.status, answer.read().decode(), answer.headers["Content-Security-Policy"] or ""

    def pause(self, dag: str, is_paused: bool = True) -> None:
        self.api("PATCH", f"/dags/{dag}?update_mask=is_paused", {"is_paused": is_paused})

    def trigger(self, dag: str, params: Params, run: str) -> None:
        self.api("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run, "conf": params, "logical_date": None})

    def runs(self, dag: str) -> dict[str, str]:
        return {each["dag_run_id"]: each["state"] for each in self.api("GET", f"/dags/{dag}/dagRuns")["dag_runs"]}

    def wait_for_end(self, dag: str, run: str = "") -> str:
        """The state that the DAG run ends in: that of the name ``run``, or the only one that there is."""

        def ended() -> list[str]:
            return [state for name, state in self.runs(dag).items() if run in ("", name) and state in ENDED]

        return wait_until(ended, self.processes["scheduler"], TIMEOUT_S, POLL_S)[0]

    def tasks(self, dag: str, run: str) -> dict[str, tuple[str, int]]:
        """State and number of tries by task, as in ``train 0`` if it is mapped."""
        rows = self.api("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        names = [each["task_id"] + (f" {each['map_index']}" if each["map_index"] >= 0 else "") for each in rows]
        return {name: (each["state"], each["try_number"]) for name, each in zip(names, rows, strict=True)}


@contextmanager
def run_scheduler(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Scheduler]:
    """A home in ``folder``, whose DAGs are tried again at once, and its services, with ``more`` in their environment.

    Raises EnvironmentFailure if one cannot start.
    """
    airflow = Airflow(folder / "home")
    if shutil.which(POSTGRES) is None:
        raise EnvironmentFailure("PostgreSQL is missing; install it first: apt-get install postgresql")
    ports = named_ports((POSTGRES, *SERVICES))
    port = ports["api-server"]
    variables = _variables(airflow.home, ports[POSTGRES], port) | dict(more or {})
    mark = {MARK: str(folder)}  # of all that its guardian ends
    with ExitStack() as stack:
        data = _postgres_data()
        stack.callback(launch_guardian(folder, Path(data)).communicate)
        stack.callback(end_processes, folder)
        processes: dict[str, subprocess.Popen[str]] = {}

        def start(name: str) -> None:
            log = folder / f"{name}.log"
            if name == POSTGRES:
                process = _start_postgres(data, log, ports[POSTGRES], os.environ | mark)
            else:
                own = {"AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(ports[name])}
                process = _start_service(airflow, name, log, variables | own | mark)
            processes[name] = process
            stack.callback(_end, process, STOP_SIGNALS.get(name, signal.SIGTERM))
            if name == POSTGRES:
                wait_until(lambda: "ready to accept connections" in log.read_text(), process)

        start(POSTGRES)
        airflow.make(variables, [Path(__file__).with_name("quick_retries.py")])
        (airflow.home / "plugins").mkdir()
        (airflow.home / "plugins/ringslice_report.py").symlink_to(REPOSITORY / "airflow_dags/ringslice_report.py")
        for name in SERVICES:
            start(name)
        scheduler = Scheduler(f"http://127.0.0.1:{port}", processes, start)
        wait_until(scheduler.is_up, processes["api-server"], poll_s=POLL_S)
        yield scheduler


def _variables(home: Path, database_port: int, port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # a busy machine; after 5 s, by default, a task has failed
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://postgres@127.0.0.1:{database_port}/postgres",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of sixty-four characters, which all services must share.",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # it is noticed in a minute, not in five, that a supervisor is gone; less is too short for a busy machine
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "RINGSLICE_AUDIT": "1",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{home}/logs",
    }


def _start_service(airflow: Airflow, name: str, log: Path, variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    words = [name, *(["--skip-serve-logs"] if name in ("scheduler", "triggerer") else [])]
    with log.open("a") as output:
        return airflow.start("airflow", *words, log=output, variables=variables)


def _postgres_data() -> str:
    """A new data folder, outside of pytest's folders, which are closed to the user of PostgreSQL."""
    data = mkdtemp(prefix="ringslice-postgres-", dir="/tmp")  # not $TMPDIR, which is one of pytest's
    if os.getuid() == 0:
        shutil.chown(data, "postgres", "postgres")
    initdb = [*_postgres_program("initdb"), "--auth=trust", "--username=postgres", "--no-sync", data]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/")
    return data


def _postgres_program(name: str) -> list[str]:
    """The words that start a program of PostgreSQL's, which refuses to run as root."""
    become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    return [*become, str(Path(shutil.which(POSTGRES) or "").resolve().parent / name)]


def _start_postgres(data: str, log: Path, port: int, variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data}", "-c", "fsync=off"]
    words = [*_postgres_program(POSTGRES), "-D", data, "-p", str(port), *options]
    with log.open("w") as output:
        more: Any = {"env": variables, "start_new_session": True, "cwd": "/", "text": True}
        return subprocess.Popen(words, stdout=output, stderr=output, **more)


def _end(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """End a service in order; after a while, or a second Ctrl-C, by SIGKILL."""
    try:
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
