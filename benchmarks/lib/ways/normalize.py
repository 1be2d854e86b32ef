"""The ways to normalise photographs that `benchmarks/normalize.py` compares. Each imports only what it needs."""

import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIDE = 256  # of the shorter side
QUALITY = 95
SPARE = 2  # scaled decoding, if it is used, keeps at least so many times the size

Pass = Callable[[], None]
Convert = Callable[[bytes], bytes]


def ringslice(root: Path, _: Path) -> Pass:
    """A whole part: read the pack, hash, check, decode, sums, example, CRC, write, and the table of rows."""
    from etl.images.config import NormalizeConfig
    from etl.images.sandbox import DecodeWorker
    from etl.normalized.part_writer import normalize_pack
    from etl.normalized.parts import Origin
    from etl.stages.layout import raw_stage
    from etl.storage.place import open_place

    worker = DecodeWorker(NormalizeConfig(SIDE, SIDE, "shorter", quality=QUALITY))
    raw = open_place(str(root / "raw"))
    generation = raw_stage(open_place(str(root))).read_generation()

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=root) as folder:
            made = open_place(folder)
            for pack in generation.entries:
                origin = Origin.of_pack(pack)
                facts = normalize_pack(raw, made, origin, worker, classes=generation.marker["classes"], staging=made)
                assert facts["records"] == pack["images"], facts

    return run


def floor(_: Path, source: Path) -> Pass:
    """libjpeg-turbo's decoder and encoder, and the fastest antialiased resizer found, and nothing else."""
    from etl.images.geometry import Size
    from etl.images.resize import resize

    return _turbo(source, lambda pixels, size: resize(pixels, Size(*size)))


def floor_area(_: Path, source: Path) -> Pass:
    """libjpeg-turbo's decoder and encoder, and OpenCV's antialiased resizer, and nothing else."""
    import cv2

    cv2.setNumThreads(1)
    return _turbo(source, lambda pixels, size: cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA))


def _turbo(source: Path, resize: Callable[[Any, tuple[int, int]], Any]) -> Pass:
    """``resize`` takes pixels and (height, width)."""
    import simplejpeg

    def convert(data: bytes) -> bytes:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        size = (round(height * SIDE / min(height, width)), round(width * SIDE / min(height, width)))
        scaled = {"min_height": SPARE * size[0], "min_width": SPARE * size[1]}
        pixels = simplejpeg.decode_jpeg(data, **(scaled if min(height, width) > SPARE * SIDE else {}))
        return simplejpeg.encode_jpeg(resize(pixels, size), QUALITY, colorsubsampling="420", fastdct=False)

    return _each(source, convert)


def opencv(_: Path, source: Path) -> Pass:
    """OpenCV alone."""
    import cv2
    import numpy as np

    cv2.setNumThreads(1)

    def convert(data: bytes) -> bytes:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        size = _size(pixels.shape[1], pixels.shape[0])
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        return cv2.imencode(".jpg", resized, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()

    return _each(source, convert)


def pillow(_: Path, source: Path) -> Pass:
    """Pillow alone."""
    from PIL import Image

    def convert(data: bytes) -> bytes:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        buffer = io.BytesIO()
        image.resize(_size(*image.size), Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=QUALITY)
        return buffer.getvalue()

    return _each(source, convert)


def img2dataset(_: Path, source: Path) -> Pass:
    """img2dataset's Resizer with its defaults, except for the mode."""
    from img2dataset.resizer import Resizer

    resizer = Resizer(SIDE, "keep_ratio", False)

    def convert(data: bytes) -> bytes:
        encoded, *_, error = resizer(io.BytesIO(data))
        assert error is None, error
        return encoded

    return _each(source, convert)


def _size(width: int, height: int) -> tuple[int, int]:
    return round(width * SIDE / min(width, height)), round(height * SIDE / min(width, height))


def _each(source: Path, convert: Convert) -> Pass:
    photographs = [path.read_bytes() for path in sorted(source.rglob("*.jpg"))]

    def run() -> None:
        for data in photographs:
            assert convert(data)

    return run


WAYS = {way.__name__: way for way in (ringslice, floor, floor_area, opencv, pillow, img2dataset)}


def measure_pass(name: str, root: str, source: str) -> Iterator[float]:
    """Make two passes over all photographs, and yield the processor time of the second in seconds.

    ``root`` is a dataset that `ingest` has packed, ``source`` a folder with the same photographs as files.
    """
    run = WAYS[name](Path(root), Path(source))
    run()
    started = time.process_time()
    run()
    yield time.process_time() - started
