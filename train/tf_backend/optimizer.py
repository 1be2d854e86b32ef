"""What applies the mean gradient of all ranks: SGD with momentum, LARS, Adam; weight decay, clipping, loss scaling.

All variables are added to, never set: asynchronous workers update them at the same time, and what another has added
since they were read must stay.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from train.config.recipe import ADAM, ADAMW, FLOAT16, FP16, LARS, Recipe

BETA_2, EPSILON = 0.999, 1e-8  # of Adam


class Descent(keras.optimizers.SGD):
    """SGD with Nesterov momentum; weight decay is part of the gradient, and not of biases' and batch norm's.

    The rate is not a part of the momentum, so what was gathered at another rate, of another world size, is applied at
    this one: Goyal et al. 2017 (arXiv:1706.02677), remark 2. Gradients are clipped by their global norm, before weight
    decay is added. With LARS the step of each kernel is brought into proportion to its norm: You, Gitman and Ginsburg,
    "Large Batch Training of Convolutional Networks", 2017 (arXiv:1708.03888), equation 6; biases and batch norm take
    plain steps.
    """

    def __init__(self, recipe: Recipe) -> None:
        clipping = {"global_clipnorm": recipe.clip_norm} if recipe.clip_norm else {}
        super().__init__(recipe.base_rate, momentum=float(recipe.momentum), nesterov=recipe.momentum > 0, **clipping)
        self._recipe = recipe

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Apply the ``gradient`` of one ``variable``."""
        recipe = self._recipe
        step = keras.ops.cast(gradient, variable.dtype)
        if len(variable.shape) > 1:  # a kernel: biases, and batch norm's scales and shifts, have one axis
            step = step + recipe.weight_decay * variable
            if recipe.optimizer == LARS:
                step = step * trust(variable, gradient, recipe.weight_decay, recipe.lars_coefficient)
        if recipe.momentum:
            momentum = self.momentums[self._get_variable_index(variable)]
            self.assign_add(momentum, step - (1 - recipe.momentum) * momentum)
            step = step + recipe.momentum * momentum
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * step)


class Adam(keras.optimizers.Adam):
    """Adam: Kingma and Ba 2014 (arXiv:1412.6980), algorithm 1, with weight decay of kernels only.

    With adamw the decay is not part of the gradient: Loshchilov and Hutter 2017 (arXiv:1711.05101). Keras adds epsilon
    before it corrects the bias; here it is added after, as in the paper and in PyTorch.
    """

    def __init__(self, recipe: Recipe) -> None:
        clipping = {"global_clipnorm": recipe.clip_norm} if recipe.clip_norm else {}
        super().__init__(recipe.base_rate, float(recipe.momentum), BETA_2, EPSILON, **clipping)
        self._recipe = recipe

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Apply the ``gradient`` of one ``variable``."""
        decay = self._recipe.weight_decay * variable if len(variable.shape) > 1 else 0.0
        step = keras.ops.cast(gradient, variable.dtype) + (decay if self._recipe.optimizer == ADAM else 0.0)
        count = keras.ops.cast(self.iterations + 1, variable.dtype)
        place = self._get_variable_index(variable)
        first, second = self._momentums[place], self._velocities[place]
        # What is read of the first moment must be in the second, too: another asynchronous worker may have added to one
        # of them only, and the step would be divided by a root that is still 0.
        self.assign_add(second, (1 - self.beta_2) * (keras.ops.square(step) - second))
        with tf.control_dependencies([read(second)]):
            self.assign_add(first, (1 - self.beta_1) * (step - first))
            mean = read(first)
        with tf.control_dependencies([mean]):
            square = read(second)
        of_mean, of_square = (
            1 - keras.ops.power(keras.ops.cast(beta, variable.dtype), count) for beta in (self.beta_1, self.beta_2)
        )
        step = mean / of_mean / (keras.ops.sqrt(square / of_square) + EPSILON)
        step = step + (decay if self._recipe.optimizer == ADAMW else 0.0)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * step)


def read(variable: Any) -> tf.Tensor:
    """The value of a variable; in a graph, after all that was done to it, and after the control dependencies."""
    return tf.convert_to_tensor(variable.value)


def trust(weights: Any, gradient: Any, weight_decay: float, coefficient: float) -> Any:
    """LARS's local rate of one kernel: ``coefficient`` |w| / (|g| + weight_decay |w|); 1 if it would be 0 / 0."""
    of_weights, of_gradient = _norm(weights), _norm(gradient)
    below = of_gradient + weight_decay * of_weights
    usable = keras.ops.logical_and(of_weights > 0, below > 0)
    return keras.ops.where(usable, coefficient * of_weights / keras.ops.where(usable, below, 1.0), 1.0)


def _norm(values: Any) -> Any:
    """The Euclidean norm over all axes; `keras.ops.norm` takes at most two."""
    return keras.ops.sqrt(keras.ops.sum(keras.ops.square(values)))


def apply_finite(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any], recipe: Recipe) -> Any:
    """Take the step of these gradients, in a graph, unless one is not finite; returns 1 if it is not taken, else 0.

    Only the formats of 16 bits with the exponent of float16 overflow in a training that converges. For all others the
    gradients are not looked at; with float16 precision the optimizer itself takes no such step, and scales the loss
    down.
    """
    if recipe.precision != FLOAT16 and recipe.compression != FP16:
        optimizer.apply(gradients)
        return tf.zeros(())
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in gradients])
    if recipe.precision == FLOAT16:
        optimizer.apply(gradients)
    else:
        tf.cond(finite, lambda: _apply(optimizer, gradients), lambda: tf.constant(False))
    return 1 - tf.cast(finite, tf.float32)


def _apply(optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any]) -> Any:
    optimizer.apply(gradients)
    return tf.constant(True)


def make_optimizer(recipe: Recipe, variables: list[Any]) -> keras.optimizers.Optimizer:
    """The optimizer of a recipe, with its state made for these variables.

    With float16 it scales the loss, and takes no step if a gradient is not finite; as all ranks have the same
    gradients by then, all of them do the same.
    """
    is_adam = recipe.optimizer in (ADAM, ADAMW)
    optimizer: keras.optimizers.Optimizer = Adam(recipe) if is_adam else Descent(recipe)
    if recipe.precision == FLOAT16:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer
