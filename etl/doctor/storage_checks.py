"""The checks of the place where datasets are to live: whether it is there, and keeps what publishing stands on."""

import json
import os
import secrets
import socket
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

from etl.doctor.check import WARNING, Check, Notice
from etl.doctor.child import Ended, call_within, run_python
from etl.doctor.context import Surroundings
from etl.errors import EnvironmentFailure, explain
from etl.hadoop.site_config import class_path, libhdfs_folder
from etl.storage.hdfs_settings import (
    DEFAULT_PORT,
    DRIVER_VARIABLE,
    DRIVERS,
    LIBHDFS,
    NATIVE,
    authority_of,
    default_filesystem,
    split_authority,
)

GROUP = "storage"
CONNECT_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = {NATIVE: 30.0, LIBHDFS: 60.0}
REMOVE_TIMEOUT_S = 10.0
LEAST_FREE_BYTES = 1 << 30


def checks(around: Surroundings) -> Iterator[Check]:
    """All of this group; HDFS is tried with each driver once its NameNode answers."""
    if not around.on_hdfs:
        yield Check(GROUP, "files", lambda: _try_out(around, NATIVE))
        return
    yield (namenode := Check(GROUP, "NameNode", lambda: _namenode(around)))
    if not namenode.passed:
        return
    if web := _web_addresses(around):
        yield Check(GROUP, "DataNodes", lambda: call_within(ASK_TIMEOUT_S, lambda: _datanodes(web)))
    for driver in DRIVERS:
        yield Check(GROUP, f"files by {driver}", partial(_try_out, around, driver))


def _namenode(around: Surroundings) -> str:
    around.require_site_configuration()
    if around.place is None:
        raise EnvironmentFailure(f"{around.uri} cannot be opened")
    answers, silent = [], []
    for name, address in _namenodes(around).items():
        began = time.monotonic()
        try:
            call_within(ASK_TIMEOUT_S, partial(_connect, address))
            answers.append(f"{name} answers after {(time.monotonic() - began) * 1000:.0f} ms")
        except (OSError, EnvironmentFailure) as error:
            silent.append(f"{name} does not answer ({_reason(error)})")
    if not answers:
        raise EnvironmentFailure(
            f"{'; '.join(silent)}: check the address (fs.defaultFS of core-site.xml), that HDFS is up, and that"
            " no firewall is between"
        )
    if silent:
        raise Notice(f"{'; '.join([*answers, *silent])}: look after that one", WARNING)
    return "; ".join(answers)


def _connect(address: tuple[str, int]) -> None:
    socket.create_connection(address, CONNECT_TIMEOUT_S).close()


def _reason(error: Exception) -> str:
    return (explain(error) or (0, str(error)))[1].partition(":")[0]


def _authority(around: Surroundings) -> str:
    assert around.place is not None
    return around.place.uri.removeprefix("hdfs://").partition("/")[0]


def _namenodes(around: Surroundings) -> dict[str, tuple[str, int]]:
    """The addresses of the place's NameNodes, by what they are called."""
    authority, site = _authority(around), around.site
    named = {f"{each} {site[key]}": site[key] for each, key in _properties(around, "dfs.namenode.rpc-address")}
    found = {}
    for name, given in (named or {authority: authority}).items():
        host, port = split_authority(given)
        found[name] = (host.strip("[]"), int(port or DEFAULT_PORT))
    return found


def _properties(around: Surroundings, prefix: str) -> Iterator[tuple[str, str]]:
    """The NameNodes of a nameservice, and the property of each that begins with ``prefix``, where the site has it."""
    authority = _authority(around)
    for each in (name.strip() for name in around.site.get(f"dfs.ha.namenodes.{authority}", "").split(",")):
        if each and (key := f"{prefix}.{authority}.{each}") in around.site:
            yield each, key


def _web_addresses(around: Surroundings) -> list[str]:
    """The NameNodes' web servers, as far as the site tells of those of this place."""
    site, authority = around.site, _authority(around)
    keys = [key for _, key in _properties(around, "dfs.namenode.http-address")]
    if not keys and default_filesystem(site) and authority_of("") == authority:
        keys = ["dfs.namenode.http-address"]
    return [site[key].replace("0.0.0.0", authority.partition(":")[0]) for key in keys if key in site]  # noqa: S104


