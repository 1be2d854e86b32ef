"""What PyTorch computes on one process: models, pictures, steps. Which processes take part is in `train.strategies`.

Imports PyTorch and no TensorFlow.
"""
