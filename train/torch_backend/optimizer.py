"""What applies the mean gradient of all ranks: SGD with momentum, weight decay, clipping, LARS and loss scaling.

The update is that of `train.tf_backend.optimizer`, whose sources it has: weight decay is part of the gradient, of
kernels only; gradients are clipped by their global norm before.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from train.checkpoints.safetensors_file import Arrays
from train.config.recipe import FLOAT16, LARS, Recipe

MOMENTUM = "momentum_buffer"  # as PyTorch's SGD calls it


class Descent:
    """SGD with Nesterov momentum for the parameters of ``model`` that are trained."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device) -> None:
        self._recipe = recipe
        self._named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        kernels = [each for each in self._named.values() if each.ndim > 1]
        others = [each for each in self._named.values() if each.ndim <= 1]  # biases; batch norm's scales and shifts
        decay = 0.0 if recipe.optimizer == LARS else recipe.weight_decay  # LARS needs the kernel's gradient without it
        groups = [{"params": kernels, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        self.sgd = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == FLOAT16)
        if recipe.momentum:
            for each in self._named.values():
                self.sgd.state[each][MOMENTUM] = torch.zeros_like(each)

    @property
    def learning_rate(self) -> float:
        return float(self.sgd.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self.sgd.param_groups:
            group["lr"] = rate

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The state by name, of the same names and shapes from before the first step on."""
        states = ((name, self.sgd.state[each]) for name, each in self._named.items())
        return {f"{MOMENTUM}.{name}": state[MOMENTUM] for name, state in states if MOMENTUM in state}

    def scaling(self) -> Arrays:
        """The state of the loss scaling; empty without it."""
        return {f"scaler.{name}": np.asarray(value, np.float64) for name, value in self.scaler.state_dict().items()}

    def load_scaling(self, arrays: Arrays) -> None:
        if self.scaler.is_enabled():
            own = self.scaler.state_dict()
            found = {name: type(value)(arrays[f"scaler.{name}"]) for name, value in own.items()}
            self.scaler.load_state_dict(found)

    def step(self) -> bool:
        """Apply the gradients, which are equal on all ranks; False if one is not finite and the loss is scaled, in
        which case the step is not taken.
        """
        recipe = self._recipe
        scale = self.scaler.get_scale()
        self.scaler.unscale_(self.sgd)
        if recipe.clip_norm:
            nn.utils.clip_grad_norm_(self._named.values(), recipe.clip_norm)
        if recipe.optimizer == LARS:
            adapt_rates(self._named.values(), recipe.weight_decay, recipe.lars_coefficient)
        self.scaler.step(self.sgd)
        self.scaler.update()
        return self.scaler.get_scale() >= scale


@torch.no_grad()
def adapt_rates(parameters: Iterable[nn.Parameter], weight_decay: float, coefficient: float) -> None:
    """Scale each kernel's gradient, with its weight decay, by LARS's local rate: ``coefficient`` |w| /
    (|g| + weight_decay |w|); by 1 if that is 0 or 0 / 0.
    """
    for each in parameters:
        if each.ndim > 1 and each.grad is not None:
            of_weights = torch.linalg.vector_norm(each)
            below = torch.linalg.vector_norm(each.grad) + weight_decay * of_weights
            usable = (of_weights > 0) & (below > 0)
            trust = torch.where(usable, coefficient * of_weights / below, 1.0)
            each.grad.add_(each, alpha=weight_decay).mul_(trust)
