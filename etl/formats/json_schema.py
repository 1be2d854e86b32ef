"""Hold a JSON value against a JSON Schema (draft 2020-12), as far as the schemas of our markers use it.

Only what they use is known: a schema with another keyword is refused, so that none is passed over in silence.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list | tuple | array),
    "object": lambda value: isinstance(value, Mapping),
}
_NOTES = {"$schema", "$defs", "title", "description"}
_WHOLE = {"$ref", "oneOf", "const", "enum", "type", "minimum", "pattern"}
_WITHIN = {"items", "minItems", "uniqueItems", "properties", "required", "additionalProperties", "propertyNames"}
_KNOWN = _NOTES | _WHOLE | _WITHIN | {"patternProperties"}


def schema_fault(value: Any, schema: Schema) -> str | None:
    """Where ``value`` is not as ``schema`` has it, and why: the first place; None where it is."""
    where, why = next(_faults(value, schema, schema), ("", None))
    return None if why is None else f"{where.removeprefix('.') or 'it'} {why}"


def _faults(value: Any, schema: Schema, root: Schema) -> Iterator[tuple[str, str]]:
    if unknown := schema.keys() - _KNOWN:
        raise ValueError(f"a schema has keywords that are not known here: {', '.join(sorted(unknown))}")
    if "$ref" in schema:
        yield from _faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if why := _why_not(value, schema, root):
        yield "", why
        return
    if isinstance(value, Mapping):
        yield from _faults_of_members(value, schema, root)
    elif _KINDS["array"](value):
        items = None if isinstance(value, array) else schema.get("items")  # which holds whole numbers from 0 alone
        for number, each in enumerate(value if items is not None else ()):
            yield from ((f"[{number}]{where}", why) for where, why in _faults(each, items or {}, root))


def _why_not(value: Any, schema: Schema, root: Schema) -> str | None:
    """Why the value itself, whatever its members, is not as the schema has it."""
    kinds = schema.get("type", list(_KINDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    told = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    if not any(_KINDS[kind](value) for kind in kinds):
        return f"is {told}, not {' or '.join(kinds)}"
    for known in ([schema["const"]] if "const" in schema else [], schema.get("enum", [])):
        if known and not any(value == each and type(value) is type(each) for each in known):
            return f"is {told}, not {' or '.join(map(repr, known))}"
    if "oneOf" in schema and sum(not any(_faults(value, each, root)) for each in schema["oneOf"]) != 1:
        return f"is {told}, which is nothing that may stand there"
    if "minimum" in schema and _KINDS["number"](value) and value < schema["minimum"]:
        return f"is {told}, less than {schema['minimum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return f"is {told}, not like {schema['pattern']}"
    if _KINDS["array"](value):
        if len(value) < schema.get("minItems", 0):
            return f"has {len(value)} items, not {schema['minItems']} or more"
        if schema.get("uniqueItems") and len(set(map(repr, value))) < len(value):
            return "has an item twice"
    return None


def _faults_of_members(value: Mapping[str, Any], schema: Schema, root: Schema) -> Iterator[tuple[str, str]]:
    yield from ((f".{name}", "is missing") for name in schema.get("required", ()) if name not in value)
    for name, member in value.items():
        if "propertyNames" in schema:
            yield from ((f".{name}", why) for _, why in _faults(name, schema["propertyNames"], root))
        found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        found += [each for like, each in schema.get("patternProperties", {}).items() if re.search(like, name)]
        if not found and schema.get("additionalProperties") is False:
            yield f".{name}", "is not known"
        elif not found and isinstance(schema.get("additionalProperties"), Mapping):
            found = [schema["additionalProperties"]]
        for each in found:
            yield from ((f".{name}{where}", why) for where, why in _faults(member, each, root))
