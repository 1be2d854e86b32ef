"""JSON that other programs can read: no bare NaN, no Infinity."""

import ast
import math
from pathlib import Path

import pytest

from etl.storage.place import json_bytes, with_checksum
from tests.lib.commands import REPOSITORY

# between processes of ours, in TOML and in messages, or to check text; all other calls write a file or standard output
INTERNAL = {
    "etl/hadoop/yarn_api.py",
    "etl/images/sandbox.py",
    "mapreduce/jobs/python_archive.py",
    "train/config/recipe_options.py",
    "train/monitor/kv_store.py",
    "train/monitor/watchdog_process.py",
    "train/toolchain/build_horovod.py",
    "train/toolchain/build_records_op.py",
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_refused(value: float) -> None:
    for write in (json_bytes, with_checksum):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write({"a": [{"b": [1.0, value]}]})


def test_every_call_that_writes_json_is_strict() -> None:
    lax = {
        str(path.relative_to(REPOSITORY))
        for package in ("etl", "mapreduce", "train")
        for path in sorted(Path(REPOSITORY, package).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("dump", "dumps")
        if ast.unparse(call.func.value) == "json" and "allow_nan" not in {each.arg for each in call.keywords}
    }
    assert lax <= INTERNAL, lax - INTERNAL
