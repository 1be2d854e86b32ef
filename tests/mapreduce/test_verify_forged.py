"""Datasets in which every CRC, SHA-256 and count is right, written by stages with a defect: verify finds it."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from etl.formats.example import parse, serialize
from etl.formats.parquet_tables import read_facts
from etl.normalized.part_writer import PartWriter
from etl.normalized.parts import Origin, read_entry, rows_place
from etl.slices.manifest import build_manifest
from etl.slices.writer import SourcedExample, write_slice
from etl.storage.place import Place
from mapreduce import normalize as normalize_module
from mapreduce import shard as shard_module
from tests.lib.generations import change_parts
from tests.lib.inline import normalize_here, shard_here
from tests.mapreduce.test_verify import FIRST, SECOND, root, source, verify, whole

__all__ = ["root", "source", "whole"]  # fixtures

Examples = list[SourcedExample]
Change = Callable[[str, Examples, Examples], Examples]  # of the slice's name, its examples, a list that slices share


def shard_wrongly(root: Path, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Write the slices again, each with the examples that ``change`` returns; the manifest has what was written."""
    written: dict[str, int] = {}
    shared: Examples = []

    def write(folder: Place, staging: Place, planned: tuple[str, str, int], examples: Iterable[SourcedExample]) -> Any:
        split, name, _ = planned
        changed = change(name, list(examples), shared)
        written[name] = len(changed)
        return write_slice(folder, staging, (split, name, len(changed)), changed)

    def build(stage: Any, identity: Any, normalized: Any, slices: Any, **rest: Any) -> dict[str, Any]:
        slices = [(split, name, written[name]) for split, name, _ in slices]
        return build_manifest(stage, identity, normalized, slices, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(shard_module, "write_slice", write)
        patch.setattr(shard_module, "build_manifest", build)
        shard_here(root, "--workers", "2", "--overwrite")


def drop_one(name: str, examples: Examples, shared: Examples) -> Examples:
    return examples[name == FIRST :]


def exchange_pictures(name: str, examples: Examples, shared: Examples) -> Examples:
    """Two examples of one class have each other's pixels."""
    if name != FIRST:
        return examples
    parsed = [parse(data) for data, _, _ in examples]
    other = next(number for number, each in enumerate(parsed) if number and each.label == parsed[0].label)
    for number, pixels in ((0, parsed[other].encoded), (other, parsed[0].encoded)):
        data = serialize(dataclasses.replace(parsed[number], encoded=pixels))
        examples[number] = (data, *examples[number][1:])
    return examples


def move_one(name: str, examples: Examples, shared: Examples) -> Examples:
    """An example of class 0 goes to the other training slice, which already has as many of it."""
    if name == FIRST:
        number = next(number for number, (data, _, _) in enumerate(examples) if parse(data).label == 0)
        shared.append(examples.pop(number))
    return examples + (shared if name == SECOND else [])


@pytest.mark.integration
def test_slices_with_wrong_examples_are_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way by its own kind of finding; `tests/etl/verify/test_join.py` has all ways to judge a key."""
    for change, kind, line in (
        (lambda name, examples, shared: examples, None, ""),  # the negative control
        (drop_one, "key missing", "is good, and in no slice"),
        (exchange_pictures, "key different", ": crc32c is "),
        (move_one, "manifest", "the slices are not balanced"),
    ):
        shard_wrongly(root, monkeypatch, change)
        found, error = verify(root)
        assert line in error
        by_kind = json.loads((root / "verified/default/verification.json").read_text())["findings_by_kind"]
        assert kind in by_kind if kind else not by_kind
        assert {what for what, _ in found} <= {"key", "manifest"}
        assert not kind or "run shard again with --overwrite" in verify(root, "--repair")[1]


def read_entry_of_any_number(normalized: Place, origin: Origin, images: int, *rest: Any) -> dict[str, Any]:
    """As `read_entry`, but it does not notice if the part has not as many images as its pack."""
    del images
    return read_entry(normalized, origin, read_facts(rows_place(normalized, origin.part))["input"], *rest)


@pytest.mark.integration
def test_a_reject_that_normalize_lost_or_changed_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = PartWriter.add
    for changed, line in (
        (None, "good + 0 rejects, by key: row 17: key is '2/0002.png', not '1/bad.png'"),
        ({"sha256": bytes(32)}, "1/bad.png: sha256 is b'\\x00"),
    ):

        def add_wrongly(part: PartWriter, image: dict[str, Any], *rest: Any, changed: Any = changed) -> None:
            if image["key"] != "1/bad.png":
                add(part, image, *rest)
            elif changed is not None:
                add(part, image | changed, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(PartWriter, "add", add_wrongly)
            patch.setattr(normalize_module, "read_entry", read_entry_of_any_number)
            words = ("--size", "8", "--color", "gray", "--format", "png", "--max-rejects", "0.1")
            normalize_here(root, *words, "--overwrite")
        shard_here(root, "--workers", "2", "--overwrite")
        found, error = verify(root)
        assert sorted(what for what, _ in found if what != "manifest") == ["input"]
        assert line in error
    assert "run normalize again with --overwrite" in verify(root, "--every-stage", "--repair")[1]


@pytest.mark.integration
def test_parts_that_are_not_those_of_the_packs_are_found(root: Path) -> None:
    marker = root / "normalized/dataset.json"
    whole = marker.read_bytes()
    for change, line in (
        (lambda parts: parts.pop(), "packs of its parts is"),
        (lambda parts: parts[0].update(pack="pack-00001"), "packs of its parts.0 is 'pack-00001', not 'pack-00000'"),
        (lambda parts: parts[0].update(pack="pack-09999"), "packs of its parts.0 is 'pack-09999', not"),
    ):
        marker.write_bytes(whole)
        change_parts(root, change)
        shard_here(root, "--workers", "2", "--overwrite")
        found, error = verify(root)
        assert ("manifest", "dataset.json") in found
        assert line in error
