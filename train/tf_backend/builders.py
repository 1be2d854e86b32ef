"""Models by name: functions of (image shape, number of classes) that give a Keras model from pixels to logits."""

from collections.abc import Sequence

import keras

from etl.errors import UsageError
from train.checkpoints.safetensors_file import CODES
from train.config.builder import Builder, ImageShape, find_builder, misfit, name_mistakes
from train.tf_backend.resnet import BATCH_NORM_MOMENTUM, resnet50


def mlp(shape: ImageShape, classes: int) -> keras.Model:
    """One hidden layer of 1,024: for 28x28 gray images and 10 classes, 784-1024-10."""
    return keras.Sequential(
        [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(1024, "relu"), keras.layers.Dense(classes)]
    )


def cnn(shape: ImageShape, classes: int) -> keras.Model:
    """Three stages of convolution, batch norm and pooling, for images of any size; 0.1 million parameters."""
    layers = [keras.Input(shape)]
    for filters in (32, 64, 128):
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(2, padding="same"),
        ]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes)])


BUILDERS: dict[str, Builder] = {"mlp": mlp, "cnn": cnn, "resnet50": resnet50}


def build(name: str, shape: ImageShape, classes: int, mean: Sequence[float], std: Sequence[float]) -> keras.Model:
    """The model called ``name`` behind its first step, which brings the training split to zero mean and unit variance.

    ``mean`` and ``std`` are by channel, on the scale 0 to 255. Raises UsageError if the model does not fit the
    pictures or the classes, or a user's code has a mistake.
    """
    builder = find_builder(name, BUILDERS)
    variance = [value * value for value in std]
    try:
        with name_mistakes(name):
            own = builder(shape, classes)
            if not isinstance(own, keras.Model):
                raise UsageError(f"--model {name!r} gives {type(own).__name__}, not a Keras model")
            normalization = keras.layers.Normalization(mean=list(mean), variance=variance, dtype="float32")
            model = keras.Sequential([keras.Input(shape, dtype="uint8"), normalization, own])
    except ValueError as error:  # what Keras raises if shapes do not fit
        raise misfit(name, shape, error) from error
    if model.output_shape != (None, classes):
        raise UsageError(f"--model {name!r} gives {model.output_shape}, not logits of shape (batch, {classes})")
    if not model.trainable_variables:
        raise UsageError(f"--model {name!r} has no weights to train")
    for variable in model.weights:
        if variable.dtype not in CODES:
            raise UsageError(
                f"--model {name!r}: {variable.path} is of {variable.dtype}, which no checkpoint contains; keep weights"
                " in float32, and compute in another dtype by --precision, or by a layer's dtype like 'mixed_bfloat16'"
            )
    return model
