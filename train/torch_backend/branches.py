"""A module of several that take the same input, which ``--strategy tensor-parallel`` divides among ranks."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

CONCATENATE, SUM = "concatenate", "sum"
MAX_SEED = 1 << 62


class Branches(nn.Module):
    """Modules that take the same features; their outputs are concatenated along dimension 1 (channels), or summed.

    ``names`` are those of all branches, in order; a rank may have some of them only. Random numbers of a branch depend
    on its place, so they are the same however branches are divided.
    """

    def __init__(
        self,
        branches: Mapping[str, nn.Module],
        merge: Literal["concatenate", "sum"] = "concatenate",
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.names, self.merge = names or tuple(branches), merge
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The merged outputs of all branches for ``features`` of shape (batch, channels, …)."""
        return self.merged(features)

    def merged(self, features: torch.Tensor) -> torch.Tensor:
        """What the branches that are here make of the features, in one tensor."""
        outputs = []
        seed = int(torch.randint(MAX_SEED, ())) if self.training else 0
        for place, name in enumerate([*self.names, ""]):  # the last seed is for what follows
            if self.training:
                torch.manual_seed(seed + place)
            if name in self._modules:
                outputs.append(self.get_submodule(name)(features))
        return torch.cat(outputs, 1) if self.merge == CONCATENATE else sum(outputs[1:], outputs[0])
