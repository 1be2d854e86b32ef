"""Checkpoints: safetensors files and their JSON marker, written in the background.

Imports no TensorFlow. Which step writes a checkpoint is decided in `train.trainer`."""
