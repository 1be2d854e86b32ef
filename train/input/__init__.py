"""From records to batches on the device: decoding, augmentation, `tf.data`.

Reading records from slices is in `train.reader`, which needs no TensorFlow."""
