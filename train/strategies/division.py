"""Which layers or branches of a model are on which rank, so that each rank takes about the same time."""

import time
from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate
from typing import TypeGuard

import torch
from torch import nn

from etl.errors import UsageError
from train.monitor.messages import first_line
from train.torch_backend.models import is_out_of_memory

Shape = tuple[int, ...]

ROUNDS = 3  # of measuring, of which the fastest counts: others may have begun, or been disturbed


def measure(layers: Sequence[nn.Module], shape: Shape, device: torch.device) -> tuple[list[float], list[Shape]]:
    """The seconds of the forward and backward pass of each layer, for an input of ``shape`` to the first one; and the
    shape that each layer gives. Raises UsageError if a layer does not train on it.
    """
    try:
        return _measure(layers, shape, device)
    except (RuntimeError, ValueError) as error:  # batch norm of one value, for example
        if is_out_of_memory(error):
            raise
        raise UsageError(
            f"--model cannot train on a batch of {shape[0]} ({first_line(error)}). Give a larger --batch, or fewer"
            " --micro-batches"
        ) from error


def _measure(layers: Sequence[nn.Module], shape: Shape, device: torch.device) -> tuple[list[float], list[Shape]]:
    seconds, shapes = [], []
    features = torch.zeros(shape, device=device)
    for each in layers:
        layer = deepcopy(each).to(device).train()  # a copy: running statistics change
        rounds = []
        for _ in range(ROUNDS):
            features = features.detach().requires_grad_()
            begun = _now(device)
            output = layer(features.clone())  # it may work in place
            output.backward(torch.ones_like(output))
            rounds.append(_now(device) - begun)
        seconds.append(min(rounds))
        features = output
        shapes.append(tuple(output.shape))
    return seconds, shapes


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def is_plain(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """True if it is a Sequential that does nothing but call its layers, one after the other."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and not (module._parameters or module._buffers)
        and not has_additions(module)
    )


def has_additions(module: nn.Module) -> bool:
    """True if it has hooks, or a forward pass other than its class."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def join_without_weights(layers: Sequence[nn.Module]) -> list[int]:
    """Where the layers begin that have weights to train, each with those without behind it; the first begins at 0."""
    with_weights = [number for number, each in enumerate(layers) if any(p.requires_grad for p in each.parameters())]
    return [0, *with_weights[1:]]


def balance(costs: Sequence[float], parts: int) -> list[int]:
    """Where each of so many contiguous ``parts`` begins, so that the largest sum of one is as small as can be. Pure.

    There are at least as many ``costs`` as parts; none is empty.
    """
    sums = [0.0, *accumulate(costs)]
    best = [(sums[end], [0]) for end in range(len(sums))]  # of the first `end` costs, in one part
    for part in range(2, parts + 1):
        best = [
            min(
                (max(best[start][0], sums[end] - sums[start]), [*best[start][1], start])
                for start in range(part - 1, max(part, end))
            )
            for end in range(len(sums))
        ]
    return best[-1][1]


def spread(costs: Sequence[float], ranks: int) -> list[int]:
    """The rank of each of ``costs``, so that the largest sum of one is small: the largest cost goes first, each to the
    rank that has least (Graham 1969). Pure.

    There are at least as many ``costs`` as ranks; each rank has one at least.
    """
    owners = [0] * len(costs)
    loads = [(0.0, 0, rank) for rank in range(ranks)]  # the sum of costs, and their number
    for place in sorted(range(len(costs)), key=lambda each: -costs[each]):
        least = [each for each in loads if not each[1]] or loads
        load, number, rank = min(least)
        loads[rank], owners[place] = (load + costs[place], number + 1, rank), rank
    return owners
