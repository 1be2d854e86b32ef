"""What applies the mean gradient of all ranks: SGD with momentum, LARS, Adam; weight decay, clipping, loss scaling.

The update is that of `train.tf_backend.optimizer`, whose sources it has: weight decay is part of the gradient, of
kernels only (not with adamw); gradients are clipped by their global norm before.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from train.checkpoints.safetensors_file import Arrays
from train.config.recipe import ADAM, ADAMW, FLOAT16, LARS, Recipe

BETA_2, EPSILON = 0.999, 1e-8  # of Adam


class RecipeOptimizer:
    """The optimizer of a recipe for the parameters of ``model`` that are trained, with its state from the start."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device) -> None:
        self._recipe = recipe
        self._named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        kernels = [each for each in self._named.values() if each.ndim > 1]
        others = [each for each in self._named.values() if each.ndim <= 1]  # biases; batch norm's scales and shifts
        decay = 0.0 if recipe.optimizer == LARS else recipe.weight_decay  # LARS needs the kernel's gradient without it
        groups = [{"params": kernels, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        self.torch = make_optimizer(recipe, groups)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == FLOAT16)
        for each in self._named.values():
            self.torch.state[each].update(first_state(recipe, each))

    @property
    def learning_rate(self) -> float:
        """Of the next step, before the local rates of LARS."""
        return float(self.torch.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self.torch.param_groups:
            group["lr"] = rate

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The state by name, of the same names and shapes from before the first step on."""
        states = ((name, self.torch.state[each]) for name, each in self._named.items())
        return {f"{kind}.{name}": tensor for name, state in states for kind, tensor in sorted(state.items())}

    def scaling(self) -> Arrays:
        """The state of the loss scaling; empty without it."""
        return {f"scaler.{name}": np.asarray(value, np.float64) for name, value in self.scaler.state_dict().items()}

    def load_scaling(self, arrays: Arrays) -> None:
        """Set the loss scaling, if there is any, to what `scaling` gave. Raises KeyError if a value is missing."""
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
        self.scaler.unscale_(self.torch)
        if recipe.clip_norm:
            nn.utils.clip_grad_norm_(self._named.values(), recipe.clip_norm)
        if recipe.optimizer == LARS:
            adapt_rates(self._named.values(), recipe.weight_decay, recipe.lars_coefficient)
        self.scaler.step(self.torch)
        self.scaler.update()
        return self.scaler.get_scale() >= scale


def make_optimizer(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """PyTorch's optimizer of the recipe; ``groups`` have parameters and their weight decay."""
    if recipe.optimizer in (ADAM, ADAMW):
        kind = torch.optim.AdamW if recipe.optimizer == ADAMW else torch.optim.Adam
        return kind(groups, recipe.base_rate, (recipe.momentum, BETA_2), EPSILON)
    return torch.optim.SGD(groups, recipe.base_rate, recipe.momentum, nesterov=recipe.momentum > 0)


def first_state(recipe: Recipe, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    """What the optimizer knows of a parameter before the first step, as PyTorch calls it."""
    if recipe.optimizer in (ADAM, ADAMW):
        zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.tensor(0.0), **zeros}
    return {"momentum_buffer": torch.zeros_like(parameter)} if recipe.momentum else {}


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
