"""Model parallel by module: branches are on different ranks, pairs of linear layers are divided; the rest is on each.

Of a pair, each rank has some columns of the first layer and the rows of the second that belong to them: it computes
with them alone, and one sum over the ranks follows (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.config.settings import TENSOR_PARALLEL, Settings
from train.parallel.collective import Collective
from train.runs.consistency import counted
from train.strategies.divided_model import PARTS, DividedModel, DividedTrainer, ModelParallel
from train.strategies.division import Shape, has_additions, is_plain, measure, spread
from train.torch_backend.branches import SUM, Branches
from train.torch_backend.feed import PixelBatch
from train.torch_backend.trainer import TorchTrainer

# What may be between the layers of a pair: each element by itself, without random numbers.
ELEMENTWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity)
TOLERANCE = 0.01  # of the largest logit: above what TF32 and another order of sums change


class OwnBranches(Branches):
    """Those of the branches of ``whole`` whose rank in ``owners`` is this one; all ranks get what all of them make.

    ``widths`` are the sizes of dimension 1 of their outputs. Both are by name.
    """

    def __init__(self, whole: Branches, owners: Mapping[str, int], widths: Mapping[str, int], mesh: DeviceMesh) -> None:
        own = {name: whole.get_submodule(name) for name in whole.names if owners[name] == mesh.get_local_rank()}
        super().__init__(own, whole.merge, whole.names)
        self._mesh = mesh
        of_ranks = [
            [(name, widths[name]) for name in whole.names if owners[name] == rank] for rank in range(mesh.size())
        ]
        self._width = max(sum(width for _, width in each) for each in of_ranks)  # of each rank, with padding
        self._gathered = [
            part for each in of_ranks for part in (*each, ("", self._width - sum(width for _, width in each)))
        ]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The merged outputs of the branches of all ranks, for ``features`` that all ranks have alike."""
        features = self.shared(features)
        own = self.merged(features)
        own = own + features[:0].sum()  # 0, so that each rank has a gradient of the features
        if torch.is_autocast_enabled(own.device.type):
            own = own.to(torch.get_autocast_dtype(own.device.type))  # which may be that of some branches only
        if self.training and not own.requires_grad:
            own.requires_grad_()  # all ranks must take the same backward pass
        if self.merge == SUM:
            return self._whole(own, Partial())
        padded = functional.pad(own, (0, 0) * (own.ndim - 2) + (0, self._width - own.shape[1]))
        names, widths = zip(*self._gathered, strict=True)
        parts = dict(zip(names, self._whole(padded, Shard(1)).split(widths, 1), strict=True))
        return torch.cat([parts[name] for name in self.names], 1)

    def shared(self, features: torch.Tensor) -> torch.Tensor:
        """The features, whose gradient becomes the sum over the ranks."""
        same = DTensor.from_local(features, self._mesh, [Replicate()], run_check=False)
        return same.to_local(grad_placements=[Partial()])

    def _whole(self, own: torch.Tensor, placement: Partial | Shard) -> torch.Tensor:
        found = DTensor.from_local(own, self._mesh, [placement], run_check=False)
        return found.redistribute(placements=[Replicate()]).to_local()


def is_divided(module: nn.Module, ranks: int) -> bool:
    """True if it has branches, at least one for each rank."""
    return isinstance(module, Branches) and len(module.names) >= ranks


