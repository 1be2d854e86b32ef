"""The state of the daemons, by HTTP."""

import http.client
import json
import urllib.parse
import urllib.request
from typing import Any

TIMEOUT_S = 120.0  # a daemon on a busy machine answers late
POLL_TIMEOUT_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy: it is this machine


def get(url: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON at an address."""
    with _DIRECT.open(url, timeout=timeout_s) as response:
        return json.load(response)


def put(url: str) -> None:
    _DIRECT.open(urllib.request.Request(url, method="PUT"), timeout=TIMEOUT_S).close()


def serves(daemon: str, web: str, resource_manager: str, started: float) -> bool:
    """True if a daemon does its work: the NameNode out of safe mode, the others known to their masters.

    ``started`` is the time it was started at, because a master may report the one before it.
    """
    try:
        if daemon == "namenode":
            return not _bean(web, "NameNode", "NameNodeInfo")["Safemode"]
        if daemon == "datanode":
            actors = json.loads(_bean(web, "DataNode", "DataNodeInfo")["BPServiceActorInfo"])
            return bool(actors) and all(
                each["ActorState"] == "RUNNING" and int(each["LastBlockReport"]) < 10**9 for each in actors
            )
        if daemon == "resourcemanager":
            return get(f"{web}/ws/v1/cluster/info", POLL_TIMEOUT_S)["clusterInfo"]["state"] == "STARTED"
        get(f"{web}/ws/v1/node/info", POLL_TIMEOUT_S)
        nodes = (get(f"{resource_manager}/ws/v1/cluster/nodes", POLL_TIMEOUT_S)["nodes"] or {}).get("node", [])
        return any(node["state"] == "RUNNING" and node["lastHealthUpdate"] / 1000 > started for node in nodes)
    except (OSError, http.client.HTTPException, LookupError, ValueError):
        return False


def _bean(web: str, service: str, name: str) -> dict[str, Any]:
    query = urllib.parse.quote(f"Hadoop:service={service},name={name}")
    return get(f"{web}/jmx?qry={query}", POLL_TIMEOUT_S)["beans"][0]
