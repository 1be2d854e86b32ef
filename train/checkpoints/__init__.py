"""Checkpoints: safetensors files and their JSON marker, written in the background.

Imports no TensorFlow. When a checkpoint is written is decided in `train.runs.checkpointer`."""
