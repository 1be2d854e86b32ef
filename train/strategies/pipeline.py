"""Model parallel by layer: each rank has consecutive layers, and micro-batches of a step go from rank to rank.

`torch.distributed.pipelining` sends activations and gradients; a step adds up the gradients of its micro-batches, and
is that of one process that takes them in turn.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.config.settings import GPIPE, MICRO_BATCHES, PIPELINE, Settings
from train.parallel.collective import Collective
from train.reader.intervals import run_of
from train.strategies.divided_model import DividedModel, DividedTrainer, ModelParallel
from train.strategies.division import Shape, balance, is_plain, join_without_weights, measure
from train.torch_backend.feed import PixelBatch
from train.torch_backend.trainer import DTYPES


class Stage(nn.Module):
    """The layers of one rank, which have the names that they have in the whole model.

    Random numbers depend on the step, the micro-batch and the layer, so they are the same however layers are divided.
    Padding is not computed in training, because batch norm would count it.
    """

    def __init__(self, layers: nn.Sequential, first: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = layers
        self._first, self._device, self._dtype = first, device, dtype
        self._seed = self._micro_batch = 0
        self._examples: Sequence[int] = ()

    def begin(self, seed: int, examples: Sequence[int]) -> None:
        """The next micro-batch is the first one of the step of this seed; each has so many ``examples``, then padding.

        Batch norm takes two at least, and without any it does not learn: the first padding is the only example again.
        """
        self._seed, self._examples, self._micro_batch = seed, examples, 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs for ``features`` of shape (micro-batch, …): float32, with zeros for padding in training."""
        size = len(features)
        features = features.clone()  # the first layer may work in place, and what a rank received must stay
        if self.training:
            examples = self._examples[self._micro_batch]
            self.layers.train(examples > 0)
            features = features[: max(2, examples)]
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            for number, layer in enumerate(self.layers, self._first):
                if self.training:
                    entropy = (self._seed, self._micro_batch, number)
                    torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
                features = layer(features)
        self._micro_batch += 1
        padding = (0, 0) * (features.ndim - 1) + (0, size - len(features))
        return functional.pad(features.float(), padding).contiguous()


def spread_examples(weights: torch.Tensor, parts: int) -> tuple[torch.Tensor, list[int]]:
    """Divide a step's examples, those whose weights are not 0, among micro-batches of nearly equal numbers of them.

    Returns where the examples of all micro-batches come from, of the shape of ``weights``, and their numbers. A
    micro-batch is filled up with its first one.
    """
    real, size = weights.nonzero()[:, 0].tolist(), len(weights) // parts
    own = [real[slice(*run_of(len(real), part, parts))] for part in range(parts)]
    filled = [[*each, *(each or [0])[:1] * (size - len(each))] for each in own]
    return torch.tensor(filled).flatten(), [len(each) for each in own]


class LayerDivision(ModelParallel):
    """Divides a model into stages. ``shape`` is that of a micro-batch."""

    def __init__(
        self, collective: Collective, mesh: DeviceMesh, device: torch.device, shape: Shape, dtype: torch.dtype
    ) -> None:
        super().__init__(collective, mesh)
        self._device, self._shape, self._dtype = device, shape, dtype
        self._first = 0  # layer of this rank
        self.starts: list[int] = []  # the first layer of each rank, then the number of layers
        self.shapes: tuple[Shape, Shape] = (), ()  # of what the stage takes and gives

    def divide(self, model: nn.Module) -> nn.Module:
        """Raises UsageError if ``model`` is not a plain Sequential, or has too few layers with weights."""
        if not is_plain(model):
            what = " with a forward, hooks or weights of its own" if isinstance(model, nn.Sequential) else ""
            raise UsageError(
                f"--strategy {PIPELINE} needs a torch.nn.Sequential, whose layers it divides; --model gives"
                f" {type(model).__name__}{what}. Use ddp, or give another --model"
            )
        rank, size, layers = self.part_rank, self.parts, list(model)
        units = join_without_weights(layers)
        if len(units) < size:
            raise UsageError(
                f"--strategy {PIPELINE}: {size} ranks for {len(units)} layers with weights. Start fewer ranks"
            )
        seconds, shapes = self.collective.run_on_root(  # they differ from rank to rank
            lambda: measure(layers, self._shape, self._device)
        )
        costs = [sum(seconds[start:end]) for start, end in zip(units, [*units[1:], len(layers)], strict=True)]
        self.starts = [*(units[each] for each in balance(costs, size)), len(layers)]
        self._first, end = self.starts[rank : rank + 2]
        self.shapes = [self._shape, *shapes][self._first], shapes[end - 1]
        own = nn.Sequential()
        for name, layer in list(model._modules.items())[self._first : end]:  # one may be there twice
            own.add_module(name, layer)
        return own

    def wrap(self, model: nn.Module, may_leave_out: bool) -> nn.Module:
        """The layers as a `Stage`."""
        del may_leave_out
        assert isinstance(model, nn.Sequential)
        return Stage(model, self._first, self._device, self._dtype)


