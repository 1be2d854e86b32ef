"""PyTorch's trainer: a model and its optimizer, and steps with them; the results of a step are read one step later."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from etl.slices.manifest import Manifest
from train.checkpoints.safetensors_file import Arrays
from train.config.augmentation import Augmentation
from train.config.recipe import BFLOAT16, FLOAT16, FLOAT32, SYNCHRONISED
from train.config.settings import Settings
from train.parallel.trainer import StepOfRank, StepResult, digests_of, require_same
from train.reader.batches import RecordBatch
from train.reader.intervals import run_of
from train.runs.metrics import now
from train.torch_backend.decode import Decoder
from train.torch_backend.feed import PixelBatch, PixelBatches, PixelFeed, statistics_of
from train.torch_backend.models import BUILDERS, build
from train.torch_backend.optimizer import RecipeOptimizer
from train.torch_backend.replicas import DataParallel
from train.torch_backend.step_timer import StepTimer

DTYPES = {FLOAT32: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}


class TorchTrainer:
    """The `Trainer` of PyTorch: the model of a recipe at its first weights, its optimizer, the feeds of batches.

    A step's loss is the sum over the examples of all ranks, divided by their number: padding has weight 0, so a step of
    n ranks is the step of one that is fed the concatenation of their batches, whatever was skipped. What a step changes
    in batch norm's running statistics is reduced, too, each rank's by its number of examples.
    """

    is_divided = False

    def __init__(self, settings: Settings, manifest: Manifest, replicas: DataParallel, device: torch.device) -> None:
        recipe = settings.recipe
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not settings.deterministic
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as TensorFlow does
        torch.manual_seed(recipe.seed)
        shape = (*settings.picture_size(manifest), manifest.channels)
        self._recipe, self._replicas, self._device, self._is_audited = recipe, replicas, device, settings.audit
        model = replicas.part(partial(build, recipe.model, shape, len(manifest.classes)))
        self._is_synchronised = recipe.batch_norm == SYNCHRONISED and replicas.size > 1
        if self._is_synchronised:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        if any(each.is_meta for each in model.state_dict().values()):  # those beside the state have their values
            model._apply(lambda each: torch.empty_like(each, device=device) if each.is_meta else each)
        self.model: nn.Module = model.to(device, memory_format=layout)
        self.net = replicas.wrap(self.model, may_leave_out=recipe.model not in BUILDERS)
        self.optimizer = RecipeOptimizer(recipe, self.model, device)
        self._mean, self._std = statistics_of(manifest, device)
        augmentation = Augmentation.of(recipe.augmentations, recipe.crop_area)
        decoder = Decoder(manifest, shape[:2], augmentation)
        self._feed = PixelFeed(decoder, len(os.sched_getaffinity(0)), device.type == "cuda")
        self._timer = StepTimer(self.model, device.type == "cuda")
        self._unread: _UnreadStep | None = None

    @property
    def _statistics(self) -> list[torch.Tensor]:
        """The floating-point buffers of now: a layer may have others in each step."""
        return [each for each in self.model.buffers() if each.is_floating_point()]

    def train_batches(self, records: Iterator[RecordBatch], seed: int) -> PixelBatches:
        """A decoded batch for each of ``records``, augmented by ``seed``; each is timed as the input of its step."""
        with closing(self._feed.epoch(records, seed)) as batches:
            yield from self._timer.timed(batches)

    def train_step(self, batch: PixelBatch, step: int, learning_rate: float) -> list[StepResult]:
        """Take the step after ``step`` steps, with all ranks; the result of the step before, if it is not known yet.

        ``batch`` is what `train_batches` gave. Raises RuntimeError, as PyTorch does, if a rank is lost or memory is too
        small.
        """
        self.optimizer.learning_rate = learning_rate
        self.optimizer.torch.zero_grad()
        seed = np.random.SeedSequence((self._recipe.seed, step, self._replicas.rank)).generate_state(1)[0]
        torch.manual_seed(int(seed))  # of dropout
        self.net.train(bool(batch.weights.any()) or self._is_synchronised)  # padding is not learnt from
        before = [each.clone() for each in self._statistics] if self._replicas.size > 1 else []
        own = batch.weights.sum().to(self._device, non_blocking=True)
        examples = self._replicas.sum(own.clone()).clamp(min=1)  # all of a step may be skipped
        sums = self._forward_backward(batch, examples)
        begun, computed, reduced = self._timer.moments()
        self._average_statistics(before, own, examples)
        is_taken = self.optimizer.step()
        results = self.finish_steps()
        seconds = (self._timer.input_s, computed - begun, reduced - computed, self._timer.end_step())
        keys = batch.real_keys if self._is_audited else ()
        self._unread = _UnreadStep(step + 1, learning_rate, now(), seconds, HostCopy(sums), not is_taken, keys)
        return results

    def _forward_backward(self, batch: PixelBatch, examples: torch.Tensor) -> torch.Tensor:
        """The gradients, by parts of nearly equal size; returns the sums of losses, hits and examples of this rank."""
        pixels, labels, weights = without_padding(batch)
        sums = torch.zeros(3, device=self._device)
        count, parts = len(labels), self._recipe.accumulate
        for start, stop in (run_of(count, part, parts) for part in range(parts)):
            if start == stop:
                continue
            columns = [each[start:stop] for each in (pixels, labels, weights)]
            if stop - start == 1 and not self._is_synchronised:  # which counts those of all ranks
                columns = repeated(*columns)
            with nullcontext() if stop == count else self._replicas.without_reduction(self.net):
                loss, part = self._loss(columns)
                scaled = loss * self._replicas.size / examples  # the reduction gives the mean over the ranks
                self.optimizer.scaler.scale(scaled).backward()
            sums += part
        return sums

    def _loss(self, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses of some examples; and their sums of losses, hits and examples."""
        pixels, labels, weights = (each.to(self._device, non_blocking=True) for each in columns)
        logits, smoothing = self._logits(self.net, pixels), self._recipe.label_smoothing
        losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing) * weights
        hits = (logits.argmax(1) == labels) * weights
        loss = losses.sum()
        return loss, torch.stack([loss.detach(), hits.sum(), weights.sum()])

    def _logits(self, net: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        """float32 logits of uint8 pixels of shape (batch, height, width, channels)."""
        precision = DTYPES[self._recipe.precision]
        with torch.autocast(self._device.type, precision, enabled=precision != torch.float32):
            return net(self._normalised(pixels)).float()

    def _normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """float32 of shape (batch, channels, height, width), as models take them."""
        return (pixels.permute(0, 3, 1, 2).float() - self._mean) / self._std

    def _average_statistics(self, before: Sequence[torch.Tensor], own: torch.Tensor, examples: torch.Tensor) -> None:
        if not before:
            return
        pairs = list(zip(self._statistics, before, strict=True))
        changes = [torch.where(each == old, 0, each - old) * own for each, old in pairs]  # infinity may stay as it is
        summed = self._replicas.sum(torch.cat([each.flatten() for each in changes])) / examples
        parts = summed.split([each.numel() for each in before])
        for (each, old), change in zip(pairs, parts, strict=True):
            each.copy_(old + change.view_as(old))

    def finish_steps(self) -> list[StepResult]:
        """Wait for the device; the result of the last step, if it is not known yet."""
        if self._unread is None:
            return []
        taken, self._unread = self._unread, None
        measured = StepOfRank.of(taken.step, taken.rate, taken.sums.read(), taken.seconds, taken.time)
        return [StepResult(measured, taken.is_skipped, taken.keys)]

    def evaluation_batches(self, records: Iterator[RecordBatch]) -> PixelBatches:
        """A decoded batch for each of ``records``, not augmented. Raises what ``records`` raises, and DataError."""
        return self._feed.epoch(records)

    @torch.no_grad()
    def evaluate_step(self, batch: PixelBatch) -> tuple[list[float], np.ndarray]:
        """The sums of losses, hits and examples of this batch; the predicted classes, int64 of shape (batch,)."""
        self.model.eval()
        return self._scores(self._logits(self.model, batch.pixels.to(self._device, non_blocking=True)), batch)

    def _scores(self, logits: torch.Tensor, batch: PixelBatch) -> tuple[list[float], np.ndarray]:
        losses = functional.cross_entropy(logits, batch.labels.to(self._device), reduction="none").cpu()
        predicted = logits.argmax(1).cpu()
        weights = batch.weights
        hits = (predicted == batch.labels) * weights
        return [float(each.sum()) for each in (losses * weights, hits, weights)], predicted.numpy()

    @property
    def learning_rate(self) -> float:
        """Of the last step."""
        return self.optimizer.learning_rate

    @property
    def parameters(self) -> int:
        """The number of the model's weights, batch norm's statistics among them, as Keras counts them."""
        return sum(each.numel() for each in self.model.state_dict().values())

    @property
    def notes(self) -> list[str]:
        """Empty: there is nothing to note about a model that is not divided."""
        return []

    @property
    def _groups(self) -> dict[str, dict[str, torch.Tensor]]:
        """All tensors that a checkpoint contains; each group is a file of it."""
        return {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.tensors}

    @property
    def _tensors(self) -> dict[str, torch.Tensor]:
        return {f"{group}/{name}": each for group, named in self._groups.items() for name, each in named.items()}

    def state(self) -> dict[str, Arrays]:
        """Copies of all tensors as NumPy arrays of their shapes and dtypes, by name, in the groups "model" and
        "optimizer"; that has the state of the loss scaling as float64 scalars, too, with --precision float16.
        """
        state = {
            group: {name: to_numpy(each).copy() for name, each in named.items()}
            for group, named in self._groups.items()
        }
        state["optimizer"] |= self.optimizer.scaling()
        return state

    def load_state(self, state: Mapping[str, Arrays], source: str) -> None:
        """Set the tensors of the groups in ``state``, as `state` gave them, on this rank.

        Raises UsageError if names or shapes are others; ``source`` is where they are from, for its message.
        """
        groups = self._groups
        scaling = self.optimizer.scaling()
        for group, arrays in state.items():
            theirs = {name: each.shape for name, each in arrays.items() if name not in scaling}
            require_same(source, group, theirs, {name: tuple(each.shape) for name, each in groups[group].items()})
        with torch.no_grad():
            for group, arrays in state.items():
                for name, each in groups[group].items():
                    each.copy_(torch.from_numpy(arrays[name]))
        if "optimizer" in state:
            self.optimizer.load_scaling(state["optimizer"])

    def broadcast_state(self, root: int = 0) -> None:
        """Give all ranks the tensors and the loss scaling of rank ``root``."""
        self._replicas.broadcast(list(self._tensors.values()), root)
        self.optimizer.load_scaling(self._replicas.collective.broadcast_object(self.optimizer.scaling(), root))

    def digests(self) -> list[tuple[str, str]]:
        """Group and name of each tensor, as "model/NAME", and the SHA-256 of its bytes."""
        return digests_of((name, to_numpy(each)) for name, each in self._tensors.items())

    def first_not_finite(self) -> str:
        """ "GROUP/NAME" of the first tensor with a value that is not finite; empty if there is none."""
        return first_not_finite_of(self._tensors)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor; those of one on the CPU are in the same memory."""
    return tensor.detach().cpu().numpy()


def first_not_finite_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """The name of the first tensor that has a value which is not finite; empty if there is none."""
    floating = {name: torch.isfinite(each).all() for name, each in tensors.items() if each.is_floating_point()}
    finite = torch.stack(list(floating.values())).tolist() if floating else []
    return next((name for name, is_finite in zip(floating, finite, strict=True) if not is_finite), "")


def without_padding(batch: PixelBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pixels, labels and weights of the examples of a batch; without any, of one example of weight 0."""
    wanted = batch.weights > 0
    if wanted.all():
        return batch.pixels, batch.labels, batch.weights
    wanted[0] |= not wanted.any()
    return batch.pixels[wanted], batch.labels[wanted], batch.weights[wanted]


def repeated(pixels: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """One example twice, the second time with weight 0: PyTorch's batch norm takes no single value per channel."""
    return [torch.cat([pixels, pixels]), torch.cat([labels, labels]), torch.cat([weights, torch.zeros_like(weights)])]


class HostCopy:
    """The values of a tensor, copied to the host as soon as the GPU has computed them.

    Reading the tensor itself later would wait for all work that the GPU was given since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._values, self._copied = tensor.to("cpu", non_blocking=True), None
        if tensor.device.type == "cuda":
            self._copied = torch.cuda.current_stream(tensor.device).record_event()

    def read(self) -> list[float]:
        """Wait for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.tolist()


@dataclass(frozen=True)
class _UnreadStep:
    """A step whose sums of losses, hits and examples are not read yet; ``time`` is when it ended."""

    step: int
    rate: float
    time: str
    seconds: tuple[float, ...]
    sums: HostCopy
    is_skipped: bool
    keys: Sequence[bytes]
