"""Datasets of seeded noise, for measurements in which the content of an image does not matter."""

import shutil
import struct
from pathlib import Path

import numpy as np

from lib.processes import run_quietly

CLASSES = 10
CHUNK_IMAGES = 1000


def write_noise(folder: Path, images: int, side: int, channels: int = 3) -> Path:
    """Write so many images of ``side`` pixels as IDX files; the same arguments, the same bytes."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    shape = (images, side, side, channels) if channels > 1 else (images, side, side)
    with (folder / f"noise-images-idx{len(shape)}-ubyte").open("wb") as file:
        file.write(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape))
        for first in range(0, images, CHUNK_IMAGES):
            file.write(generator.bytes(min(CHUNK_IMAGES, images - first) * side * side * channels))
    labels = (np.arange(images) % CLASSES).astype(np.uint8)
    (folder / "noise-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", images) + labels.tobytes())
    return folder


def make_normalized(folder: Path, images: int, side: int, channels: int = 3) -> Path:
    """A root with so many normalised images of noise; what is there already is kept."""
    root, source = folder / f"root-{images}", folder / f"source-{images}"
    if (root / "normalized" / "dataset.json").exists():
        return root
    write_noise(source, images, side, channels)
    run_quietly("ringslice", "ingest", source, root)
    run_quietly("ringslice", "normalize", root, "--format", "raw")
    shutil.rmtree(source)
    return root
