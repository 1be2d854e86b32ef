"""Settings of a training run: command line, recipe, reader options, stop conditions, schedule. Imports no TensorFlow."""
