"""The Horovod trainer: every rank reads its share of the slices, all reduce their gradients in a ring."""
