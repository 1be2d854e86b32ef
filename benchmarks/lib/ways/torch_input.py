"""Batches of pictures for PyTorch from the same images, by three datasets, each with as many processes as a DataLoader.

All of them cut at random, resize and mirror; what is measured is the program that takes the batches.
"""

import io
import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from etl.formats.example import parse
from etl.formats.records import read_records

RINGSLICE, IMAGE_FOLDER, TFRECORD = WAYS = ("ringslice", "ImageFolder", "tfrecord")


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
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(job["files"], transforms(job["side"]))
    return DataLoader(dataset, job["batch"], shuffle=True, num_workers=job["workers"])


def tfrecord(job: dict[str, Any]) -> Iterable[Any]:
    from tfrecord.torch.dataset import MultiTFRecordDataset
    from torch.utils.data import DataLoader

    cut = transforms(job["side"])
    slices = Path(job["slices"])
    names = [str(path.relative_to(slices).with_suffix("")) for path in sorted(slices.rglob("*.tfrecord"))]

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
    """Yield the images per second that the way of this job gives, after the first batches, which start processes."""
    import torch

    torch.set_num_threads(1)
    loader = {RINGSLICE: ringslice, IMAGE_FOLDER: image_folder, TFRECORD: tfrecord}[job["way"]](job)
    batches = iter(loader)
    for _ in itertools.islice(batches, 2 * max(1, job["workers"])):
        pass
    began, examples = time.perf_counter(), 0
    for pixels, _ in batches:
        examples += len(pixels)
        if (elapsed := time.perf_counter() - began) > job["seconds"]:
            break
    yield {"rate": examples / elapsed}
