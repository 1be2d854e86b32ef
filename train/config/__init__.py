"""Settings of a training run: command line, recipe, reader options, stop conditions. Imports no TensorFlow."""
