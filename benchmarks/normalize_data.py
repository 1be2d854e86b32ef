"""What `benchmarks/normalize.py` decodes: photographs of the sizes of ImageNet and of cameras, as JPEGs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from etl.ingest import ingest
from etl.option_kinds import parse_values
from etl.options import INGEST_OPTIONS
from etl.storage import open_place

LONG_SIDE, SHORT_SIDES = 500, (333, 451)
CAMERA = (4000, 3000)
# Standard deviations of the noise that the two photographs, scaled, lack: files of about 110 KB and 2 MB.
GRAIN, CAMERA_GRAIN = 17.0, 4.0
QUALITIES = (75, 96)
SEED = 0

Pictures = Callable[[int], Iterator[tuple[Image.Image, int]]]  # so many pictures, and the quality of each as a JPEG


def make_photographs(folder: Path, number: int) -> Path:
    """Crops of scikit-learn's two photographs at about 500x400 pixels, as a dataset that `ingest` has packed."""
    return _make(folder, number, _small)


def make_large(folder: Path, number: int) -> Path:
    """The same at 12 megapixels."""
    return _make(folder, number, _large)


def jpegs(root: Path) -> list[bytes]:
    """The files of a dataset, in the order of their names."""
    return [path.read_bytes() for path in sorted((root / "source").rglob("*.jpg"))]


def _make(root: Path, number: int, pictures: Pictures) -> Path:
    if not (root / "raw" / "dataset.json").exists():
        (root / "source" / "all").mkdir(parents=True, exist_ok=True)
        for position, (image, quality) in enumerate(pictures(number)):
            image.save(root / "source" / "all" / f"{position:05d}.jpg", quality=quality, subsampling="4:2:0")
        values = {option.name: option.default for option in INGEST_OPTIONS} | {"pack_size": "4GB"}
        ingest(open_place(str(root / "source")), open_place(str(root)), parse_values(INGEST_OPTIONS, values), False)
    return root


def _small(number: int) -> Iterator[tuple[Image.Image, int]]:
    random = np.random.default_rng(SEED)
    for photograph in _photographs(number):
        width, height = photograph.size
        part = random.uniform(0.75, 1.0)
        left, top = random.uniform(0, width * (1 - part)), random.uniform(0, height * (1 - part))
        size = (LONG_SIDE, int(random.integers(*SHORT_SIDES)))
        box = (left, top, left + width * part, top + height * part)
        crop = photograph.resize(size[:: random.choice([1, 1, 1, -1])], Image.Resampling.LANCZOS, box=box)
        yield _with_grain(crop, GRAIN, random), int(random.integers(*QUALITIES))


def _large(number: int) -> Iterator[tuple[Image.Image, int]]:
    random = np.random.default_rng(SEED)
    for photograph in _photographs(number):
        large = photograph.resize(CAMERA, Image.Resampling.BICUBIC)
        yield _with_grain(large, CAMERA_GRAIN, random), int(random.integers(*QUALITIES))


def _photographs(number: int) -> Iterator[Image.Image]:
    both = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    return (both[position % len(both)] for position in range(number))


def _with_grain(image: Image.Image, deviation: float, random: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, np.float32)
    grain = random.standard_normal((*pixels.shape[:2], 1), np.float32) * deviation
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))
