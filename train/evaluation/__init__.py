"""Evaluation of checkpoints apart from their training, and the choice between two of them. Imports no framework.

Not here: what computes a model's answers (train/tf_backend, train/torch_backend), and the commands themselves.
"""
