"""Image files that do not fit in memory: packed in pieces, and rejected by their size before they are read."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etl.errors import DataError
from etl.normalized import parts
from etl.raw.packs import pieces
from etl.sources import archive, folder
from etl.sources.detect import open_source
from etl.storage.place import open_place
from mapreduce.normalize import Normalize
from tests.conftest import TreeMaker
from tests.lib.commands import contents, flip_bit, peak_growth_bytes
from tests.lib.generations import packs_of, parts_of
from tests.lib.inline import ingest_here, normalize_here, refused
from tests.lib.nights import some_png
from tests.lib.sources.archives import some_images, tar_of

SMALL = ("--size", "8", "--format", "png", "--max-rejects", "0.9")
LARGE = "a/001.png"


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than 100 bytes comes in pieces of 64."""
    for module in (folder, archive):
        monkeypatch.setattr(module, "MAX_WHOLE_BYTES", 100)
    for module in (folder, archive, parts):
        monkeypatch.setattr(module, "READ_BUFFER_BYTES", 64)


def counts_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "normalized/dataset.json").read_bytes())["counts"]


@pytest.fixture
def tree(make_tree: TreeMaker) -> Path:
    """Six images, of which one has about 5 kB, many more than the others."""
    source = make_tree({"a": 3, "b": 3})
    (source / LARGE).write_bytes(some_png(0, 40, 40))
    return source


def test_packs_are_the_same_whole_or_in_pieces(tree: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shards, listed = tmp_path / "shards", tmp_path / "list.csv"
    shards.mkdir()
    (shards / "0.tar").write_bytes(tar_of(some_images(5)))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(tree.rglob("*.png"))]
    listed.write_text("\n".join(["path,label", *rows]))
    sources = {"folder": tree, "list": listed, "tar": shards}
    for name, source in sources.items():
        ingest_here(source, tmp_path / f"{name}-whole")
    request.getfixturevalue("in_pieces")
    for name, source in sources.items():
        opened = open_source(open_place(str(source)))
        assert any(not isinstance(content, bytes) and b"".join(content) for content in opened.read_all(opened.images))
        ingest_here(source, tmp_path / name)
        assert contents(tmp_path / name / "raw", "run.json") == contents(tmp_path / f"{name}-whole/raw", "run.json")
    ingest_here(shards, tmp_path / "in-place", in_place=True)
    (pack,) = packs_of(tmp_path / "in-place")
    assert pack["images"] == 5


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_file_that_changes_while_it_is_read_in_pieces_is_reported(tree: Path, change: int | None) -> None:
    source = open_source(open_place(str(tree)))
    data = (tree / LARGE).read_bytes()
    if change is None:
        (tree / LARGE).unlink()
    else:
        (tree / LARGE).write_bytes((data + b"x")[: len(data) + change])
    with pytest.raises(DataError, match=r"001\.png changed while it was read"):
        for content in source.read_all(source.images):
            list(pieces(content))


@pytest.mark.usefixtures("in_pieces")
def test_a_large_file_is_a_reject_and_good_with_a_larger_limit(tree: Path, tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    ingest_here(tree, root)
    shutil.copytree(root, other)
    normalize_here(root, *SMALL, "--max-bytes", "3000")
    counts = counts_of(root)
    assert (counts["input"], counts["good"], counts["rejects_by_reason"]) == (6, 5, {"too-many-bytes": 1})
    data = (tree / LARGE).read_bytes()
    (reject,) = pq.read_table(root / "normalized/rejects/pack-00000.parquet").to_pylist()
    kept = (root / "normalized/rejects/pack-00000.tar").read_bytes()
    assert kept[reject["offset"] : reject["offset"] + reject["size"]] == data
    assert (reject["key"], reject["size"]) == (LARGE, len(data))
    assert reject["sha256"] == hashlib.sha256(data).digest()
    assert reject["detail"] == f"{len(data)} bytes, at most 3000 are allowed"

    normalize_here(root, *SMALL, "--max-bytes", "3001", "--retry-rejects")
    assert counts_of(root)["rejects_by_reason"] == {"too-many-bytes": 1}
    normalize_here(root, *SMALL, "--max-bytes", "9000", "--retry-rejects")
    assert counts_of(root)["good"] == 6
    normalize_here(other, *SMALL, "--max-bytes", "9000")
    (part,), (as_one,) = parts_of(root), parts_of(other)
    assert part["sha256"] == as_one["sha256"]


@pytest.mark.usefixtures("in_pieces")
def test_damage_within_a_large_image_of_a_pack_is_found(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest_here(tree, root)
    rows = pq.read_table(root / "raw/packs/pack-00000.parquet").to_pylist()
    (row,) = (row for row in rows if row["key"] == LARGE)
    flip_bit(root / "raw/packs/pack-00000.tar", row["offset"] + row["size"] - 1)
    line = f"is damaged at offset {row['offset']} ({LARGE}); ingest again with --overwrite"
    refused(Normalize, 1, line, root, *SMALL, "--max-bytes", "3000")


@pytest.mark.integration
def test_memory_does_not_grow_with_a_large_file(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A file of 500 MiB in memory would exceed the limit."""
    source = make_tree({"a": 2, "b": 2})
    with (source / "a" / "sparse.jpg").open("wb") as file:
        file.truncate(500 << 20)
    root = str(tmp_path / "root")
    work = f"ingest_here({str(source)!r}, {root!r})\nnormalize_here({root!r}, *{SMALL}, '--max-bytes', '100MB')"
    assert peak_growth_bytes("from tests.lib.inline import ingest_here, normalize_here", work) < 450 << 20
    assert counts_of(tmp_path / "root")["rejects_by_reason"] == {"too-many-bytes": 1}
