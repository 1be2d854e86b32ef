"""Training steps of PyTorch on pictures from the project's reader, for a machine without TensorFlow.

Pictures are decoded by libjpeg-turbo, and cut and resized by OpenCV, in threads of this process.
"""

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, repeat
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from etl.errors import EnvironmentFailure
from etl.formats.example import parse
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage_in
from etl.storage.place import open_place
from lib.ways.gpu import AUGMENTED, COMPILED, FLOAT32, GPU, SYNTHETIC, Job
from lib.ways.torch_resnet import ResNet50
from train.reader.config import Reading
from train.reader.intervals import Steps
from train.reader.reader import SplitReader

SPLIT = "train"
SEED = 0
BATCHES_AHEAD = 3
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)
CENTRE = 0.875

Pixels = npt.NDArray[np.uint8]


class TorchSteps:
    """`lib.ways.gpu.Steps` of PyTorch. Raises EnvironmentFailure if it has not the job's device."""

    def __init__(self, job: Job) -> None:
        if job.device == GPU and not torch.cuda.is_available():
            raise EnvironmentFailure("PyTorch sees no GPU; look at nvidia-smi, or give --device cpu")
        self._job = job
        self._place = torch.device("cuda" if job.device == GPU else "cpu")
        self.device = torch.cuda.get_device_name(0) if job.device == GPU else "CPU"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as TensorFlow does
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(SEED)
        folder = open_place(job.slices)
        self._manifest = manifest = Manifest.from_json(read_manifest(slices_stage_in(folder)))
        self._reader = SplitReader(folder, manifest, SPLIT, Reading())
        self._mean, self._std = (
            torch.tensor(each, device=self._place).view(1, -1, 1, 1) for each in (manifest.mean, manifest.std)
        )
        model = ResNet50(len(manifest.classes)).to(self._place, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self._model = torch.compile(model) if job.precision == COMPILED else model

    def batches(self, source: str) -> Iterator[Any]:
        batches = self._on_device(source == AUGMENTED)
        return repeat(next(batches)) if source == SYNTHETIC else batches

    def step(self, batch: Any) -> Any:
        pixels, labels = batch
        with torch.autocast(self._place.type, torch.bfloat16, enabled=self._job.precision != FLOAT32):
            logits = self._model((pixels.float() - self._mean) / self._std)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self, result: Any) -> None:
        result.item()

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._job.device == GPU else 0

    def _on_device(self, augmented: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches that are decoded ahead, on their way to the device."""
        size = self._job.batch, self._job.side, self._job.side, self._manifest.channels
        is_pinned = self._job.device == GPU
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            ahead: deque[tuple[torch.Tensor, list[Future[int]]]] = deque()
            for records, seed in self._records():
                pixels = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
                array = pixels.numpy()
                decoding = [
                    pool.submit(decode_into, array[place], data, (seed, place) if augmented else None)
                    for place, data in enumerate(records)
                ]
                ahead.append((pixels, decoding))
                if len(ahead) <= BATCHES_AHEAD:
                    continue
                ready, labels = ahead.popleft()
                of_batch = torch.tensor([each.result() for each in labels])
                channels_last = ready.permute(0, 3, 1, 2)  # NHWC in memory, NCHW in shape
                yield channels_last.to(self._place, non_blocking=True), of_batch.to(self._place, non_blocking=True)

    def _records(self) -> Iterator[tuple[list[bytes], int]]:
        """The serialized examples of a batch, epoch after epoch, and a number of the batch."""
        steps = Steps(self._reader.total, 1, self._job.batch, drop_last=True)
        number = count()
        for epoch in count():
            for batch in self._reader.batches(self._reader.order(SEED, epoch), steps, 0):
                yield batch.examples(), next(number)


def decode_into(pixels: Pixels, data: bytes, seed: tuple[int, int] | None) -> int:
    """Decode a serialized example; returns its label. It is cut at random by ``seed``, or to its centre without one."""
    example = parse(data)
    picture = simplejpeg.decode_jpeg(example.encoded, fastdct=True, fastupsample=True)
    height, width = picture.shape[:2]
    side = pixels.shape[0]
    if seed is None:
        own = min(height, width) if min(height, width) < side else max(side, round(CENTRE * min(height, width)))
        top, left, rows, columns = (height - own) // 2, (width - own) // 2, own, own
    else:
        generator = np.random.default_rng((SEED, *seed))
        area = generator.uniform(*AREAS) * height * width
        ratio = math.exp(generator.uniform(math.log(RATIOS[0]), math.log(RATIOS[1])))
        rows, columns = min(height, round(math.sqrt(area / ratio))), min(width, round(math.sqrt(area * ratio)))
        top, left = generator.integers(height - rows + 1), generator.integers(width - columns + 1)
    cut = picture[top : top + rows, left : left + columns]
    if seed is not None and generator.random() < 0.5:
        cut = cut[:, ::-1]
    if cut.shape[:2] == (side, side):
        pixels[:] = cut
    else:
        pixels[:] = cv2.resize(np.ascontiguousarray(cut), (side, side), interpolation=cv2.INTER_LINEAR)
    return example.label


def make_steps(job: Job) -> TorchSteps:
    """The steps of this job."""
    return TorchSteps(job)
