"""Slices for the benchmarks of the reader: real JPEGs of 30 to 50 KB, and pixels of Fashion-MNIST, 1 KB each."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from etl.formats.example import ImageExample, serialize
from etl.images.config import NormalizeConfig
from etl.partition.pixel_statistics import PixelSums
from etl.slices.manifest import TABLES, build_manifest
from etl.slices.writer import SourcedExample, slice_names, write_slice
from etl.stages.layout import slices_stage
from etl.stages.run import RunRecord
from etl.storage.place import open_place
from lib.hdfs import delete_folder, hadoop_fs
from lib.processes import run_quietly

NAME = "default"
SIDE = 256
LEAST_BYTES, MOST_BYTES = 30_000, 50_000
MEAN_BYTES = 40_000
PICTURES = 1_000  # more examples are the same pictures under other keys
CLASSES = ("china", "flower")


def make_photographs(root: Path, size_bytes: int, slices: int) -> None:
    """About ``size_bytes`` of training examples in so many slices, written as `shard` writes them."""
    stage = slices_stage(open_place(str(root)), NAME)
    if stage.marker.exists():
        return
    pictures = _pictures()
    per_slice = max(1, size_bytes // MEAN_BYTES // slices)
    planned = [(split, name, per_slice) for split, name in slice_names({"train": slices})]
    identity = {"config": {"groups": 1}, "input": "the photographs of scikit-learn"}
    run = stage.begin(identity)
    assert run is not None
    with run:
        tasks = run.open_tasks()
        for number, each in enumerate(planned):
            write_slice(stage.folder, tasks, each, _examples(pictures, number * per_slice, per_slice))
        normalized = {"classes": CLASSES, "config": NormalizeConfig(SIDE, SIDE, "crop", "rgb", "jpeg", 95).to_json()}
        plan = {"lineage": None, "known": {"new": per_slice * slices}, "left_out": {}}
        history = {name: TABLES[name].empty_table() for name in ("departed", "contents", "groups")}
        manifest = build_manifest(
            run, identity, normalized, planned, statistics=_sums(pictures), plan=plan, history=history
        )
        run.commit(manifest, RunRecord())


def _pictures() -> list[bytes]:
    """Crops of two photographs, as JPEGs between `LEAST_BYTES` and `MOST_BYTES`; the classes in turn."""
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    generator = np.random.default_rng(0)
    pictures: list[bytes] = []
    while len(pictures) < PICTURES:
        photograph = photographs[len(pictures) % len(photographs)]
        side = int(generator.integers(SIDE, min(photograph.size)))
        left, top = (int(generator.integers(length - side + 1)) for length in photograph.size)
        buffer = io.BytesIO()
        crop = photograph.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
        crop.save(buffer, "JPEG", quality=95, subsampling="4:4:4")
        if LEAST_BYTES <= len(buffer.getvalue()) <= MOST_BYTES:
            pictures.append(buffer.getvalue())
    return pictures


def _examples(pictures: list[bytes], first: int, count: int) -> Iterator[SourcedExample]:
    for number in range(first, first + count):
        encoded = pictures[number % len(pictures)]
        label = number % len(CLASSES)
        example = ImageExample(f"{number:08d}.jpg", label, CLASSES[label], "JPEG", SIDE, SIDE, 3, encoded)
        yield serialize(example), "made-up", hashlib.sha256(encoded).digest()


def _sums(pictures: list[bytes]) -> PixelSums:
    pixels = np.asarray(Image.open(io.BytesIO(pictures[0])), dtype=np.int64)  # one is enough to measure speed
    return PixelSums(SIDE * SIDE, pixels.sum((0, 1)).tolist(), (pixels**2).sum((0, 1)).tolist())


def make_small_records(root: Path, fashion: Path) -> None:
    """Fashion-MNIST through the whole pipeline, its pixels kept raw: 60,000 training examples of about 1 KB."""
    if not slices_stage(open_place(str(root)), NAME).marker.exists():
        run_quietly("ringslice", "pipeline", fashion, root, "--format", "raw")


def put(root: Path, target: str) -> None:
    """Copy the slices to the same place below the root ``target`` on HDFS, and replace what is there."""
    delete_folder(target)
    hadoop_fs("-mkdir", "-p", f"{target}/slices")
    hadoop_fs("-put", root / "slices" / NAME, f"{target}/slices/{NAME}")
