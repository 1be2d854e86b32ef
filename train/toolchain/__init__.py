"""Builds of native code: Horovod's wheel and the reader's TensorFlow op. Imports no TensorFlow."""
