"""Model parallel by module: pairs of linear layers are divided among the ranks, all other layers are on each rank.

Of a pair, each rank has some columns of the first layer and the rows of the second that belong to them: it computes
with them alone, and one sum over the ranks follows (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.config.settings import TENSOR_PARALLEL, Settings
from train.strategies.divided_model import PARTS, DividedModel, DividedTrainer, Parts
from train.torch_backend.feed import PixelBatch
from train.torch_backend.trainer import TorchTrainer

# What may be between the layers of a pair: each element by itself, without random numbers.
ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity)


def pairs(model: nn.Module, ranks: int) -> Iterator[tuple[str, str]]:
    """The names of linear layers of which one follows another, and whose shared features the ranks can divide."""
    for path, module in model.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        first: tuple[str, nn.Linear] | None = None
        for child, layer in module.named_children():
            name = f"{path}.{child}" if path else child
            if type(layer) is nn.Linear and first is not None and first[1].out_features % ranks == 0:
                yield first[0], name
                first = None
            elif type(layer) is nn.Linear:
                first = name, layer
            elif not isinstance(layer, ELEMENTWISE):
                first = None


class Shards(Parts):
    """Divides the pairs of linear layers of a model."""

    def part(self, model: nn.Module) -> nn.Module:
        found = list(pairs(model, self.parts))
        if not found:
            raise UsageError(
                f"--strategy {TENSOR_PARALLEL} divides pairs of torch.nn.Linear of a torch.nn.Sequential, and --model"
                f" has none whose features between them are divisible by {self.parts} ranks. Use ddp, or give another"
                " --model, as mlp"
            )
        plan: dict[str, ParallelStyle] = {}
        for first, second in found:
            plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
        return parallelize_module(model, self.mesh[PARTS], plan)


class TensorParallelTrainer(DividedTrainer):
    """The trainer of shards of some layers, and of copies of the others."""

    def __init__(self, settings: Settings, manifest: Manifest, shards: Shards, device: torch.device) -> None:
        super().__init__(settings, manifest, shards, device)
        for group in self.optimizer.torch.param_groups:
            group["foreach"] = False  # which takes no shards beside other tensors
        self._copied = [each for each in self.model.parameters() if not isinstance(each, DTensor)]

    def _compute_gradients(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        return TorchTrainer._forward_backward(self, batch, examples)

    def _forward_backward(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        sums = super()._forward_backward(batch, examples)
        copied = [each.grad for each in self._copied if each.grad is not None]
        self._share(copied)
        return sums

    def _average_statistics(self, olds: Sequence[torch.Tensor], own: torch.Tensor, examples: torch.Tensor) -> None:
        super()._average_statistics(olds, own, examples)
        self._share(self._statistics)

    @torch.no_grad()
    def _share(self, tensors: list[torch.Tensor]) -> None:
        """Give all ranks of a model those of the first: theirs are equal up to rounding, and must not part."""
        if not tensors:
            return
        flat = torch.cat([each.flatten() for each in tensors])
        torch.distributed.broadcast(flat, group=self._parts.part_group, group_src=0)
        for each, part in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
            each.copy_(part.view_as(each))

    def _over_parts(self, squares: torch.Tensor) -> torch.Tensor:
        return squares  # of whole tensors

    def broadcast_state(self, root: int = 0) -> None:
        super().broadcast_state(root)
        self._share([each for each in self.model.state_dict().values() if not isinstance(each, DTensor)])


class TensorParallel(DividedModel):
    """Each rank has a part of the layers that can be divided."""

    name = TENSOR_PARALLEL

    @property
    def is_counted(self) -> bool:
        return self.part_rank == 0  # all have the same numbers

    def _make_trainer(self, settings: Settings, manifest: Manifest, mesh: DeviceMesh) -> TensorParallelTrainer:
        return TensorParallelTrainer(settings, manifest, Shards(self.collective, mesh), self._place)
