"""PyTorch's DistributedDataParallel: one process for each rank, started by torchrun, on one host or more."""

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Timer
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from etl.errors import EnvironmentFailure, UsageError
from etl.slices.manifest import Manifest
from train.config.recipe import SYNCHRONISED
from train.config.settings import CPU, DIVIDED, GPU, Settings
from train.monitor.launcher import is_torchrun, local_rank, local_size
from train.monitor.messages import first_line
from train.monitor.monitor import BACKSTOP, Monitor
from train.parallel.collective import Collective, Number, Operation, SingleProcess
from train.parallel.cores import own_cores
from train.parallel.devices import TORCH, VISIBLE, Device, choose_gpu, gpu_uuid
from train.parallel.endings import LOST
from train.strategies import Strategy
from train.torch_backend.models import is_out_of_memory
from train.torch_backend.replicas import DataParallel
from train.torch_backend.trainer import TorchTrainer

T = TypeVar("T")
Make = Callable[[Collective, Device, torch.device], Strategy]

MIN_TIMEOUT_S = 30.0  # of a collective: the ranks need not be loaded at the same time
WITHOUT_LIMIT = timedelta(days=24)  # whose milliseconds are 32 bits
JOIN_TRIES = 3
OPERATIONS = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}


class ProcessGroup(Collective):
    """The processes of PyTorch's default group. What is exchanged here goes by Gloo, gradients on GPUs by NCCL.

    Objects have a group of their own, whose timeout is `BACKSTOP` times as long, and in which the ranks meet before
    they reduce: a rank may be late because it works alone, as rank 0 does if it restores a checkpoint or waits for the
    storage, and each rank in an evaluation.
    """

    _monitor: Monitor

    def __init__(self, monitor: Monitor, stall_timeout_s: float) -> None:
        self._monitor = monitor
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._timeout = collective_timeout(BACKSTOP * stall_timeout_s)
        self._objects = torch.distributed.new_group(timeout=self._timeout, backend="gloo")
        monitor.joined(self.rank, self.size)

    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        """By Gloo, in the memory of the host. Raises RuntimeError if a rank is lost, EnvironmentFailure if one does not
        come.
        """
        self._monitor.phase("reducing over all ranks")
        self._await_all()  # ranks evaluate their shares alone, and the default group has the timeout of a step
        tensor = torch.from_numpy(np.array(array))
        torch.distributed.all_reduce(tensor, OPERATIONS[operation])
        return tensor.numpy()

    def gather_object(self, value: T) -> list[T]:
        """Pickled, by Gloo. Raises RuntimeError if a rank is lost, EnvironmentFailure if one does not come."""
        self._monitor.phase("gathering from all ranks")
        self._await_all()
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value, self._objects)
        return found

    def _await_all(self) -> None:
        """Wait until all ranks are here. Raises EnvironmentFailure if some do not come: on rank 0 it names them, unless
        they have ended; the others wait for rank 0, which may be late or have given up.
        """
        begun, limit_s = time.monotonic(), self._timeout.total_seconds()
        try:
            torch.distributed.monitored_barrier(self._objects, self._timeout, wait_all_ranks=True)
        except RuntimeError as error:
            if self.rank:
                raise EnvironmentFailure(f"{LOST} (it waited for rank 0)") from error
            late = re.search(r"Ranks? ([\d, ]+) failed to pass", str(error))
            if late is None or time.monotonic() - begun < limit_s:
                raise EnvironmentFailure(f"{LOST} ({first_line(error)})") from error
            hint = f"waited for {limit_s:.0f} s, by --stall-timeout"
            raise EnvironmentFailure(f"rank {late[1]} did not come, and may hang; all ranks end ({hint})") from error

    def close(self) -> None:
        """Wait for all ranks: those that end first must not look like lost ones."""
        self._monitor.phase("leaving the other ranks")
        self._await_all()


class Ddp(Strategy):
    """Each rank reads its share of the slices; PyTorch averages the gradients in buckets during the backward pass."""

    def __init__(self, collective: Collective, device: Device, place: torch.device) -> None:
        self.collective = collective
        self._device, self._place = device, place

    def make_trainer(self, settings: Settings, manifest: Manifest) -> TorchTrainer:
        """Raises UsageError if batch norm is to be synchronised on CPUs, or the model does not fit the pictures."""
        if settings.recipe.batch_norm == SYNCHRONISED and self._place.type == "cpu" and self.collective.size > 1:
            raise UsageError(
                "--batch-norm synchronised is not supported by --strategy ddp on CPUs (PyTorch has it for GPUs only)."
                " Give --batch-norm local"
            )
        return TorchTrainer(settings, manifest, DataParallel(self.collective), self._place)


