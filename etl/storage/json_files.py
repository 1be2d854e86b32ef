"""JSON files of stages and runs: canonical bytes, and the checksum that a marker carries."""

import hashlib
import json
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """A marker with this ``content``, of which a member ``checksum`` is replaced: the SHA-256, in hexadecimal, of the
    rest as canonical JSON (UTF-8, sorted keys, no space between tokens)."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return {**rest, "checksum": hashlib.sha256(canonical.encode()).hexdigest()}


def json_bytes(value: object) -> bytes:
    """``value`` as the JSON text that markers are written in: the same value, the same bytes.

    A value without nested objects or lists is on one line.
    """
    return (_json_text(value, 0) + "\n").encode()


def _json_text(value: object, depth: int) -> str:
    if isinstance(value, array | np.ndarray):  # a row of a table: of the whole, no list is made
        return json.dumps(value.tolist(), allow_nan=False)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not any(isinstance(child, dict | list | tuple | array | np.ndarray) and len(child) for child in children):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    indent = "\n" + " " * (depth + 1)
    items = [_json_text(child, depth + 1) for child in children]
    if isinstance(value, dict):
        items = [
            f"{json.dumps(str(key), ensure_ascii=False, allow_nan=False)}: {item}"
            for key, item in zip(value, items, strict=True)
        ]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{opening}{indent}" + f",{indent}".join(items) + "\n" + " " * depth + closing
