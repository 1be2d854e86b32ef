"""How examples travel through the shuffle: bytes as they are, but for the four that would break a line."""

ESCAPE = b"\x1b"
_REPLACEMENTS = ((b"\n", ESCAPE + b"1"), (b"\r", ESCAPE + b"2"), (b"\t", ESCAPE + b"3"))


def escape(data: bytes) -> bytes:
    """``data`` without newline, return and tab; about 1.6 percent longer for random bytes (base64: 33)."""
    data = data.replace(ESCAPE, ESCAPE + b"0")
    for raw, escaped in _REPLACEMENTS:
        data = data.replace(raw, escaped)
    return data


def unescape(data: bytes) -> bytes:
    """Inverse of `escape`: after it every ESC is followed by a digit, so no pair can be mistaken."""
    for raw, escaped in _REPLACEMENTS:
        data = data.replace(escaped, raw)
    return data.replace(ESCAPE + b"0", ESCAPE)


class RecordProtocol:
    """An mrjob protocol for a slice's key, an order within the slice (hexadecimal digits) and an example.

    The line is ``key TAB order TAB source TAB sha256 TAB bytes``: sorted as text it is sorted by slice, then by order.
    """

    def read(self, line: bytes) -> tuple[bytes, tuple[bytes, tuple[bytes, str, bytes]]]:
        key, order, source, sha256, data = line.split(b"\t", 4)
        return key, (order, (unescape(data), source.decode(), bytes.fromhex(sha256.decode())))

    def write(self, key: bytes, value: tuple[bytes, tuple[bytes, str, bytes]]) -> bytes:
        order, (data, source, sha256) = value
        return b"%s\t%s\t%s\t%s\t%s" % (key, order, source.encode(), sha256.hex().encode(), escape(data))
