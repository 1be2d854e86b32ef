"""Input = good + rejects: images that are lost, doubled or exchanged, though every SHA-256 and count agrees."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.formats import parquet_tables, schemas
from etl.storage.json_files import json_bytes
from etl.storage.place import open_place
from etl.verify.check_part import COLUMNS, input_faults
from mapreduce.normalize import count_images
from tests.lib.commands import copy_some
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.mapreduce.test_verify import verify

Tables = dict[str, pa.Table]
Change = Callable[[Tables], object]


@pytest.fixture(scope="module")
def normalized(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 digits in several packs, and one image that is none."""
    folder = tmp_path_factory.mktemp("normalized")
    copy_some(digits, folder / "source", "012", slice(6))
    (folder / "source/1/bad.png").write_bytes(b"no image")
    ingest_here(folder / "source", folder / "root", pack_size="2KB")
    normalize_here(folder / "root", "--size", "8", "--format", "png", "--max-rejects", "0.1")
    return folder / "root"


@pytest.fixture
def root(normalized: Path, tmp_path: Path) -> Path:
    return shutil.copytree(normalized, tmp_path / "root")


def forge(root: Path, change: Change, agree: bool) -> None:
    """Write rows and rejects of the part with the reject anew, but for ``change``, and cut slices from that.

    Every SHA-256 and count of the part fits what is there; with ``agree`` its number of images too, and all totals.
    """
    normalized = root / "normalized"
    marker = json.loads((normalized / "dataset.json").read_text())
    facts = next(part for part in marker["parts"] if part["rejects"]["count"])
    paths = {folder: normalized / folder / f"{facts['part']}.parquet" for folder in ("parts", "rejects")}
    held = {folder: pq.read_table(path) for folder, path in paths.items()}
    change(held)
    held["parts"] = with_offsets(normalized / f"parts/{facts['part']}.tfrecord", held["parts"])
    listed = parquet_tables.table_bytes(held["rejects"])
    paths["rejects"].write_bytes(listed)
    facts["records"] = held["parts"].num_rows
    records = open_place(str(normalized / f"parts/{facts['part']}.tfrecord"))
    facts |= {"bytes": records.info().size, "sha256": records.sha256()}
    number = held["rejects"].num_rows
    facts["rejects"] |= {"count": number, "by_reason": {"not-an-image": number} if number else {}}
    facts["rejects"] |= {"list_sha256": sha256_of(paths["rejects"])}
    facts["examples"] = {"": [held["parts"]["label"].to_pylist().count(label) for label in range(3)]}
    if agree:
        facts["input"] = facts["records"] + number
    told = {name: value for name, value in facts.items() if name not in ("rows_sha256", "removed")}
    paths["parts"].write_bytes(parquet_tables.table_bytes(held["parts"], told))
    facts["rows_sha256"] = sha256_of(paths["parts"])
    if agree:
        marker["counts"] = count_images(marker["parts"], 3)
    else:
        marker["counts"] |= {"good": sum(part["records"] for part in marker["parts"])}
    (normalized / "dataset.json").write_bytes(json_bytes(marker))
    shard_here(root, "--workers", "1", "--split", "train=1")


def sha256_of(path: Path) -> str:
    return open_place(str(path)).sha256()


def with_offsets(records: Path, rows: pa.Table) -> pa.Table:
    """Write those records alone that the rows tell of, one after the other; the rows with their new offsets."""
    data, kept, offsets = records.read_bytes(), b"", []
    for row in rows.to_pylist():
        offsets.append(len(kept))
        kept += data[row["offset"] : row["offset"] + row["size"]]
    records.write_bytes(kept)
    return rows.set_column(rows.schema.get_field_index("offset"), schemas.ROWS.field("offset"), pa.array(offsets))


def drop_row(held: Tables) -> None:
    held["parts"] = held["parts"].slice(1)


def drop_reject(held: Tables) -> None:
    held["rejects"] = held["rejects"].slice(0, 0)


def double_row(held: Tables) -> None:
    """A good image is told of as a reject besides."""
    row = held["rejects"].to_pylist()[0] | {"key": held["parts"]["key"][0].as_py()}
    held["rejects"] = pa.concat_tables([held["rejects"], parquet_tables.table_of(schemas.REJECTS, [row])])


