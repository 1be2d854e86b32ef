"""The processes that train copies of the model, and how they reduce what each has computed."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.parallel.collective import Collective


class DataParallel:
    """One copy of the model on each process of ``collective``, ``size`` in all.

    ``group`` has the processes to sum over: by default all of them.
    """

    def __init__(self, collective: Collective, group: torch.distributed.ProcessGroup | None = None) -> None:
        self.collective, self._group = collective, group
        self.rank, self.size = collective.rank, collective.size

    def part(self, build: Callable[[], nn.Module]) -> nn.Module:
        """The part that this process has of the model that ``build`` makes: all of it."""
        return build()

    def wrap(self, model: nn.Module, may_leave_out: bool) -> nn.Module:
        """``model`` within DistributedDataParallel, whose backward pass gives the mean of the gradients of all copies.

        Alone it is left as it is. Buffers are not broadcast. A model that ``may_leave_out`` weights in a step, or in
        all of them, takes somewhat longer.
        """
        if self.size == 1:
            return model
        with warnings.catch_warnings():  # the option has another name in newer versions
            warnings.simplefilter("ignore")
            return DistributedDataParallel(
                model,
                broadcast_buffers=False,  # the trainer averages them
                find_unused_parameters=may_leave_out,
            )

    def without_reduction(self, net: nn.Module) -> AbstractContextManager[None]:
        """Surround a part of a step: gradients of the wrapped ``net`` are added up on this process only."""
        return net.no_sync() if self.size > 1 else nullcontext()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, in whose memory the sum over the group is then."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor, group=self._group)
        return tensor

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> None:
        """Set ``tensors``, in place, to those of process ``root``."""
        for each in tensors if self.size > 1 else ():
            torch.distributed.broadcast(each.detach(), root)
