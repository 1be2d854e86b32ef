"""Strategies of parallel training, elastic membership, cores of a rank, its start-up.

What a rank exchanges with the others in a step, and what of its host it takes, belongs here. Detection of lost and
stalled ranks is in `train.monitor`."""