def _datanodes(addresses: list[str]) -> str:
    for address in addresses:
        url = f"http://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as answer:
                state = json.loads(answer.read())["beans"][0]
            live, free, total = (state[name] for name in ("NumLiveDataNodes", "CapacityRemaining", "CapacityTotal"))
        except (OSError, ValueError, LookupError):
            continue
        if not live:
            raise EnvironmentFailure("none is alive, so nothing can be written or read; look at: hdfs dfsadmin -report")
        told = f"{live} alive, {_gib(free)} of {_gib(total)} free"
        if state.get("FSState") == "safeMode":
            raise EnvironmentFailure(f"{told}, but HDFS is in safe mode: wait, or: hdfs dfsadmin -safemode leave")
        if dead := state.get("NumDeadDataNodes"):
            raise Notice(f"{told}, {dead} dead; look at: hdfs dfsadmin -report", WARNING)
        if free < LEAST_FREE_BYTES:
            raise Notice(f"{told}: free some space", WARNING)
        return told
    raise Notice(f"not known, for the NameNode's web server does not tell ({' or '.join(addresses)})")


def _gib(count: int) -> str:
    return f"{count / (1 << 30):,.1f} GiB"


def _try_out(around: Surroundings, driver: str) -> str:
    """Use the place, in a process that may crash or hang; nothing is left of it whatever happens."""
    if driver == LIBHDFS:
        _require_libhdfs(around)
    place = around.uri if around.place is None else around.place.uri
    name = f".ringslice-doctor-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    words = ["-m", "etl.doctor.storage_probe", place, name]
    may_have_left = True
    try:
        ended = run_python(PROBE_TIMEOUT_S[driver], words, **{DRIVER_VARIABLE: driver})
        around.place_hangs = ended.timeout_s is not None
        may_have_left = ended.status < 0 and '"make a folder"' in ended.output
    finally:
        if may_have_left:  # it, or we, were stopped
            run_python(REMOVE_TIMEOUT_S, [*words, "--remove"], **{DRIVER_VARIABLE: NATIVE})
    return _judge(ended, place)


def _require_libhdfs(around: Surroundings) -> None:
    """Raise Notice where a look through libhdfs would tell nothing new."""
    if around.place_hangs:
        raise Notice("not tried, for the place does not answer")
    if around.libhdfs is not None and around.libhdfs.failed:
        raise Notice("not tried, for libhdfs does not work here (see above)")
    if around.settings.driver != LIBHDFS:
        try:
            class_path()
            libhdfs_folder()
        except EnvironmentFailure:
            raise Notice("not tried, for libhdfs is not set up; only needed for --hdfs-driver libhdfs") from None


def _judge(ended: Ended, place: str) -> str:
    told: dict[str, Any] = {}
    times: dict[str, float] = {}
    for line in ended.output.splitlines():
        if line.startswith("{") and line.endswith("}"):  # not what a killed one left half-written
            told |= (step := json.loads(line))
            times |= {step["done"]: step["ms"]} if "done" in step else {}
    if ended.status or ended.timeout_s is not None:
        step = told.get("step", "look")
        if ended.status < 0 or ended.timeout_s is not None:
            raise EnvironmentFailure(
                f"the attempt to {step} at {place} {ended.complaint}; check that this is the address of the storage,"
                " and that it works"
            )
        raise EnvironmentFailure(ended.complaint if step == "look" else f"could not {step}: {ended.complaint}")
    where = place if told["exists"] else f"{place} (not there yet; tried in {told['base']})"
    done = f"wrote, read, renamed and deleted {where} in {sum(times.values()):.0f} ms; a taken name was refused"
    if (free := told["free_bytes"]) is None:
        return f"{done}; first answer after {times['look']:.0f} ms"
    if free < LEAST_FREE_BYTES:
        raise Notice(f"{done}; only {_gib(free)} free: make room, or choose another place", WARNING)
    return f"{done}; {_gib(free)} free"
