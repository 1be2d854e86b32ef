"""What a verification sends through the shuffle: texts, under the key of a bucket, one bucket for each reducer."""

import functools
import itertools
import re

from mapreduce.shuffle.partitioner import PREFIX_BYTES, reducer_of

ESCAPE = b"\x1b"
_REPLACEMENTS = ((b"\n", ESCAPE + b"1"), (b"\r", ESCAPE + b"2"), (b"\t", ESCAPE + b"3"))
_BREAKS = re.compile(b"[\n\r\t]")
_END = ESCAPE + ESCAPE
_LETTERS = range(33, 127)  # what can be printed, without space; many, for a hash knows little more than the last one


@functools.cache
def bucket_keys(buckets: int) -> list[bytes]:
    """The keys of buckets, by number: Hadoop sends each to the reducer of its number, of ``buckets`` reducers."""
    keys: dict[int, bytes] = {}
    for letters in itertools.product(_LETTERS, repeat=PREFIX_BYTES):
        prefix = bytes(letters)
        bucket = reducer_of(prefix, buckets)
        keys.setdefault(bucket, b"%s-%d" % (prefix, bucket))
        if len(keys) == buckets:
            return [keys[bucket] for bucket in range(buckets)]
    raise ValueError(f"{buckets} buckets are more than there are keys for")


def bucket_number(key: bytes) -> int:
    """The bucket that a key is one of."""
    return int(key.rpartition(b"-")[2])


def escape(data: bytes) -> bytes:
    """``data`` without newline, return and tab, and with a digit after each ESC."""
    data = data.replace(ESCAPE, ESCAPE + b"0")
    for raw, escaped in _REPLACEMENTS:
        data = data.replace(raw, escaped)
    return data


def unescape(data: bytes) -> bytes:
    """Inverse of `escape`."""
    for raw, escaped in _REPLACEMENTS:
        data = data.replace(escaped, raw)
    return data.replace(ESCAPE + b"0", ESCAPE)


class TextsProtocol:
    """An mrjob protocol for a bucket's key and a tuple of texts, which all of is sorted by.

    The line is ``key TAB texts`` in UTF-8, two ESC after each text: after escaping no text holds two. So in sorted
    lines those that begin with the same texts come together, and texts without control characters are in order.
    """

    def read(self, line: bytes) -> tuple[bytes, tuple[str, ...]]:
        key, joined = line.split(b"\t")[:2]  # Hadoop puts an empty value after it
        texts = joined.split(_END)[:-1]
        if joined.count(ESCAPE) > 2 * len(texts):  # else nothing was escaped, which is the rule
            texts = [unescape(text) for text in texts]
        return key, tuple(text.decode() for text in texts)

    def write(self, key: bytes, value: tuple[str, ...]) -> bytes:
        texts = [text.encode() for text in (*value, "")]
        joined = _END.join(texts)
        if joined.count(ESCAPE) > 2 * len(value) or _BREAKS.search(joined):
            joined = _END.join(map(escape, texts))
        return key + b"\t" + joined
