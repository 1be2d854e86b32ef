"""Classify image files by an exported model."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from etl.errors import DataError, printable, reason_of
from etl.images.config import NormalizeConfig
from etl.images.normalize import normalize_image
from etl.images.result import Reason, Reject
from etl.progress import Progress, log
from train.config.settings import AUTO
from train.parallel.startup import suppress_stderr
from train.serving.graph import SIGNATURE
from train.serving.image_files import ImageFile, reason_against
from train.tf_backend.devices import take_device

Probabilities = npt.NDArray[np.float32]  # of shape (classes,)


class Predictor:
    """An export in the local ``folder``, with this ``marker``."""

    def __init__(self, folder: Path, marker: Mapping[str, Any]) -> None:
        take_device(AUTO)
        self.classes: list[str] = marker["classes"]
        self._config = NormalizeConfig.from_json(marker["normalize"])
        self._loaded = tf.saved_model.load(str(folder))  # the function alone does not keep its variables
        self._serve = self._loaded.signatures[SIGNATURE]

    def classify(self, files: Sequence[bytes]) -> list[Probabilities | Reject]:
        """The probabilities of all classes for each of these files, or why there are none."""
        found: list[Probabilities | Reject | None] = [reason_against(data, self._config) for data in files]
        good = iter(self._ask([data for data, reject in zip(files, found, strict=True) if reject is None]))
        return [next(good) if each is None else each for each in found]

    def _ask(self, files: Sequence[bytes]) -> list[Probabilities | Reject]:
        if not files:
            return []
        with nullcontext() if sys.stderr.isatty() else suppress_stderr():  # of libjpeg; or there is a bar
            try:
                return list(self._serve(images=tf.constant(files, tf.string))["probabilities"].numpy())
            except tf.errors.InvalidArgumentError:  # what decoding fails with
                pass
            except tf.errors.ResourceExhaustedError:
                if len(files) == 1:
                    return [Reject(Reason.OUT_OF_MEMORY, "its pixels are too many for the memory that is left")]
        if len(files) > 1:  # one bad file fails the batch
            return [self._ask([data])[0] for data in files]
        reject = normalize_image(files[0], self._config)  # it has the reason
        other = Reject(Reason.UNSUPPORTED, "of a kind that TensorFlow cannot decode; make it a JPEG or PNG")
        return [reject if isinstance(reject, Reject) else other]


def predict(predictor: Predictor, images: Sequence[ImageFile], *, top: int, batch: int, as_json: bool) -> None:
    """Print the ``top`` likeliest classes of each of ``images``, in their order; ``batch`` of them are one call.

    A file that cannot be used is named on standard error; raises DataError at the end if there was any.
    """
    unusable = 0
    with Progress("predict", len(images), "images", quiet=len(images) <= batch, begins=False) as progress:
        for first in range(0, len(images), batch):
            read = [(image, _read(image)) for image in images[first : first + batch]]
            results = iter(predictor.classify([data for _, data in read if isinstance(data, bytes)]))
            for image, data in read:
                found = next(results) if isinstance(data, bytes) else data
                if isinstance(found, np.ndarray) and not np.isfinite(found).all():
                    found = "the model's probabilities for it are not finite"
                if isinstance(found, np.ndarray):
                    likeliest = _likeliest(predictor.classes, found, top)
                    print(_line(image.name, likeliest, as_json), flush=True)
                else:
                    why = found if isinstance(found, str) else f"{found.reason}, {found.detail}"
                    log("predict", printable(f"{image.name} cannot be used: {why}", ""))
                    unusable += 1
            progress.update(first + len(read))
    if unusable:
        raise DataError(
            f"{unusable:,} of {len(images):,} files could not be used; each is named above, with its reason"
        )


def _read(image: ImageFile) -> bytes | str:
    """The bytes of a file, or why they are not to be had."""
    try:
        return image.place.read_bytes()
    except OSError as error:
        return reason_of(error)


def _likeliest(classes: Sequence[str], probabilities: Probabilities, top: int) -> list[tuple[str, float]]:
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(classes[number], round(float(probabilities[number]), 4)) for number in order]


def _line(name: str, likeliest: Sequence[tuple[str, float]], as_json: bool) -> str:
    if not as_json:
        shares = (f"{printable(label, '')}\t{share:.4f}" for label, share in likeliest)
        return "\t".join([printable(name, ""), *shares])
    classes = [{"class": label, "probability": share} for label, share in likeliest]
    return json.dumps({"path": name, **classes[0], "top": classes}, ensure_ascii=False, allow_nan=False)
