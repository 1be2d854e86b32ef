"""Keys that Hadoop's partitioner sends where we want them: so each reducer gets its own slices, as many as the next.

BinaryPartitioner (Hadoop 3) hashes a key's first bytes, as many as it is told, by h = 31 h + byte over 32 bits from
h = 1, and sends the record to reducer (h and 0x7fffffff) mod reducers.
"""

import functools

PREFIX_BYTES = 4
PROPERTIES = {
    "mapreduce.partition.binarypartitioner.left.offset": "0",
    "mapreduce.partition.binarypartitioner.right.offset": str(PREFIX_BYTES - 1),
}
PARTITIONER = "org.apache.hadoop.mapred.lib.BinaryPartitioner"
_BASE = 128  # Java's bytes are signed; those below this are not negative


def reducer_of(prefix: bytes, reducers: int) -> int:
    """The reducer, from 0, that Hadoop sends keys to that begin so; ``prefix`` is of bytes below 128."""
    hashed = 1
    for byte in prefix:
        hashed = (31 * hashed + byte) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % reducers


@functools.cache
def partition_prefix(reducer: int, reducers: int) -> bytes:
    """The first bytes of a key that Hadoop sends to ``reducer`` of ``reducers``."""
    for number in range(_BASE**PREFIX_BYTES):
        prefix = bytes(number // _BASE**place % _BASE for place in reversed(range(PREFIX_BYTES)))
        if reducer_of(prefix, reducers) == reducer:
            return prefix
    raise ValueError(f"no key goes to reducer {reducer} of {reducers}")
