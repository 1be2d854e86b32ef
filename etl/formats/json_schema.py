"""Compare a JSON value with a JSON Schema (draft 2020-12), as far as the schemas of our markers use it.

To compare a marker with what it should be, its fields must be there and have their types. A schema with a keyword
that is not known here is refused, so that none is ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etl.values import shorten

Schema = Mapping[str, Any]

_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}
_WITHIN = {"items", "properties", "patternProperties", "required", "additionalProperties", "propertyNames"}
_NOTES = {"$schema", "$defs", "title", "description"}


def schema_fault(value: Any, schema: Schema) -> str | None:
    """The first place where ``value`` is not as ``schema`` requires, and why; None if there is none."""
    return next((f"{where or 'it'} {why}" for where, why in _faults(value, schema, schema, "")), None)


def _faults(value: Any, schema: Schema, root: Schema, where: str) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        yield from _faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, where)
    for keyword, rule in schema.items():
        if keyword not in _NOTES | _WITHIN | {"$ref"} and not _holds(keyword, rule, value, root):
            yield where, f"is {shorten(repr(value))}, against {keyword} {rule}"
    if isinstance(value, Mapping):
        yield from _faults_of_members(value, schema, root, f"{where}." if where else "")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _faults(each, schema.get("items", {}), root, f"{where}[{number}]")


def _holds(keyword: str, rule: Any, value: Any, root: Schema) -> bool:
    """True if a value, whatever its members, is as one keyword says."""
    is_array = _KINDS["array"](value)
    checks: dict[str, Callable[[], bool]] = {
        "type": lambda: any(_KINDS[kind](value) for kind in ([rule] if isinstance(rule, str) else rule)),
        "const": lambda: value == rule and type(value) is type(rule),
        "enum": lambda: any(value == each and type(value) is type(each) for each in rule),
        "oneOf": lambda: sum(not any(_faults(value, each, root, "")) for each in rule) == 1,
        "minimum": lambda: not _KINDS["number"](value) or value >= rule,
        "pattern": lambda: not isinstance(value, str) or re.search(rule, value) is not None,
        "minItems": lambda: not is_array or len(value) >= rule,
        "uniqueItems": lambda: not is_array or len(set(map(repr, value))) == len(value),
    }
    if keyword not in checks:
        raise ValueError(f"a schema has a keyword that is not known here: {keyword}")
    return checks[keyword]()


def _faults_of_members(value: Schema, schema: Schema, root: Schema, path: str) -> Iterator[tuple[str, str]]:
    yield from ((f"{path}{name}", "is missing") for name in schema.get("required", ()) if name not in value)
    for name, member in value.items():
        yield from _faults(name, schema.get("propertyNames", {}), root, f"{path}{name}")
        found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        found += [each for like, each in schema.get("patternProperties", {}).items() if re.search(like, name)]
        others = schema.get("additionalProperties", {})
        if not found and others is False:
            yield f"{path}{name}", "is not known"
        for each in found or [others or {}]:
            yield from _faults(member, each, root, f"{path}{name}")
