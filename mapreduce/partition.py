"""Keys that Hadoop's partitioner sends where we want them: so each reducer gets its own slices, as many as the next.

KeyFieldBasedPartitioner (Hadoop 3, one key field) hashes the key's bytes by h = 31 h + byte over 32 bits from h = 0,
and sends the record to reducer (h and 0x7fffffff) mod reducers.
"""

import functools

DIGITS = 8  # of a slice's number, so that keys sort as numbers do


def reducer_of(key: bytes, reducers: int) -> int:
    """The reducer, from 0, that Hadoop sends ``key`` to."""
    hashed = 0
    for byte in key:
        hashed = (31 * hashed + byte) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % reducers


@functools.cache
def partition_key(number: int, reducer: int, reducers: int) -> bytes:
    """The key of slice ``number`` that Hadoop sends to ``reducer`` of ``reducers``: its digits, then a suffix."""
    plain = b"%0*d" % (DIGITS, number)
    if reducer_of(plain, reducers) == reducer:
        return plain
    suffix = 0
    while reducer_of(key := b"%s-%d" % (plain, suffix), reducers) != reducer:
        suffix += 1
    return key


def slice_number(key: bytes) -> int:
    """Inverse of `partition_key`."""
    return int(key[:DIGITS])
