"""What an export contains: from image files to class names, in one graph of TensorFlow's own ops."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import keras
import tensorflow as tf

from etl.images.config import JPEG, NormalizeConfig
from etl.slices.manifest import Manifest
from train.config.augmentation import Size
from train.serving.preprocess import RawPixels
from train.tf_backend.decode import Decoder

SIGNATURE = "serving_default"
AT_ONCE = 8  # pictures of a batch that are decoded side by side, at most


@dataclass(frozen=True)
class Preprocessing:
    """What a file goes through before the model sees it at ``size`` (height, width): all that the slices' pictures did.

    It is brought to the form of ``config``, kept as slices keep it, and read as the trainer reads them in an
    evaluation. A JPEG loses in that what it lost on its way into the slices.
    """

    manifest: Manifest
    config: NormalizeConfig
    size: Size

    def pixels(self, data: tf.Tensor) -> tf.Tensor:
        """The picture of a file: uint8, of shape (height, width, channels). Raises as `RawPixels.read` does."""
        pixels = RawPixels(self.config).read(data)
        kept = "JPEG" if self.config.format == JPEG else "PNG"  # of which every other format loses as little: nothing
        decoder = Decoder(replace(self.manifest, format=kept), self.size)
        return decoder.pixels(self._encode(pixels), tf.zeros(2, tf.int64))

    def _encode(self, pixels: tf.Tensor) -> tf.Tensor:
        if self.config.format != JPEG:
            return tf.io.encode_png(pixels, compression=0)
        is_small = self.config.subsampling == 420
        return tf.io.encode_jpeg(pixels, quality=self.config.quality, chroma_downsampling=is_small)


class Serving(tf.Module):
    """A trained model, an image file in and the names of classes out; to be saved with `SIGNATURE`: its ``serve``."""

    def __init__(self, model: keras.Model, preprocessing: Preprocessing, classes: Sequence[str]) -> None:
        super().__init__()
        self.weights = [variable.value for variable in model.variables]  # and not the model, which is Keras's
        shape = (*preprocessing.size, preprocessing.config.channels)

        def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
            """``images``, strings of shape (n,), are the bytes of JPEG, PNG, GIF, BMP or WebP files.

            Gives each one's ``class`` (string) and its ``probability``, of shape (n,), the ``probabilities`` of all
            classes, of shape (n, classes), and the names of these, of shape (classes,).
            """
            pixels = tf.map_fn(
                preprocessing.pixels,
                images,
                parallel_iterations=AT_ONCE,
                fn_output_signature=tf.TensorSpec(shape, tf.uint8),
            )
            probabilities = tf.nn.softmax(tf.cast(model(pixels, training=False), tf.float32))
            names = tf.constant(list(classes))
            return {
                "class": tf.gather(names, tf.argmax(probabilities, axis=-1)),
                "probability": tf.reduce_max(probabilities, axis=-1),
                "probabilities": probabilities,
                "classes": names,
            }

        signature = [tf.TensorSpec([None], tf.string, name="images")]
        self.serve = tf.function(serve, input_signature=signature, autograph=False)
