"""The checks of the place for datasets: whether it answers, and keeps the promises that publishing depends on."""

import os
import secrets
import shutil
import socket
import time
from functools import partial

from etl.doctor.check import FAILS, WARNING, Checks, Context, Skipped, run_python
from etl.doctor.probe import nearest_folder
from etl.errors import EnvironmentFailure, explain
from etl.hadoop.site_config import class_path, libhdfs_folder
from etl.storage.hdfs_settings import (
    DEFAULT_PORT,
    DRIVER_VARIABLE,
    DRIVERS,
    LIBHDFS,
    NATIVE,
    split_authority,
)
from etl.storage.place import open_place

GROUP = "storage"
CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = {NATIVE: 30.0, LIBHDFS: 60.0}
REMOVE_TIMEOUT_S = 10.0
MIN_FREE_BYTES = 1 << 30
PROBE = ("-m", "etl.doctor.probe")


def checks(context: Context) -> Checks:
    """HDFS is tried with each driver if its NameNode answers."""
    if not context.is_on_hdfs:
        yield GROUP, "files", lambda: _try_out(context, NATIVE)
        return
    yield GROUP, "NameNode", lambda: _namenode(context)
    if context.has_passed("NameNode"):
        for driver in DRIVERS:
            yield GROUP, f"files by {driver}", partial(_try_out, context, driver)


def _namenode(context: Context) -> str:
    context.require_site()
    answers, silent = [], []
    for address in _namenodes(context):
        host, port = split_authority(address)
        began = time.monotonic()
        try:
            socket.create_connection((host.strip("[]"), int(port or DEFAULT_PORT)), CONNECT_TIMEOUT_S).close()
            answers.append(f"{address} answers after {(time.monotonic() - began) * 1000:.0f} ms")
        except OSError as error:
            reason = (explain(error) or (0, str(error)))[1].partition(":")[0]
            silent.append(f"{address} does not answer ({reason})")
    if not answers:
        raise EnvironmentFailure(
            f"{'; '.join(silent)}: check the address (fs.defaultFS of core-site.xml), that HDFS is up, and that"
            " no firewall is between"
        )
    if silent:
        raise Skipped(f"{'; '.join([*answers, *silent])}: look after that one", WARNING)
    return "; ".join(answers)


def _namenodes(context: Context) -> list[str]:
    """The addresses of the place's NameNodes: those of a nameservice by the site's configuration, else its own."""
    assert context.place is not None
    authority = context.place.uri.removeprefix("hdfs://").partition("/")[0]
    nodes = context.site.get(f"dfs.ha.namenodes.{authority}", "").split(",")
    keys = [f"dfs.namenode.rpc-address.{authority}.{name.strip()}" for name in nodes]
    return [context.site[key] for key in keys if key in context.site] or [authority]


def _try_out(context: Context, driver: str) -> str:
    """Use the place in a process that may crash or hang; nothing is left of it."""
    if driver == LIBHDFS:
        _require_libhdfs(context)
    place = context.uri if context.place is None else context.place.uri
    words = [place, f".ringslice-doctor-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"]
    is_killed = True
    try:
        result = run_python([*PROBE, "place", *words], PROBE_TIMEOUT_S[driver], **{DRIVER_VARIABLE: driver})
        is_killed = result.status < 0
    finally:
        if is_killed:  # it was, or we were interrupted
            run_python([*PROBE, "remove", *words], REMOVE_TIMEOUT_S, **{DRIVER_VARIABLE: NATIVE})
    context.hangs = result.timeout_s is not None
    if is_killed:
        raise EnvironmentFailure(
            f"the attempt to write at {place} {result.reason}; check that this is the address of the storage, and that"
            " it works"
        )
    if result.status:
        raise EnvironmentFailure(result.reason)
    if context.is_on_hdfs:
        return result.output
    free = shutil.disk_usage(nearest_folder(open_place(place)).path).free
    text = f"{result.output.strip()}; {free / (1 << 30):,.1f} GiB free"
    if free < MIN_FREE_BYTES:
        raise Skipped(f"{text}: make room, or choose another place", WARNING)
    return text


def _require_libhdfs(context: Context) -> None:
    """Raise Skipped if an attempt with libhdfs would show nothing new."""
    if context.hangs:
        raise Skipped("not tried, because the place does not answer")
    if context.states.get("libhdfs") == FAILS:
        raise Skipped("not tried, because libhdfs does not work here (see above)")
    if context.settings.driver != LIBHDFS:
        try:
            class_path()
            libhdfs_folder()
        except EnvironmentFailure:
            raise Skipped("not tried, because libhdfs is not set up; only needed for --hdfs-driver libhdfs") from None
