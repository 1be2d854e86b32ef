"""Records that lie in memory as a tensor of strings: by the native op if it is built, else through Python."""

import functools
from typing import Any

import tensorflow as tf

from train.reader.batches import RecordBatch
from train.toolchain.build_horovod import BuildError
from train.toolchain.build_records_op import installed_library


def to_tensor(batch: RecordBatch) -> tf.Tensor:
    """The serialized examples of ``batch``: string of shape (batch,). The native op copies each of them once."""
    native, _ = _load()
    if native is None:
        return tf.constant(batch.examples(), tf.string)
    return native.ringslice_records(addresses=batch.addresses, sizes=batch.sizes)


def why_not_native() -> str | None:
    """Why examples take the slower way through Python; None if the native op is at work."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Any, str | None]:
    """The native op's module, or None and why there is none."""
    try:
        library = installed_library()
        if not library.exists():
            return None, "not built"
        return tf.load_op_library(str(library)), None
    except (BuildError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        return None, f"not usable ({reason})"
