"""ResNet-50, version 1.5: the model that trainers are compared by.

The network is that of He et al. 2015 (arXiv:1512.03385). Version 1.5, as in torchvision and NVIDIA's
DeepLearningExamples, halves the picture in the 3x3 convolution of a stage's first block, where the paper does so in the
1x1 before it. The last batch norm of each block begins with a gamma of zero, so that each block begins as its shortcut,
and the last layer with weights of a standard deviation of 0.01: Goyal et al. 2017 (arXiv:1706.02677).
"""

from typing import Any

import keras

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (inner channels, blocks)
EXPANSION = 4  # channels that leave a block, for each inner one
BATCH_NORM_MOMENTUM = 0.9  # the default of 0.99 lags far behind in a run of a few hundred steps
BATCH_NORM_EPSILON = 1e-5


def resnet50(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """From pictures of any size to logits: 25.6 million parameters, 4.1 billion multiply-adds for 224x224 pixels.

    Below 33 pixels the last stage has a single one to convolve.
    """
    inputs = keras.Input(shape)
    features = _convolved(inputs, 64, 7, 2, "stem")
    features = keras.layers.ReLU(name="stem_relu")(_normalised(features, "stem"))
    features = keras.layers.ZeroPadding2D(1, name="stem_pool_pad")(features)  # all are positive: zeros win no pool
    features = keras.layers.MaxPooling2D(3, 2, name="stem_pool")(features)
    for stage, (channels, blocks) in enumerate(STAGES, 1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            features = _bottleneck(features, channels, stride, f"stage{stage}_block{block}")
    features = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    initial = keras.initializers.RandomNormal(stddev=0.01)
    logits = keras.layers.Dense(classes, kernel_initializer=initial, name="logits")(features)
    return keras.Model(inputs, logits, name="resnet50")


def _bottleneck(inputs: Any, channels: int, stride: int, name: str) -> Any:
    """1x1, 3x3 with the stride, 1x1 to the channels that leave; plus the inputs, projected if shapes differ."""
    wide = EXPANSION * channels
    features = inputs
    for number, (filters, size, step) in enumerate(((channels, 1, 1), (channels, 3, stride)), 1):
        features = _normalised(_convolved(features, filters, size, step, f"{name}_{number}"), f"{name}_{number}")
        features = keras.layers.ReLU(name=f"{name}_{number}_relu")(features)
    features = _normalised(_convolved(features, wide, 1, 1, f"{name}_3"), f"{name}_3", gamma="zeros")
    shortcut = inputs
    if stride > 1 or inputs.shape[-1] != wide:
        shortcut = _normalised(_convolved(inputs, wide, 1, stride, f"{name}_shortcut"), f"{name}_shortcut")
    return keras.layers.ReLU(name=f"{name}_relu")(keras.layers.Add(name=f"{name}_add")([features, shortcut]))


def _convolved(inputs: Any, filters: int, size: int, stride: int, name: str) -> Any:
    """A convolution padded alike on all sides; what Keras calls "same" is one pixel off if the stride is 2."""
    if size > 1:
        inputs = keras.layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(inputs)
    initial = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    layer = keras.layers.Conv2D(filters, size, stride, use_bias=False, kernel_initializer=initial, name=f"{name}_conv")
    return layer(inputs)


def _normalised(inputs: Any, name: str, gamma: str = "ones") -> Any:
    layer = keras.layers.BatchNormalization(
        momentum=BATCH_NORM_MOMENTUM, epsilon=BATCH_NORM_EPSILON, gamma_initializer=gamma, name=f"{name}_norm"
    )
    return layer(inputs)
