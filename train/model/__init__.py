"""Models, optimizers, schedules, gradients, batch normalization.

What a step computes from a batch of pixels on one rank belongs here. Batches come from `train.input`, reductions
between ranks from `train.parallel`; the whole step is in `train.trainer`."""