def take_device(device: str) -> tuple[Device, torch.device]:
    """Take this rank's GPU, or none: what it reports to the other ranks, and PyTorch's device."""
    cores = len(own_cores())
    seen = torch.cuda.device_count() if device != CPU and torch.cuda.is_available() else 0
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # torchrun's default is one
    if not seen and device != GPU:
        return Device(cores=cores), torch.device("cpu")
    try:
        number = choose_gpu(seen, local_rank(), local_size(), VISIBLE in os.environ, TORCH)
    except EnvironmentFailure as error:
        return Device(cores=cores, lacks=f"--device {device}: {error}"), torch.device("cpu")
    torch.cuda.set_device(number)
    return Device(torch.cuda.get_device_name(number), gpu_uuid(number), cores), torch.device("cuda", number)


def collective_timeout(stall_timeout_s: float) -> timedelta:
    """How long a collective waits for a rank that hangs; with 0, or very much, as good as for ever."""
    limit_s = WITHOUT_LIMIT.total_seconds()
    return timedelta(seconds=min(max(MIN_TIMEOUT_S, stall_timeout_s or limit_s), limit_s))


@contextmanager
def name_lack_of_memory() -> Iterator[None]:
    """Turn what PyTorch raises if memory is too small into one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        found = re.search(r"allocate [\d.]+ \w+", str(error))
        what = f" (cannot {found[0]})" if found else ""
        raise EnvironmentFailure(
            f"out of memory{what}. Give a smaller --batch, or divide the model among (more) ranks: --strategy"
            f" {' or '.join(DIVIDED)}"
        ) from error


@contextmanager
def name_lost_ranks() -> Iterator[None]:
    """Turn what PyTorch raises on the ranks that are left into one line; torchrun reports which rank it was."""
    try:
        yield
    except (torch.distributed.DistError, RuntimeError) as error:
        lost = ("Connection closed by peer", "Connection reset", "Timed out", "timed out", "NCCL", "Broken pipe")
        if not any(each in str(error) for each in lost):
            raise
        raise EnvironmentFailure(f"{LOST} ({first_line(error)})") from error


@contextmanager
def end_if_late(monitor: Monitor, timeout: timedelta) -> Iterator[None]:
    """End this rank if the block, which joins the others, takes several times the ``timeout``: PyTorch tries again
    after it, and waits for ever if what listens at the address of rank 0 is another program, and does not answer.
    """
    address = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    late = f"this rank cannot join: rank 0 did not answer at {address}. Start all ranks, at a port that is free"
    timer = Timer(JOIN_TRIES * timeout.total_seconds(), monitor.end, [EnvironmentFailure(late)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@name_lack_of_memory()
def run_ddp(
    work: Callable[[Strategy], None], monitor: Monitor, device: str, stall_timeout_s: float, make: Make = Ddp
) -> None:
    """Call ``work`` with the strategy that ``make`` gives, on the ranks that torchrun started; on one without it.

    Raises EnvironmentFailure if a rank does not come, or is lost; docs/strategies.md has after how long.
    """
    taken, place = take_device(device)
    if not is_torchrun():
        monitor.joined(0, 1)
        work(make(SingleProcess(), taken, place))
        return
    monitor.local_phase("joining the other ranks")
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of kernels of one channel, whose layouts are alike
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")  # as it is for models of users
    timeout = collective_timeout(stall_timeout_s)
    with name_lost_ranks():
        try:
            backend = "gloo" if place.type == "cpu" else "cpu:gloo,cuda:nccl"
            with end_if_late(monitor, timeout):
                torch.distributed.init_process_group(backend, timeout=timeout)
        except (ValueError, torch.distributed.DistError) as error:
            raise EnvironmentFailure(f"this rank cannot join: {first_line(error)}") from error
        work(make(ProcessGroup(monitor, stall_timeout_s), taken, place))
    torch.distributed.destroy_process_group()
