"""What a verification sends through the shuffle: texts, under the key of a bucket, one bucket for each reducer."""

import functools
import itertools
import re

from mapreduce.partition import PREFIX_BYTES, reducer_of

ESCAPE = b"\x1b"
_REPLACEMENTS = ((b"\n", ESCAPE + b"1"), (b"\r", ESCAPE + b"2"), (b"\t", ESCAPE + b"3"))
_BREAKS = re.compile(b"[\n\r\t]")
_BETWEEN = ESCAPE + ESCAPE


@functools.cache
def bucket_key(bucket: int, buckets: int) -> bytes:
    """The key of a bucket: Hadoop sends it to the reducer of that number, of ``buckets`` reducers."""
    for number in itertools.count():
        prefix = b"%0*x" % (PREFIX_BYTES, number)
        if reducer_of(prefix, buckets) == bucket:
            return b"%s-%d" % (prefix, bucket)
    raise AssertionError


def bucket_number(key: bytes) -> int:
    """Inverse of `bucket_key`."""
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

    The line is ``key TAB texts`` in UTF-8, two ESC between texts: after escaping no text holds two. So sorted lines are
    sorted by the texts, one after the other, and those that begin alike come together.
    """

    def read(self, line: bytes) -> tuple[bytes, tuple[str, ...]]:
        key, joined = line.split(b"\t")[:2]  # Hadoop puts an empty value after it
        texts = joined.split(_BETWEEN)
        if joined.count(ESCAPE) > 2 * (len(texts) - 1):  # else nothing was escaped, which is the rule
            texts = [unescape(text) for text in texts]
        return key, tuple(text.decode() for text in texts)

    def write(self, key: bytes, value: tuple[str, ...]) -> bytes:
        texts = [text.encode() for text in value]
        joined = _BETWEEN.join(texts)
        if joined.count(ESCAPE) > 2 * (len(texts) - 1) or _BREAKS.search(joined):
            joined = _BETWEEN.join(map(escape, texts))
        return key + b"\t" + joined
