"""YARN's ResourceManager and an application's own web services, as far as jobs need them (Hadoop's REST APIs)."""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import hadoop_user, site_configuration

REQUEST_TIMEOUT_S = 10.0
DEFAULT_PORT = 8088
ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
MOST_LOG_BYTES = 1 << 16


@dataclass(frozen=True)
class Application:
    """An application as the ResourceManager reports it."""

    id: str
    state: str
    final_status: str
    diagnostics: str

    @classmethod
    def from_json(cls, app: dict[str, Any]) -> "Application":
        """Read the ResourceManager's description of an application."""
        diagnostics = " ".join(str(app.get("diagnostics", "")).split())
        return cls(app["id"], app["state"], app["finalStatus"], diagnostics)

    @property
    def ended(self) -> bool:
        """True if it runs no more."""
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        """True if it reported success."""
        return self.final_status == "SUCCEEDED"


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt at a task that did not succeed, and what it wrote to its standard error at last."""

    id: str
    state: str
    node: str
    diagnostics: str
    error_output: str


class ResourceManager:
    """The ResourceManager at one of ``addresses`` (``http://host:port``); with several, the one that answers."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    @classmethod
    def of_site(cls) -> "ResourceManager":
        """The one that the files under HADOOP_CONF_DIR name. Raises EnvironmentFailure if they name none."""
        site = site_configuration()
        scheme = "https" if site.get("yarn.http.policy") == "HTTPS_ONLY" else "http"
        key = "yarn.resourcemanager.webapp" + (".https" if scheme == "https" else "") + ".address"
        suffixes = [f".{name.strip()}" for name in site.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if name]
        addresses = []
        for suffix in suffixes or [""]:
            if address := site.get(key + suffix):
                addresses.append(f"{scheme}://{address}")
            elif host := site.get("yarn.resourcemanager.hostname" + suffix):
                addresses.append(f"{scheme}://{host}:{DEFAULT_PORT}")
        if not addresses:
            raise EnvironmentFailure(
                "no ResourceManager is known: yarn-site.xml under HADOOP_CONF_DIR names none"
                " (yarn.resourcemanager.hostname); set HADOOP_CONF_DIR to the cluster's configuration"
            )
        return cls(addresses)

    def __str__(self) -> str:
        return " or ".join(self._addresses)

    def information(self) -> dict[str, Any]:
        """Version and state. Raises EnvironmentFailure if no ResourceManager answers."""
        return self._get("/ws/v1/cluster/info")["clusterInfo"]

    def queues(self, wanted: str | None = None) -> tuple[str, ...]:
        """The names of CapacityScheduler's queues that take applications; empty for another scheduler.

        Raises EnvironmentFailure if the one that is ``wanted`` is not among them.
        """
        scheduler = self._get("/ws/v1/cluster/scheduler")["scheduler"]["schedulerInfo"]
        found = tuple(sorted(_leaf_queues(scheduler))) if "queues" in scheduler else ()
        if wanted is not None and found and wanted.rpartition(".")[2] not in found:
            known = ", ".join(found)
            raise EnvironmentFailure(f"--queue {wanted!r} does not exist at {self}; its queues are: {known}")
        return found

    def metrics(self) -> dict[str, Any]:
        """Return counts of nodes and memory. Raises EnvironmentFailure if no ResourceManager answers."""
        return self._get("/ws/v1/cluster/metrics")["clusterMetrics"]

    def tagged(self, tag: str) -> list[Application]:
        """Applications that carry ``tag`` and have not ended, oldest first."""
        found = (self._get(f"/ws/v1/cluster/apps?applicationTags={tag}").get("apps") or {}).get("app", [])
        ordered = sorted(found, key=lambda app: app.get("startedTime", 0))
        return [each for each in map(Application.from_json, ordered) if not each.ended]

    def application(self, application: str) -> Application:
        """Return an application by its id. Raises EnvironmentFailure if it is not known."""
        return Application.from_json(self._get(f"/ws/v1/cluster/apps/{application}")["app"])

    def kill(self, application: str) -> None:
        """End an application with all its containers; nothing happens to one that has ended."""
        body = json.dumps({"state": "KILLED"}).encode()
        self._request(f"/ws/v1/cluster/apps/{application}/state?user.name={hadoop_user()}", "PUT", body)

    def map_reduce_job(self, application: str) -> dict[str, Any]:
        """The application's job as its master reports it; empty while there is no master."""
        jobs = self._ask_master(application, "jobs").get("jobs") or {}
        return next(iter(jobs.get("job", [])), {})

    def counters(self, application: str) -> dict[str, dict[str, int]]:
        """The job's counters by group and name, as its master reports them; empty if it is gone."""
        job = _job_of(application)
        groups = self._ask_master(application, f"jobs/{job}/counters").get("jobCounters", {}).get("counterGroup", [])
        return {
            group["counterGroupName"]: {each["name"]: each["totalCounterValue"] for each in group["counter"]}
            for group in groups
        }

    def failed_attempts(self, application: str, known: frozenset[str] = frozenset()) -> list[FailedAttempt]:
        """Attempts that failed or were killed, except those ``known`` by id; empty if the master is gone."""
        job = _job_of(application)
        found = []
        for task in (self._ask_master(application, f"jobs/{job}/tasks").get("tasks") or {}).get("task", []):
            answer = self._ask_master(application, f"jobs/{job}/tasks/{task['id']}/attempts")
            for attempt in (answer.get("taskAttempts") or {}).get("taskAttempt", []):
                if attempt["state"] in ("FAILED", "KILLED") and attempt["id"] not in known:
                    node = attempt.get("nodeHttpAddress", "")
                    errors = _container_error_output(node, attempt.get("assignedContainerId", ""))
                    diagnostics = attempt.get("diagnostics", "")
                    found.append(FailedAttempt(attempt["id"], attempt["state"], node, diagnostics, errors))
        return found

    def _ask_master(self, application: str, path: str) -> dict[str, Any]:
        try:
            return self._get(f"/proxy/{application}/ws/v1/mapreduce/{path}")
        except EnvironmentFailure:  # not there yet, or gone: then the answer is a page for people
            return {}

    def _get(self, path: str) -> dict[str, Any]:
        try:
            found = json.loads(self._request(path))
        except ValueError:
            raise self.refusal() from None
        if not isinstance(found, dict):
            raise self.refusal()
        return found

    def refusal(self) -> EnvironmentFailure:
        """The error for an address that answers, and not as a ResourceManager does."""
        return EnvironmentFailure(
            f"{self} is not a ResourceManager; correct yarn.resourcemanager.webapp.address of yarn-site.xml"
        )

    def _request(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        reason = ""
        for address in self._addresses:
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            request = urllib.request.Request(address + path, body, headers, method=method)  # noqa: S310 - the site's own
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310
                    return answer.read()
            except urllib.error.HTTPError as error:
                reason = f"{error.code} {error.reason}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error))
        raise EnvironmentFailure(
            f"the ResourceManager at {self} does not answer ({reason}); check that YARN is up, and"
            " yarn.resourcemanager.webapp.address of yarn-site.xml under HADOOP_CONF_DIR"
        )


def _job_of(application: str) -> str:
    return application.replace("application_", "job_")


def _leaf_queues(queue: dict[str, Any]) -> list[str]:
    children = (queue.get("queues") or {}).get("queue", [])
    return [name for child in children for name in _leaf_queues(child)] if children else [queue["queueName"]]


def _container_error_output(node: str, container: str) -> str:
    """The end of a container's standard error, from its NodeManager; empty if that has none."""
    url = f"http://{node}/ws/v1/node/containers/{container}/logs/stderr?size=-{MOST_LOG_BYTES}"
    try:
        with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
            return answer.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException):
        return ""
