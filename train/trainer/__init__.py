"""Parts of a training run around the loop of `train.loop`: session, steps, commits, evaluation, results."""
