"""Detect and report ranks that are late, stalled or lost, and end the process of each rank.

Imports no TensorFlow: it must work while TensorFlow hangs."""
