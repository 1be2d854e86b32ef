"""Our check of a schema against the library's, on values that each break one rule."""

import json
from typing import Any

import jsonschema
import pytest

from etl.formats.json_schema import schema_fault
from tests.lib.commands import REPOSITORY

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["format", "names"],
    "properties": {
        "format": {"const": "a/1"},
        "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
        "kind": {"enum": ["b", 1]},
        "size": {"oneOf": [{"$ref": "#/$defs/count"}, {"const": "rest"}]},
        "sha256": {"type": ["string", "null"], "pattern": "^[0-9a-f]{4}$"},
        "by_split": {
            "type": "object",
            "propertyNames": {"enum": ["train"]},
            "additionalProperties": {"type": "number"},
        },
        "tables": {"type": "object", "patternProperties": {"^[ab]$": {"type": "boolean"}}},
    },
    "$defs": {"count": {"type": "integer", "minimum": 0}},
}
RIGHT: dict[str, Any] = {"format": "a/1", "names": ["x", "y"], "kind": 1, "size": 0, "sha256": None}
RIGHT |= {"by_split": {"train": 0.5}, "tables": {"a": True}}
WRONG: list[tuple[str, Any, str]] = [
    ("format", "a/2", "format is 'a/2', against const a/1"),
    ("format", ..., "format is missing"),
    ("other", 1, "other is not known"),
    ("names", [], "names is [], against minItems 1"),
    ("names", ["x", "x"], "names is ['x', 'x'], against uniqueItems True"),
    ("names", ["x", 1], "names[1] is 1, against type string"),
    ("kind", True, "kind is True, against enum ['b', 1]"),
    ("size", -1, "size is -1, against oneOf "),
    ("sha256", "00", "sha256 is '00', against pattern ^[0-9a-f]{4}$"),
    ("by_split", {"test": 1}, "by_split.test is 'test', against enum ['train']"),
    ("tables", {"a": 1}, "tables.a is 1, against type boolean"),
]


def test_a_value_that_breaks_a_rule() -> None:
    theirs = jsonschema.Draft202012Validator(SCHEMA)
    assert schema_fault(RIGHT, SCHEMA) is None
    assert theirs.is_valid(RIGHT)
    for name, value, fault in WRONG:
        wrong = {key: each for key, each in (RIGHT | {name: value}).items() if each is not ...}
        assert not theirs.is_valid(wrong), name
        assert str(schema_fault(wrong, SCHEMA)).startswith(fault)
    with pytest.raises(ValueError, match="maxItems"):
        schema_fault([], {"maxItems": 3})


def test_the_schemas_are_schemas() -> None:
    for path in (REPOSITORY / "etl").glob("*/schemas/*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