class PipelineTrainer(DividedTrainer):
    """The trainer of one stage. The first one takes pixels; the last one has the loss, which all ranks then have."""

    net: Stage

    def __init__(
        self, settings: Settings, manifest: Manifest, collective: Collective, mesh: DeviceMesh, device: torch.device
    ) -> None:
        count = settings.micro_batches or MICRO_BATCHES
        batch = settings.recipe.rank_batch
        if batch % count:
            raise UsageError(
                f"--batch {batch} is not divisible by --micro-batches {count}. Give others; the default --batch is at"
                " most the number of examples"
            )
        shape = (batch // count, manifest.channels, *settings.picture_size(manifest))
        layers = LayerDivision(collective, mesh, device, shape, DTYPES[settings.recipe.precision])
        super().__init__(settings, manifest, layers, device)
        rank, self._last = layers.part_rank, layers.parts - 1
        self._starts, self._micro_batches = layers.starts, count
        self._is_first, self._is_last = rank == 0, rank == self._last
        self._examples = torch.ones((), device=device)
        taken, given = (torch.zeros(each, device=device) for each in layers.shapes)
        taken.requires_grad_(not self._is_first)
        stages = [
            PipelineStage(self.net, rank, layers.parts, device, taken, each, group=layers.part_group)
            for each in (given.clone().requires_grad_(), given)
        ]
        kind = ScheduleGPipe if settings.pipeline_schedule == GPIPE else Schedule1F1B
        self._schedule = kind(stages[0], count, loss_fn=self._loss_of, scale_grads=False)
        self._evaluation = ScheduleGPipe(stages[1], count)

    @property
    def notes(self) -> list[str]:
        """Which layers each stage has."""
        stages = ", ".join(f"{start} to {end - 1}" for start, end in pairwise(self._starts))
        return [f"layers of the stages, from 0: {stages}"]

    def _loss_of(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """A micro-batch's part of the mean loss. ``target``: labels and weights, of shape (micro-batch, 2)."""
        labels, weights = target[:, 0].long(), target[:, 1].float()
        smoothing = self._recipe.label_smoothing
        losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return (losses * weights).sum() / self._examples

    def _compute_gradients(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        places, numbers = spread_examples(batch.weights, self._micro_batches)
        self.net.begin(torch.initial_seed(), numbers)
        self._examples = examples / self._parts.size  # the mean over the copies follows
        sums = torch.zeros(3, device=self._device)
        if self._is_first:
            pixels = batch.pixels.to(self._device, non_blocking=True)[places.to(self._device)]
            self._schedule.step(self._normalised(pixels))
        elif self._is_last:
            is_example = torch.arange(len(places) // len(numbers)) < torch.tensor(numbers)[:, None]
            target = torch.stack([batch.labels[places].double(), is_example.flatten().double()], 1).to(self._device)
            losses: list[torch.Tensor] = []
            logits = self._schedule.step(target=target, losses=losses)
            hits = (logits.argmax(1) == target[:, 0]) * target[:, 1]
            loss = torch.stack([each.detach() for each in losses]).sum() * self._examples
            sums = torch.stack([loss, hits.sum().float(), target[:, 1].sum().float()])
        else:
            self._schedule.step()
        torch.distributed.broadcast(sums, group=self._parts.part_group, group_src=self._last)  # rank 0 shows them
        return sums

    @torch.no_grad()
    def evaluate_step(self, batch: PixelBatch) -> tuple[list[float], np.ndarray]:
        """As `TorchTrainer.evaluate_step` on the last stage, which has the logits; zeros on the others."""
        self.net.eval()
        pixels = [self._normalised(batch.pixels.to(self._device))] if self._is_first else []
        logits = self._evaluation.step(*pixels)
        if not self._is_last:
            return [0.0, 0.0, 0.0], np.zeros(len(batch.labels), np.int64)
        return self._scores(logits, batch)


class Pipeline(DividedModel):
    """Each rank has some of the layers."""

    @property
    def is_counted(self) -> bool:
        """True on the last stage."""
        return self.part_rank == self._parts - 1  # which has the logits

    def _make_trainer(self, settings: Settings, manifest: Manifest, mesh: DeviceMesh) -> PipelineTrainer:
        return PipelineTrainer(settings, manifest, self.collective, mesh, self._place)
