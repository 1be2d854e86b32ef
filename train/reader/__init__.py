"""The reader of slices: order of an epoch, shares of ranks, prefetch, checks, cache, state.

Imports no TensorFlow, so that a reader for another framework can stand on it."""
