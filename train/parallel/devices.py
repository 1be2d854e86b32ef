"""The GPU of this rank, or none."""

import functools
import os

import tensorflow as tf

from train.config.settings import CPU, GPU


@functools.cache
def take_device(device: str) -> str:
    """Take the GPU with the number of this rank's local rank, or none; returns what is wrong, "" where nothing is.

    The first time must be before anything else of TensorFlow's runs: from then on devices cannot be chosen.
    """
    found = [] if device == CPU else tf.config.list_physical_devices("GPU")
    local_rank = int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))
    own = found[local_rank : local_rank + 1]
    if device == GPU and not own:
        seen = f"TensorFlow sees {len(found)} on this host" if found else "TensorFlow sees none on this host"
        return (
            f"--device gpu: there is no GPU for local rank {local_rank}, {seen}; install tensorflow with its CUDA"
            " packages, look at nvidia-smi, or give --device cpu"
        )
    tf.config.set_visible_devices(own, "GPU")
    for each in own:
        tf.config.experimental.set_memory_growth(each, True)
    return ""
