"""What strategies have in common that divide the model among ranks, and the data among groups of such ranks.

The ranks that share one model read the same examples. Checkpoints have the names and shapes of the whole model, so that
a run can go on with another division.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.checkpoints.safetensors_file import Arrays
from train.config.settings import Settings
from train.parallel.collective import Collective
from train.parallel.devices import Device
from train.parallel.trainer import digests_of, require_same
from train.strategies import Strategy
from train.strategies.ddp import collective_timeout
from train.strategies.division import Shape
from train.torch_backend.feed import PixelBatch
from train.torch_backend.models import build_on_meta
from train.torch_backend.replicas import DataParallel
from train.torch_backend.trainer import TorchTrainer, first_not_finite_of, to_numpy


class ModelParallel(DataParallel):
    """Copies of the model, each divided among ranks. ``mesh`` has a row for each copy, a column for each part."""

    def __init__(self, collective: Collective, mesh: DeviceMesh) -> None:
        super().__init__(collective, mesh.get_group(COPIES))
        self.mesh = mesh
        self.rank, self.size = mesh.get_local_rank(COPIES), mesh.size(0)
        self.part_rank, self.parts = mesh.get_local_rank(PARTS), mesh.size(1)
        self.part_group = mesh.get_group(PARTS)
        self.first: dict[str, torch.Tensor] = {}  # rank 0's weights of the whole model, until all have theirs

    def part(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Rank 0 makes the whole model; the others have memory for their parts only, until they get its weights."""
        model = build() if self.collective.is_root else build_on_meta(build)
        names: dict[int, str] = {}
        for name, each in model.named_parameters(remove_duplicate=False):
            if (other := names.setdefault(id(each), name)) != name:
                raise UsageError(f"--model has {other} as {name}, too, which ranks cannot divide. Use --strategy ddp")
        self.first = dict(model.state_dict()) if self.collective.is_root else {}
        return self.divide(model)

    def divide(self, model: nn.Module) -> nn.Module:
        """The part of this rank."""
        raise NotImplementedError

    def wrap(self, model: nn.Module, may_leave_out: bool) -> nn.Module:
        """As it is: `average` reduces its gradients after the backward pass."""
        del may_leave_out
        return model

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Set tensors to their means over the copies of the model."""
        if self.size > 1:
            works = [torch.distributed.all_reduce(each, group=self._group, async_op=True) for each in tensors]
            for work, each in zip(works, tensors, strict=True):
                work.wait()
                each.div_(self.size)


def make_mesh(ranks: int, parts: int, kind: str, stall_timeout_s: float) -> DeviceMesh:
    """The mesh of `ModelParallel`: consecutive ranks have the parts of one copy. Its groups wait as long as the default
    one.
    """
    of_copies, timeout = torch.arange(ranks).view(-1, parts), collective_timeout(stall_timeout_s)
    groups = [
        torch.distributed.new_subgroups_by_enumeration(each.tolist(), timeout)[0] for each in (of_copies.T, of_copies)
    ]
    return DeviceMesh.from_group(groups, kind, of_copies, mesh_dim_names=(COPIES, PARTS))


COPIES, PARTS = "copies", "parts"  # the dimensions of a mesh of ranks


@dataclass(frozen=True)
class WholeTensor:
    """A tensor of the whole model or optimizer, and the ranks that have it, or a part of it."""

    shape: Shape
    dtype: torch.dtype
    ranks: list[int]

    @property
    def owner(self) -> int:
        """The first rank that has it, which sends it to rank 0."""
        return self.ranks[0]


class DividedTrainer(TorchTrainer):
    """A trainer of a part of the model: tensors of its own, or `DTensor` shards of them."""

    is_divided = True

    def __init__(self, settings: Settings, manifest: Manifest, parts: ModelParallel, device: torch.device) -> None:
        self._clip_norm, self._collective, self._parts = settings.recipe.clip_norm, parts.collective, parts
        own = replace(settings, recipe=replace(settings.recipe, clip_norm=0.0))  # the norm is over all parts
        super().__init__(own, manifest, parts, device)
        self._pending: Mapping[str, Arrays] = {}  # rank 0's, until `broadcast_state`
        tensors = {name: (tuple(each.shape), each.dtype) for name, each in self._tensors.items()}
        self._wholes: dict[str, WholeTensor] = {}
        for rank, of_rank in enumerate(self._collective.gather_object(tensors)):
            for name, (shape, dtype) in of_rank.items():
                self._wholes.setdefault(name, WholeTensor(shape, dtype, [])).ranks.append(rank)
        self._pending = {"model": {name: each.numpy() for name, each in parts.first.items()}}
        parts.first = {}
        self.broadcast_state()

    @property
    def parameters(self) -> int:
        """The number of weights of the whole model, batch norm's statistics among them."""
        return sum(prod(each.shape) for name, each in self._wholes.items() if name.startswith("model/"))

    def _forward_backward(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        sums = self._compute_gradients(batch, examples)
        gradients = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
        self._parts.average([local(each) for each in gradients.values()])
        if self._clip_norm:
            square = torch.zeros((), device=sums.device)
            for name, each in gradients.items():
                norm = whole(torch.linalg.vector_norm(each))
                if self._wholes[f"model/{name}"].owner % self._parts.parts == self._parts.part_rank:  # counts once
                    square += norm**2
            torch.distributed.all_reduce(square, group=self._parts.part_group)
            factor = torch.clamp(self._clip_norm / (square.sqrt() + 1e-6), max=1.0)  # as PyTorch's clip_grad_norm_
            for each in gradients.values():
                local(each).mul_(factor)
        return sums

    @abstractmethod
    def _compute_gradients(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        """As `TorchTrainer._forward_backward`; the sums are the same on all ranks that share a model."""

    @torch.no_grad()
    def state(self) -> dict[str, Arrays]:
        """As `TorchTrainer.state`, of the whole model, on rank 0; the others send it their parts, and get empty groups.

        All ranks must call it together.
        """
        tensors = self._tensors
        state: dict[str, Arrays] = {group: {} for group in self._groups}
        for name, each in self._wholes.items():
            found = self._on_root(tensors.get(name), each)
            if self._collective.is_root:
                group, _, key = name.partition("/")
                state[group][key] = found.numpy()
        return state

    def _on_root(self, tensor: torch.Tensor | None, what: WholeTensor) -> torch.Tensor:
        """A copy of the whole of a tensor, on the CPU of rank 0, to which the others send what they have."""
        rank = self._collective.rank
        found = torch.empty(what.shape, dtype=what.dtype, device="meta" if rank else "cpu")
        owners, pieces = [what.owner], [found]
        if (dimension := divided_dimension(tensor)) is not None:
            owners = [*range(self._parts.parts)]  # the ranks of the first copy
            pieces = list(found.chunk(len(owners), dimension))
        for owner, piece in zip(owners, pieces, strict=True):
            if rank == owner and tensor is not None:
                own = local(tensor).detach()
                if rank == 0:
                    piece.copy_(own)
                else:
                    torch.distributed.send(own.cpu().contiguous(), 0)
            elif rank == 0:
                received = piece.contiguous()
                torch.distributed.recv(received, owner)
                if received is not piece:
                    piece.copy_(received)
        return found

    def load_state(self, state: Mapping[str, Arrays], source: str) -> None:
        """Keep arrays of the whole model for the next `broadcast_state`. Raises UsageError if names or shapes are not
        those of the whole model.
        """
        for group, arrays in state.items():
            ours = {
                name.removeprefix(f"{group}/"): each.shape
                for name, each in self._wholes.items()
                if name.startswith(f"{group}/")
            }
            require_same(source, group, {name: each.shape for name, each in arrays.items()}, ours)
        self._pending = state

    @torch.no_grad()
    def broadcast_state(self, root: int = 0) -> None:
        """Give each rank its part of what rank ``root`` got by `load_state`; of other groups, nothing."""
        pending, self._pending = self._pending, {}
        groups = self._collective.broadcast_object(list(pending), root)
        tensors = self._tensors
        for name, each in self._wholes.items():
            group, _, key = name.partition("/")
            if group in groups and self._collective.rank in (root, *each.ranks):
                found = torch.empty(each.shape, dtype=each.dtype)
                if self._collective.rank == root:
                    found.copy_(torch.from_numpy(pending[group][key]))
                self._deliver(found, each, root)
                if name in tensors:
                    take(tensors[name], found)

    def _deliver(self, found: torch.Tensor, what: WholeTensor, root: int) -> None:
        """Send a tensor from rank ``root`` to those that have a part of it, in the memory that these have for it."""
        rank = self._collective.rank
        if len(what.ranks) == self._collective.size:
            torch.distributed.broadcast(found, root)
        elif rank != root:
            torch.distributed.recv(found, root)
        else:
            for other in what.ranks:
                if other != root:
                    torch.distributed.send(found, other)

    def digests(self) -> list[tuple[str, str]]:
        """As `TorchTrainer.digests`, of the tensors of this rank; names of shards have the number of their part."""
        part = f" of part {self._parts.part_rank}"
        return digests_of(
            (name if divided_dimension(each) is None else f"{name}{part}", to_numpy(local(each)))
            for name, each in self._tensors.items()
        )

    def first_not_finite(self) -> str:
        """As `TorchTrainer.first_not_finite`, of all ranks. They must call it together."""
        own = first_not_finite_of({name: local(each) for name, each in self._tensors.items()})
        return next((each for each in self._collective.gather_object(own) if each), "")


def divided_dimension(tensor: torch.Tensor | None) -> int | None:
    """That along which ranks have different parts of it; None if they have not."""
    placements = tensor.placements if isinstance(tensor, DTensor) else ()
    return next((each.dim for each in placements if isinstance(each, Shard)), None)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, gathered from the ranks that have shards of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def take(tensor: torch.Tensor, found: torch.Tensor) -> None:
    """Set a tensor, or this rank's shard of it, to the values of the whole one, which all ranks have."""
    if isinstance(tensor, DTensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        found = distribute_tensor(found.to(mesh.device_type), mesh, placements, src_data_rank=None)
    tensor.copy_(found)


class DividedModel(Strategy):
    """Each ``model_ranks`` ranks (None: all) share one copy of the model, and read the same examples."""

    def __init__(
        self, collective: Collective, device: Device, place: torch.device, model_ranks: int | None = None
    ) -> None:
        self.collective = collective
        self._device, self._place, self._parts = device, place, model_ranks or collective.size
        if collective.size % self._parts:
            raise UsageError(
                f"--model-ranks {self._parts} does not divide the number of ranks, {collective.size}. Start a multiple"
                f" of {self._parts}, or give another"
            )

    @property
    def data_rank(self) -> int:
        """The number of the copy that this rank has a part of."""
        return self.collective.rank // self._parts

    @property
    def data_size(self) -> int:
        """The number of copies."""
        return self.collective.size // self._parts

    @property
    def part_rank(self) -> int:
        """The part that this rank has, from 0."""
        return self.collective.rank % self._parts

    def make_trainer(self, settings: Settings, manifest: Manifest) -> DividedTrainer:
        """Raises UsageError if there is one rank only, or the model cannot be divided among the ranks of a copy."""
        if self.collective.size == 1:
            raise UsageError(
                f"--strategy {settings.strategy} divides the model among ranks, and there is one. Start more: torchrun"
                " --nproc-per-node N, or ringslice train --ranks N"
            )
        mesh = make_mesh(self.collective.size, self._parts, self._place.type, settings.stall_timeout_s)
        return self._make_trainer(settings, manifest, mesh)

    @abstractmethod
    def _make_trainer(self, settings: Settings, manifest: Manifest, mesh: DeviceMesh) -> DividedTrainer:
        """As `make_trainer`, of the ranks of a mesh."""
