"""A chief that runs the loop, workers that compute, and servers that have the weights, asynchronously or synchronously.

TensorFlow's `tf.distribute.ParameterServerStrategy` places variables on the servers; its coordinator schedules what the
workers compute. Addresses are in ``TF_CONFIG``: train/launch.py starts all on this host, a scheduler on others.
"""

import json
import logging
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from etl.errors import EnvironmentFailure
from etl.slices.manifest import Manifest
from train.config.settings import CPU, Settings
from train.monitor.messages import first_line
from train.monitor.monitor import Monitor
from train.parallel.cluster import CHIEF, SERVER, WORKER, Task, require_servers
from train.parallel.collective import SingleProcess
from train.parallel.devices import Device
from train.runs.consistency import version_disagreement, versions
from train.strategies import Strategy
from train.strategies.multi_worker import end_by_signals
from train.strategies.parameter_server_trainer import LOST_ERRORS, ParameterServerTrainer, is_worker_lost
from train.tf_backend.devices import take_all_gpus

LOOK_S = 1.0  # between two looks at whether the chief is there
JOIN_TIMEOUT_S = 600.0  # until it is there first: PyTorch's ranks wait as long for each other by default
MAX_MISSES = 3  # looks in a row without a chief, once it was there
FACTS = 200  # the file descriptor of what a worker or server reports to the chief, which reads it by TensorFlow


class ParameterServer(Strategy):
    """The chief reads all slices; each worker takes its part of a batch."""

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, workers: int, device: Device) -> None:
        self.collective = SingleProcess()
        self._strategy, self._workers, self._device = strategy, workers, device

    @property
    def replicas(self) -> int:
        """The number of workers."""
        return self._workers

    def make_trainer(self, settings: Settings, manifest: Manifest) -> ParameterServerTrainer:
        """Its variables are on the servers. Raises what TensorFlow raises if one is lost."""
        return ParameterServerTrainer(settings, manifest, self._strategy, self._workers)


def run_with_servers(work: Callable[[ParameterServer], None], monitor: Monitor) -> None:
    """Call ``work`` in the chief; in a worker or server of ``$TF_CONFIG``, serve until the chief has ended.

    Raises UsageError if TF_CONFIG is not right, EnvironmentFailure if an address cannot be served or a server is lost.
    """
    task = require_servers(os.environ.get("TF_CONFIG", ""))
    device, _ = take_all_gpus(CPU)
    if task.role != CHIEF:
        serve(task)
        return
    monitor.local_phase("joining the workers and servers")
    tf.get_logger().setLevel(logging.CRITICAL)  # it logs each worker that is lost, with a traceback
    workers, servers = task.cluster[WORKER], task.cluster[SERVER]
    monitor.log(f"waiting for workers {', '.join(workers)} and servers {', '.join(servers)}")
    tf.config.threading.set_inter_op_parallelism_threads(threads_of(task))
    with name_taken_port(task), end_by_signals():
        strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    with name_lost_servers():
        require_same_versions(task)
        monitor.joined(0, 1)
        work(ParameterServer(strategy, len(workers), device))


@contextmanager
def name_taken_port(task: Task) -> Iterator[None]:
    """Raise EnvironmentFailure if TensorFlow cannot serve the address of this process."""
    try:
        yield
    except (tf.errors.UnknownError, tf.errors.InvalidArgumentError) as error:
        where = f"{task.role} {task.index} cannot serve {task.cluster[task.role][task.index]}"
        raise EnvironmentFailure(f"{where}: {first_line(error)} (is its port taken?)") from error


@contextmanager
def name_lost_servers() -> Iterator[None]:
    """Turn what TensorFlow raises in the chief after a server has ended into one line; leave out what it raises when
    objects are deleted.
    """
    lost, hook = (*LOST_ERRORS, tf.errors.FailedPreconditionError), sys.unraisablehook
    sys.unraisablehook = lambda found: None if isinstance(found.exc_value, lost) else hook(found)
    try:
        yield
    except lost as error:
        raise EnvironmentFailure(
            f"a parameter server has ended, and with it the weights ({type(error).__name__}); --resume goes on from"
            " the last checkpoint"
        ) from error


def require_same_versions(task: Task) -> None:
    """Raise EnvironmentFailure if a worker or server has not the versions of this process, the chief.

    A worker that is lost meanwhile is left out, as one that comes later.
    """
    own = versions()
    for name, address, facts in list(_read_facts(task)):  # all are read before one is refused: it tells them to end
        if facts is None:
            raise EnvironmentFailure(
                f"{name} at {address} has an earlier version of ringslice; install the same on every host"
            )
        if (difference := version_disagreement(own, facts["versions"], "the chief")) is not None:
            raise EnvironmentFailure(f"{name} on {facts['host']}{difference}")


def _read_facts(task: Task) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """The name and address of each worker and server that is not lost, and what it published, if it did."""
    for role in (WORKER, SERVER):
        for index, address in enumerate(task.cluster[role]):
            try:
                with tf.device(f"/job:{role}/task:{index}/device:CPU:0"):
                    yield f"{role} {index}", address, json.loads(tf.io.read_file(f"/proc/self/fd/{FACTS}").numpy())
            except LOST_ERRORS as error:
                if not is_worker_lost(error):
                    raise
            except tf.errors.NotFoundError:
                yield f"{role} {index}", address, None


def publish_versions() -> int:
    """Let the chief read what this process has, in a file without a name: TensorFlow's servers exchange no objects.

    Returns the file's time of access, in ns, which changes when the chief reads it.
    """
    facts = json.dumps({"host": platform.node(), "versions": versions()}, allow_nan=False)
    file = os.memfd_create("ringslice")
    os.write(file, facts.encode())
    os.dup2(file, FACTS)
    os.close(file)
    return os.fstat(FACTS).st_atime_ns


def serve(task: Task) -> None:
    """Serve the address of a worker or server until the chief has ended. Raises EnvironmentFailure if none comes."""
    unread = publish_versions()
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads_of(task))
    with name_taken_port(task):
        server = tf.distribute.Server(task.cluster, task.role, task.index, protocol="grpc", config=config)
    await_end(task, unread)
    del server  # which serves until now


def await_end(task: Task, unread: int) -> None:
    """Wait until the chief, once it has come, does not answer. It may read the versions and end between two looks.

    Args:
        task: A worker or server.
        unread: What `publish_versions` returned.

    Raises:
        EnvironmentFailure: The chief does not come within `JOIN_TIMEOUT_S`.
    """
    address = task.cluster[CHIEF][0]
    host, _, port = address.rpartition(":")
    deadline, has_come, misses = time.monotonic() + JOIN_TIMEOUT_S, False, 0
    while misses < MAX_MISSES:
        try:
            with socket.create_connection((host, int(port)), LOOK_S):
                has_come, misses = True, 0
        except OSError:
            misses += has_come
            has_come = has_come or os.fstat(FACTS).st_atime_ns != unread
            if not has_come and time.monotonic() > deadline:
                raise EnvironmentFailure(
                    f"{task.role} {task.index}: the chief did not come to {address} within {JOIN_TIMEOUT_S:.0f} s."
                    " Start all processes, with the same cluster in TF_CONFIG"
                ) from None
        time.sleep(LOOK_S)


def threads_of(task: Task) -> int:
    """Threads between ops. One waits for each other process: with fewer than processes they may wait for each other."""
    return max(len(os.sched_getaffinity(0)), 1 + sum(len(each) for each in task.cluster.values()))
