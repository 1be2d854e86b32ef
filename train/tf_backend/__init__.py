"""TensorFlow's part of training: decoding and augmentation on the device, models, steps, optimizer, devices.

What a process computes from a batch of records belongs here. Records come from `train.reader`, which imports no
TensorFlow; reductions over ranks from `train.strategies`."""