def replace_reject(held: Tables) -> None:
    held["rejects"] = parquet_tables.table_of(schemas.REJECTS, [held["rejects"].to_pylist()[0] | {"key": "nobody.png"}])


def exchange_content(held: Tables) -> None:
    held["rejects"] = parquet_tables.table_of(schemas.REJECTS, [held["rejects"].to_pylist()[0] | {"sha256": bytes(32)}])


CHANGES = {
    "a row dropped": (drop_row, "good + 1 rejects: "),
    "a reject dropped": (drop_reject, "good + 0 rejects: 1/bad.png is neither"),
    "an image in both": (double_row, "good + 2 rejects: "),
    "a reject exchanged": (replace_reject, "good + 1 rejects: 1/bad.png is neither"),
    "another content": (exchange_content, "1/bad.png has another SHA-256"),
}


@pytest.mark.integration
@pytest.mark.parametrize(("name", "agree"), [*((name, True) for name in CHANGES), ("a row dropped", False)])
def test_an_image_that_is_lost_or_there_twice_is_found(name: str, agree: bool, root: Path) -> None:
    change, line = CHANGES[name]
    forge(root, change, agree)
    found, error = verify(root)
    assert {what for what, _ in found} <= {"input", "manifest"}
    assert [what for what, _ in found].count("input") == 1
    assert line in error
    _, error = verify(root, "--every-stage", "--repair")
    assert "run normalize again with --overwrite" in error


@pytest.mark.integration
def test_what_is_written_anew_without_a_change_is_right(root: Path) -> None:
    forge(root, lambda held: None, agree=True)
    assert verify(root, "--every-stage") == (set(), "")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda marker: marker["parts"].pop(), "of raw has no part"),
        (lambda marker: marker["parts"][0].update(pack="pack-00001"), "two parts of one pack"),
        (lambda marker: marker["parts"][0].update(pack="pack-09999"), "was made of a pack that raw does not name"),
        (lambda marker: marker["parts"][0].update(list_sha256="0" * 64), "or it is another pack"),
        (lambda marker: marker["counts"].update(input=18), "raw has 19"),
        (lambda marker: marker["counts"].update(rejects=0), "normalized tells of 0 rejects, its parts have 1"),
        (lambda marker: marker.update(input="0" * 64), "made from packs that raw neither has nor had"),
    ],
    ids=["part lost", "two parts", "part of another pack", "another list", "input", "rejects", "another raw"],
)
def test_parts_that_are_not_those_of_the_packs_are_found(
    change: Callable[[dict[str, Any]], object], line: str, root: Path
) -> None:
    marker = json.loads((root / "normalized/dataset.json").read_text())
    change(marker)
    (root / "normalized/dataset.json").write_bytes(json_bytes(marker))
    shard_here(root, "--workers", "1", "--split", "train=1")
    found, error = verify(root)
    assert ("manifest", "dataset.json") in found
    assert line in error


def table_of(*keys: str) -> pa.Table:
    rows = [{"key": key, "sha256": key.encode() * 32, "label": 0} for key in keys]
    return parquet_tables.table_of(schemas.IMAGES, [dict.fromkeys(schemas.IMAGES.names) | row for row in rows]).select(
        COLUMNS
    )


@pytest.mark.parametrize(
    ("images", "good", "rejects", "fault"),
    [
        ("abc", "ac", "b", None),
        ("", "", "", None),
        ("abc", "ac", "", "the 3 images of pack are not 2 good + 0 rejects: b is neither"),
        ("abc", "abcd", "", "d is none of them"),
        ("abc", "abc", "b", "b is there twice"),
        ("abc", "abb", "c", "b is there twice"),
        ("abb", "ab", "", "b is there twice"),
        ("abc", "ab", "d", "c is neither"),
    ],
)
def test_every_image_is_good_or_a_reject_once(images: str, good: str, rejects: str, fault: str | None) -> None:
    found = list(
        input_faults({"part": "pack.1", "pack": "pack"}, *(table_of(*each) for each in (images, good, rejects)))
    )
    assert len(found) == (fault is not None)
    assert all(each.name == "pack.1" and fault is not None and each.line.endswith(fault) for each in found)
