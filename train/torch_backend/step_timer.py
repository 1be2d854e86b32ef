"""Where the time of a step goes: input, computing, waiting for other ranks."""

import time
from collections.abc import Iterator

import torch
from torch import nn

from train.torch_backend.feed import PixelBatch, PixelBatches


class StepTimer:
    """Measures the input, the computing and the reducing of steps, in seconds of this process.

    On the CPU the last gradient of a step that is computed ends the computing; what the backward pass takes after that
    is waiting for other ranks. A GPU computes later than it is told to, so there only whole steps are right, and hooks
    would cost time: the threads that decode have the interpreter's lock.
    """

    def __init__(self, model: nn.Module, is_gpu: bool) -> None:
        self.input_s = 0.0
        self._begun = self._computed = self._over = time.perf_counter()
        self._is_gpu = is_gpu
        for each in () if is_gpu else model.parameters():
            if each.requires_grad:
                each.register_post_accumulate_grad_hook(self._note)

    def _note(self, parameter: torch.Tensor) -> None:
        del parameter
        self._computed = time.perf_counter()

    def timed(self, batches: Iterator[PixelBatch]) -> PixelBatches:
        """These batches; the time until one is there is the input of its step."""
        self._over = asked = time.perf_counter()
        for batch in batches:
            self._begun = time.perf_counter()
            self.input_s = self._begun - asked
            yield batch
            asked = time.perf_counter()

    def moments(self) -> tuple[float, float, float]:
        """When the step began, its gradients were computed, and they were reduced, which is now."""
        reduced = time.perf_counter()
        return self._begun, reduced if self._is_gpu else self._computed, reduced

    def end_step(self) -> float:
        """The seconds since the last step ended."""
        last, self._over = self._over, time.perf_counter()
        return self._over - last