def common_modules(module: nn.Module, ranks: int, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that all ranks have, by name: not what is within divided branches, but these themselves."""
    yield path, module
    for child, layer in () if is_divided(module, ranks) else module.named_children():
        yield from common_modules(layer, ranks, f"{path}.{child}" if path else child)


def pairs(model: nn.Module, ranks: int) -> Iterator[tuple[str, str]]:
    """The names of linear layers of which one follows another, and whose shared features the ranks can divide."""
    for path, module in common_modules(model, ranks):
        if not is_plain(module):
            continue
        first: tuple[str, nn.Linear] | None = None
        for child, layer in module._modules.items():  # one may be there twice
            name = f"{path}.{child}" if path else child
            if has_additions(layer):
                first = None
            elif type(layer) is nn.Linear and first is not None and first[1].out_features % ranks == 0:
                yield first[0], name
                first = None
            elif type(layer) is nn.Linear:
                first = name, layer
            elif type(layer) not in ELEMENTWISE:
                first = None


class ShardDivision(ModelParallel):
    """Divides branches and pairs of linear layers of a model. ``shape`` is that of a batch of pixels."""

    def __init__(self, collective: Collective, mesh: DeviceMesh, device: torch.device, shape: Shape) -> None:
        super().__init__(collective, mesh)
        self._device, self._shape = device, shape
        self.numbers = 0, 0  # modules with branches and pairs of layers that are divided
        self._logits: list[list[float]] = []  # of the whole model

    def divide(self, model: nn.Module) -> nn.Module:
        """``model`` with this rank's branches and shards. Raises UsageError if there is nothing to divide."""
        found = list(pairs(model, self.parts))
        branches = {name: each for name, each in common_modules(model, self.parts) if is_divided(each, self.parts)}
        self.numbers = len(branches), len(found)
        if not any(self.numbers):
            raise UsageError(
                f"--strategy {TENSOR_PARALLEL} divides Branches, of at least {self.parts}, and pairs of torch.nn.Linear"
                f" of a torch.nn.Sequential, whose features between them are divisible by {self.parts} ranks; --model"
                " has none. Use ddp, or give another --model, as mlp or googlenet"
            )
        # on one rank: times differ from rank to rank
        measured, self._logits = self.collective.run_on_root(lambda: self._examine(model, branches))
        for name, of_branches in measured.items():
            names, costs = branches[name].names, [seconds for [seconds], _ in of_branches]
            owners = dict(zip(names, spread(costs, self.parts), strict=True))
            widths = {each: shape[1] for each, (_, [shape]) in zip(names, of_branches, strict=True)}
            own = OwnBranches(branches[name], owners, widths, self.mesh[PARTS])
            if name:
                model.set_submodule(name, own)
            else:
                model = own
        plan: dict[str, ParallelStyle] = {}
        for first, second in found:
            plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
        return parallelize_module(model, self.mesh[PARTS], plan, src_data_rank=None) if plan else model

    def _examine(
        self, model: nn.Module, branches: Mapping[str, Branches]
    ) -> tuple[dict[str, list[tuple[list[float], list[Shape]]]], list[list[float]]]:
        """What `measure` finds for each branch, by name, and the logits of the whole model.

        Branches that the model does not use are left out.
        """
        inputs: dict[str, Shape] = {}
        with ExitStack() as hooks:
            for name, each in branches.items():
                hook = each.register_forward_pre_hook(
                    lambda _, taken, name=name: inputs.update({name: tuple(taken[0].shape[1:])})
                )
                hooks.callback(hook.remove)
            logits = self._logits_of(model, torch.device("cpu"))
        measured = {
            name: [
                measure([branches[name].get_submodule(each)], (self._shape[0], *shape), self._device)
                for each in branches[name].names
            ]
            for name, shape in inputs.items()
        }
        return measured, logits

    def _logits_of(self, model: nn.Module, device: torch.device) -> list[list[float]]:
        """The logits of two random pictures, which are the same on all ranks."""
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            pixels = torch.randn(2, *self._shape[1:])
            return model.eval()(pixels.to(device)).float().tolist()

    def require_same_function(self, model: nn.Module) -> None:
        """Raise UsageError if ``model``, which is divided and has its weights, computes something else than the whole.

        As one that does more with the features of a pair of layers than to give them to the second one.
        """
        expected, found = torch.tensor(self._logits), torch.tensor(self._logits_of(model, self._device))
        largest = float(expected.nan_to_num().abs().max())
        if not torch.allclose(found, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
            raise UsageError(
                f"--strategy {TENSOR_PARALLEL}: --model gives other logits once its linear layers are divided, because"
                " something else uses the features between two of them. Use --strategy ddp"
            )


class TensorParallelTrainer(DividedTrainer):
    """The trainer of branches and shards of some layers, and of copies of the others."""

    def __init__(self, settings: Settings, manifest: Manifest, shards: ShardDivision, device: torch.device) -> None:
        super().__init__(settings, manifest, shards, device)
        shards.require_same_function(self.model)
        self._numbers = shards.numbers
        for group in self.optimizer.torch.param_groups:
            group["foreach"] = False  # which takes no shards beside other tensors
        self._copied = self._common(dict(self.model.named_parameters()))

    @property
    def notes(self) -> list[str]:
        """What is divided."""
        modules, layers = self._numbers
        return [
            f"divided among {self._parts.parts} ranks: the branches of {counted(modules, 'module')},"
            f" {counted(layers, 'pair')} of linear layers"
        ]

    def _common(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Those of the model's that all ranks have whole."""
        wholes = ((each, self._wholes.get(f"model/{name}")) for name, each in tensors.items())
        return [
            each
            for each, what in wholes
            if what and len(what.ranks) == self._collective.size and not isinstance(each, DTensor)
        ]

    def _compute_gradients(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        return TorchTrainer._forward_backward(self, batch, examples)

    def _forward_backward(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        sums = super()._forward_backward(batch, examples)
        copied = [each.grad for each in self._copied if each.grad is not None]
        self._share(copied)
        return sums

    def _average_statistics(self, olds: Sequence[torch.Tensor], own: torch.Tensor, examples: torch.Tensor) -> None:
        super()._average_statistics(olds, own, examples)
        statistics = {name: each for name, each in self.model.named_buffers() if each.is_floating_point()}
        self._share(self._common(statistics))

    @torch.no_grad()
    def _share(self, tensors: list[torch.Tensor]) -> None:
        """Give all ranks of a model those of the first: theirs are equal up to rounding, and must not part."""
        if not tensors:
            return
        flat = torch.cat([each.flatten() for each in tensors])
        torch.distributed.broadcast(flat, group=self._parts.part_group, group_src=0)
        for each, part in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
            each.copy_(part.view_as(each))

    def broadcast_state(self, root: int = 0) -> None:
        """As `DividedTrainer.broadcast_state`; what all ranks of a model have whole is then bit for bit the same."""
        super().broadcast_state(root)
        self._share(self._common(self.model.state_dict()))


class TensorParallel(DividedModel):
    """Each rank has a part of the layers that can be divided, and some of the branches."""

    @property
    def is_counted(self) -> bool:
        """True on the first rank of each copy."""
        return self.part_rank == 0  # all have the same numbers

    def _make_trainer(self, settings: Settings, manifest: Manifest, mesh: DeviceMesh) -> TensorParallelTrainer:
        shape = (settings.recipe.rank_batch, manifest.channels, *settings.picture_size(manifest))
        return TensorParallelTrainer(
            settings, manifest, ShardDivision(self.collective, mesh, self._place, shape), self._place
        )
