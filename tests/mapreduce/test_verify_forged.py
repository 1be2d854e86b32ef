"""Slices that are whole in themselves, every CRC, SHA-256 and table right, but do not hold what they should."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.formats import parquet_tables, schemas
from etl.formats.example import parse, serialize
from etl.formats.records import read_records
from etl.partition.pixel_statistics import PixelSums
from etl.slices.manifest import read_manifest
from etl.slices.manifest_builder import build_manifest
from etl.slices.writer import DealtExample, write_slice
from etl.stages.layout import normalized_stage, slices_stage
from etl.stages.stage import Run
from etl.storage.place import open_place
from tests.mapreduce.test_verify import FIRST, SECOND, SLICES, TEST, root, source, verify, whole

pytestmark = pytest.mark.integration

__all__ = ["root", "source", "whole"]  # fixtures

Contents = dict[str, list[DealtExample]]


def forge(root: Path, change: Callable[[Contents], object]) -> None:
    """Write the slices anew, as `shard` would, but for ``change``."""
    stage, normalized = slices_stage(open_place(str(root)), "default"), normalized_stage(open_place(str(root)))
    manifest = read_manifest(stage)
    rows = parquet_tables.read_table(stage.folder / "examples.parquet")
    contents: Contents = {}
    splits = {each["name"]: split for split, told in manifest["splits"].items() for each in told["slices"]}
    for name in splits:
        own = rows.filter([each == name for each in rows["slice"].to_pylist()]).to_pylist()
        with (stage.folder / f"{name}.tfrecord").open_stream() as stream:
            data = [record.data for record in read_records(stream, name)]
        contents[name] = [(each, row["source"], row["sha256"]) for each, row in zip(data, own, strict=True)]
    change(contents)
    shutil.rmtree(root / SLICES)
    identity = {name: manifest[name] for name in ("config", "input")}
    stage.begin(identity)
    try:
        tasks = stage.open_tasks()
        planned = [(splits[name], name, len(examples)) for name, examples in contents.items()]
        for each in planned:
            write_slice(stage.folder, tasks, each, contents[each[1]])
        sums = PixelSums(**{name: manifest["statistics"][name] for name in ("pixels", "sums", "squares")})
        marker = build_manifest(
            stage,
            identity,
            normalized.read_marker(),
            planned,
            statistics=sums,
            told={name: manifest[name] for name in ("lineage", "known", "left_out")},
            remembered={
                "departed": schemas.DEPARTED.empty_table(),
                "contents": schemas.CONTENTS.empty_table(),
                "groups": schemas.GROUPS.empty_table(),
            },
        )
        stage.commit(marker, Run())
    finally:
        stage.release()


def relabel(contents: Contents) -> None:
    data, source, sha256 = contents[FIRST][0]
    example = parse(data)
    contents[FIRST][0] = serialize(dataclasses.replace(example, label=(example.label + 1) % 3)), source, sha256


def exchange_pictures(contents: Contents) -> None:
    """Two examples of one class have each other's pixels."""
    one = parse(contents[FIRST][0][0])
    number, other = next(
        (number, example)
        for number, (data, _, _) in enumerate(contents[FIRST])
        if number and (example := parse(data)).label == one.label
    )
    for position, example, encoded in ((0, one, other.encoded), (number, other, one.encoded)):
        _, source, sha256 = contents[FIRST][position]
        contents[FIRST][position] = serialize(dataclasses.replace(example, encoded=encoded)), source, sha256


def rename(contents: Contents) -> None:
    data, source, sha256 = contents[FIRST][0]
    contents[FIRST][0] = serialize(dataclasses.replace(parse(data), key="nobody.png")), source, sha256


def move(contents: Contents) -> None:
    """An example goes to the other slice, of a class that this one had no more of."""
    labels = {name: [parse(data).label for data, _, _ in contents[name]] for name in (FIRST, SECOND)}
    few = next(label for label in range(3) if labels[FIRST].count(label) <= labels[SECOND].count(label))
    contents[SECOND].append(contents[FIRST].pop(labels[FIRST].index(few)))


CASES: dict[str, tuple[Callable[[Contents], object], str, str]] = {
    "lost": (lambda contents: contents[FIRST].pop(0), "key missing", "is good, and in no slice"),
    "doubled": (lambda contents: contents[FIRST].append(contents[FIRST][0]), "key doubled", "is dealt 2 times"),
    "leaked": (lambda contents: contents[TEST].append(contents[FIRST][0]), "key doubled", "is in 2 splits"),
    "relabelled": (relabel, "key different", "has label"),
    "pictures exchanged": (exchange_pictures, "key different", "has other bytes in"),
    "renamed": (rename, "key unknown", "nobody.png is in train/"),
    "moved": (move, "manifest", "the slices are not balanced"),
}


@pytest.mark.parametrize("name", CASES)
def test_slices_that_do_not_hold_what_they_should_are_found(name: str, root: Path) -> None:
    change, kind, line = CASES[name]
    forge(root, change)
    found, error = verify(root)
    assert line in error
    by_kind = json.loads((root / "verified/default/verification.json").read_text())["findings_by_kind"]
    assert kind in by_kind
    assert {what for what, _ in found} <= {"key", "manifest"}
    _, error = verify(root, "--repair")
    assert "run shard again with --overwrite" in error


def test_what_is_written_anew_without_a_change_is_right(root: Path, whole: Path) -> None:
    forge(root, lambda contents: None)
    assert verify(root) == (set(), "")
    before = {path.name: path.read_bytes() for path in (whole / SLICES).rglob("*") if path.is_file()}
    after = {path.name: path.read_bytes() for path in (root / SLICES).rglob("*") if path.is_file()}
    before.pop("run.json"), after.pop("run.json")
    assert after == before
