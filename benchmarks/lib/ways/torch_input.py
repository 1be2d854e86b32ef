"""Batches of pictures for PyTorch from the same images, by three datasets, each with as many processes as a DataLoader.

All of them cut at random, resize and mirror; what is measured is the program that takes the batches: one that drops
them, or ranks that train by DistributedDataParallel.
"""

import io
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from etl.formats.example import parse
from etl.formats.records import read_records

RINGSLICE, IMAGE_FOLDER, TFRECORD = WAYS = ("ringslice", "ImageFolder", "tfrecord")
STRIDE, CLASSES = 16, 2


def extract(slices: Path, folder: Path) -> None:
    """The pictures of the slices as files in a folder for each class."""
    for path in sorted(slices.rglob("*.tfrecord")):
        with path.open("rb") as stream:
            for record in read_records(stream, path.name):
                example = parse(bytes(record.data))
                target = folder / example.text / f"{path.stem}-{record.offset}.jpg"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(example.encoded)


def ringslice(job: dict[str, Any]) -> Iterable[Any]:
    from train.torch_backend.data import SliceDataset, SliceLoader

    options = {"augment": "crop,flip", "crop": job["side"], "workers": job["workers"]}
    return SliceLoader(SliceDataset(job["root"], job["batch"], **options))


def transforms(side: int) -> Any:
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def image_folder(job: dict[str, Any]) -> Iterable[Any]:
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(job["files"], transforms(job["side"]))
    sampler = DistributedSampler(dataset, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    return DataLoader(dataset, job["batch"], sampler=sampler, num_workers=job["workers"])


def tfrecord(job: dict[str, Any]) -> Iterable[Any]:
    from tfrecord.torch.dataset import MultiTFRecordDataset
    from torch.utils.data import DataLoader

    cut = transforms(job["side"])
    slices = Path(job["slices"])
    own = sorted(slices.rglob("*.tfrecord"))[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]
    names = [str(path.relative_to(slices).with_suffix("")) for path in own]

    def decode(features: dict[str, Any]) -> tuple[Any, int]:
        picture = Image.open(io.BytesIO(features["image/encoded"])).convert("RGB")
        return cut(picture), int(features["image/class/label"][0])

    dataset = MultiTFRecordDataset(
        f"{slices}/{{}}.tfrecord",
        None,
        dict.fromkeys(names, 1 / len(names)),
        {"image/encoded": "byte", "image/class/label": "int"},
        shuffle_queue_size=1024,
        transform=decode,
        infinite=False,
    )
    return DataLoader(dataset, job["batch"], num_workers=job["workers"])


def run(job: dict[str, Any]) -> Iterator[Any]:
    """Yield the images per second that the way of this job gives this rank after the first batches, which start
    processes. The ranks, of `torch.distributed`'s environment, end together.
    """
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    loader = {RINGSLICE: ringslice, IMAGE_FOLDER: image_folder, TFRECORD: tfrecord}[job["way"]](job)
    train = make_step(job["side"]) if int(os.environ["WORLD_SIZE"]) > 1 else None
    batches = iter(loader)
    for _ in itertools.islice(batches, 2 * max(1, job["workers"])):
        pass
    began, examples = time.perf_counter(), 0
    is_over = False
    while not is_over:
        found = next(batches, None)
        elapsed = time.perf_counter() - began
        is_over = found is None or elapsed > job["seconds"]
        if train is not None:
            is_over = train(found, is_over)
        examples += 0 if found is None else len(found[0])
    yield {"rate": examples / elapsed}


def make_step(side: int) -> Callable[[Any, bool], bool]:
    """A step of a linear layer of every 16th pixel; it takes a batch, and whether this rank ends.

    Its result is whether any rank ends, in which case no rank takes a step.
    """
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(3 * (side // STRIDE) ** 2, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any, is_over: bool) -> bool:
        ends = torch.tensor(is_over, dtype=torch.int32)
        torch.distributed.all_reduce(ends)
        if not ends:
            pixels, labels = batch
            logits = model(pixels[:, :, ::STRIDE, ::STRIDE].flatten(1).float() / 255)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
        return bool(ends)

    return step
