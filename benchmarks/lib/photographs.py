#!/usr/bin/env python3
"""Make seeded photographs to measure with: 500 like those of ImageNet, and 40 of 12 megapixels, as phones make them.

    python benchmarks/lib/photographs.py data/photographs

They are crops of the two photographs that scikit-learn contains, scaled, mirrored, and with the grain that a sensor
adds and scaling removes: FOLDER/usual/CLASS/NUMBER.jpg, about 500x400 pixels, quality 75 to 95, 110 KB on average, and
FOLDER/large/CLASS/NUMBER.jpg, 4000x3000 or 3000x4000 pixels. Files that exist are kept.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from etl.options.click_command import option_values
from etl.options.stage_options import INGEST_OPTIONS
from etl.raw.ingest import ingest
from etl.storage.place import open_place

CLASSES = ("china", "flower")
USUAL, LARGE = 500, 40
# (width, height): the most common of ImageNet, about 500x400 on average
USUAL_SIZES = ((500, 375), (500, 375), (500, 333), (375, 500), (500, 400), (500, 500), (640, 480), (400, 300))
LARGE_SIZES = ((4000, 3000), (3000, 4000))


@dataclass(frozen=True)
class Kind:
    """A kind of photographs: sizes to choose from, lowest and highest JPEG quality, grain in grey levels."""

    name: str
    seed: int
    sizes: tuple[tuple[int, int], ...]
    qualities: tuple[int, int]
    grain: float


KINDS = {
    "usual": Kind("usual", 0, USUAL_SIZES, (75, 95), 16.0),
    "large": Kind("large", 1, LARGE_SIZES, (75, 95), 4.0),
}


def make_photographs(folder: Path, usual: int = USUAL, large: int = LARGE) -> dict[str, list[Path]]:
    """The files of each kind, in order; missing ones are made."""
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    return {
        kind.name: [_keep(folder, photographs, kind, number) for number in range(count)]
        for kind, count in ((KINDS["usual"], usual), (KINDS["large"], large))
    }


def ingested(root: Path, files: list[Path]) -> Path:
    """A dataset of these photographs, in one pack; made if it does not exist. ``files`` are below one folder."""
    if not (root / "raw" / "dataset.json").exists():
        source = open_place(str(files[0].parent.parent))
        ingest(source, open_place(str(root)), option_values(INGEST_OPTIONS, "--pack-size", "4GB"))
    return root


def _keep(folder: Path, photographs: list[Image.Image], kind: Kind, number: int) -> Path:
    label = number % len(CLASSES)
    path = folder / kind.name / CLASSES[label] / f"{number:04d}.jpg"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        _write(unfinished, photographs[label], kind, np.random.default_rng((kind.seed, number)))
        unfinished.replace(path)
    return path


def _write(path: Path, photograph: Image.Image, kind: Kind, generator: np.random.Generator) -> None:
    width, height = kind.sizes[generator.integers(len(kind.sizes))]
    picture = _crop(photograph, width / height, generator).resize((width, height), Image.Resampling.LANCZOS)
    if generator.random() < 0.5:
        picture = ImageOps.mirror(picture)
    low, high = kind.qualities
    quality = round(low + (high - low) * generator.random() ** 0.5)  # high ones are more common
    _grained(picture, kind.grain, generator).save(path, "JPEG", quality=quality, subsampling=2)


def _crop(photograph: Image.Image, shape: float, generator: np.random.Generator) -> Image.Image:
    """A part of this shape (width / height), with 0.85 to 1 of the sides of the largest such part."""
    largest = min(photograph.width / shape, photograph.height)
    height = largest * generator.uniform(0.85, 1.0)
    width = height * shape
    left, upper = generator.uniform(0, photograph.width - width), generator.uniform(0, photograph.height - height)
    return photograph.crop((round(left), round(upper), round(left + width), round(upper + height)))


def _grained(picture: Image.Image, deviation: float, generator: np.random.Generator) -> Image.Image:
    """Add noise of brightness, the same in all channels."""
    noise = generator.normal(0.0, deviation, (picture.height, picture.width, 1))
    noisy: npt.NDArray[np.float64] = np.asarray(picture) + noise
    return Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8))


@click.command(help=__doc__.partition("\n\n")[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--usual",
    type=click.IntRange(min=0),
    default=USUAL,
    show_default=True,
    metavar="N",
    help="Photographs of about 500x400 pixels.",
)
@click.option(
    "--large",
    type=click.IntRange(min=0),
    default=LARGE,
    show_default=True,
    metavar="N",
    help="Photographs of 12 megapixels.",
)
def main(folder: Path, usual: int, large: int) -> None:
    """Make the photographs, and print how large they are."""
    for name, files in make_photographs(folder, usual, large).items():
        sizes = [path.stat().st_size for path in files]
        mean = sum(sizes) / max(len(sizes), 1)
        click.echo(f"{len(files)} {name} photographs in {folder / name}, {mean / 1000:.0f} KB on average")


if __name__ == "__main__":
    main()
