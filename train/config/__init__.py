"""Settings of a training run: command line, recipe, schedule, reader options, stop conditions.

Imports no TensorFlow."""
