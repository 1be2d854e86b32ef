"""Renewal as arithmetic, and of real packs: which stay, and which images are packed again."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import RingsliceError, UsageError
from etl.formats.parquet_tables import table_bytes
from etl.raw.source_diff import NO_IMAGE, plan_renewal
from etl.stages.layout import raw_stage
from etl.storage.place import open_place
from tests.conftest import TreeMaker
from tests.etl.raw.test_ingest import run as renew
from tests.etl.raw.test_ingest import write_idx
from tests.lib import generations
from tests.lib.commands import contents
from tests.lib.sources.packed import packed_images

# Packs as a dictionary of name to the image of each row, of few numbers, so that images come twice and are gone.
packs_of_images = st.lists(st.lists(st.integers(NO_IMAGE, 30), max_size=12), max_size=8)


@given(packs_of_images, st.integers(31, 40))
def test_every_image_is_in_one_kept_pack_or_packed_again(packs: list[list[int]], images: int) -> None:
    named = {f"pack-{number}": rows for number, rows in enumerate(packs)}
    kept, unpacked = plan_renewal(((name, np.array(rows, dtype=np.int64)) for name, rows in named.items()), images)
    packed = [image for name, removed in kept.items() for image in np.delete(named[name], removed).tolist()]
    assert sorted([*packed, *unpacked.tolist()]) == list(range(images))
    assert list(kept) == [name for name in named if name in kept]
    for name, removed in kept.items():
        assert 2 * len(removed) <= len(named[name])
    for name in named.keys() - set(kept):
        there = [image for image in named[name] if image != NO_IMAGE]
        others = {image for other in kept for image in named[other]}
        lost = len(named[name]) - len(set(there) - others)
        assert 2 * lost > len(named[name]) or lost == len(named[name])


def marker_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "raw/dataset.json").read_text())


def require_same(root: Path, source: Path) -> None:
    """Live images are those of the source, byte for byte, with their classes; the marker counts them."""
    images, counts = packed_images(open_place(str(root))), marker_of(root)["counts"]
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    assert {key: image.data for key, image in images.items()} == files
    assert all(image.name == key.split("/")[0] for key, image in images.items())
    assert (counts["images"], counts["bytes"]) == (len(files), sum(map(len, files.values())))
    marker = marker_of(root)
    removed = sum(pack["removed"] for pack in generations.packs_of(root))
    assert removed == (marker["removed"]["rows"] if marker["removed"] else 0)
    names = marker["classes"]
    assert counts["by_class"] == [sum(key.startswith(f"{name}/") for key in files) for name in names]


def packs_of(root: Path) -> dict[str, bytes]:
    return contents(root / "raw/packs")


def test_only_what_is_new_or_changed_is_packed(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"b": 20, "d": 20}), tmp_path / "root"
    renew(source, root)
    before, first = packs_of(root), (root / "raw/dataset.json").read_bytes()
    (source / "b/000.png").unlink()
    (source / "d/001.png").write_bytes(b"of another size")
    same_size = source / "d/002.png"
    same_size.write_bytes(same_size.read_bytes()[:-1] + b"!")
    make_tree({"a": 2})
    (source / "b/new.png").write_bytes(b"new")
    summary = renew(source, root)
    assert (summary["newly_packed"], summary["removed_or_changed"], summary["images"]) == (5, 3, 42)
    assert summary["already_done"] is False
    after = packs_of(root)
    assert {name: after[name] for name in before} == before
    marker = marker_of(root)
    assert marker["classes"] == ["b", "d", "a"]
    assert marker["removed"]["rows"] == 3
    stage = raw_stage(open_place(str(root)))
    assert generations.generation_of(stage, marker["parent"]).marker == json.loads(first)
    assert (root / "raw/generations" / f"{marker['parent']}.json").read_bytes() == first
    require_same(root, source)
    again = renew(source, root)
    assert (again["already_done"], again["newly_packed"], again["removed_or_changed"]) == (True, 0, 3)
    assert packs_of(root) == after


def test_images_of_packs_that_lost_most_are_packed_anew(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 40}), tmp_path / "root"
    renew(source, root)
    before = packs_of(root)
    for path in sorted(source.rglob("*.png"))[1:29]:
        path.unlink()
    with pytest.raises(UsageError, match=r"of 40 images in .* 28 are missing in this source and 0 have"):
        renew(source, root)
    assert renew(source, root, max_removed=0.7)["newly_packed"] >= 1
    assert "pack-00000" not in [pack["name"] for pack in generations.packs_of(root)]
    require_same(root, source)
    shutil.rmtree(root / "raw/generations")  # a pack that no generation names goes with the next renewal
    for key in packed_images(open_place(str(root))):
        (source / key).write_bytes(b"changed " + key.encode())
    renew(source, root, max_removed=1)
    require_same(root, source)
    after = packs_of(root)
    assert min(after.keys() - before.keys()) > max(before)  # no name comes again
    assert "pack-00000.tar" not in after


def test_an_image_that_comes_back_and_an_empty_class(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 1, "b": 30}), tmp_path / "root"
    renew(source, root)
    (source / "a/000.png").rename(tmp_path / "kept.png")
    renew(source, root)
    require_same(root, source)
    assert marker_of(root)["counts"]["by_class"] == [0, 30]
    (tmp_path / "kept.png").rename(source / "a/000.png")
    summary = renew(source, root)
    assert (summary["newly_packed"], summary["removed_or_changed"]) == (1, 0)
    assert marker_of(root)["removed"]["rows"] == 1
    require_same(root, source)
    assert len(list((root / "raw/removed").iterdir())) == 1


def test_files_are_compared_once(make_tree: TreeMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = make_tree({"a": 10}), tmp_path / "root"

    def compares() -> bool:
        assert renew(source, root)["already_done"]
        return "comparing their contents" in capsys.readouterr().err

    renew(source, root)
    os.utime(source / "a/004.png", (1, 1))
    assert [compares(), compares()] == [True, False]
    (source / "a/new.png").write_bytes(b"new")
    assert renew(source, root)["newly_packed"] == 1
    assert "comparing their contents" not in capsys.readouterr().err
    table = pa.table({"key": ["a/001.png"], "version": ["1"]})
    fingerprint = raw_stage(open_place(str(root))).fingerprint()
    edited = (table_bytes(table, facts) for facts in ({}, {"generation": 1}, {"generation": fingerprint}))
    for damaged in (b"damaged", *edited):
        (root / "raw/versions.parquet").write_bytes(damaged)
        assert [compares(), compares()] == [True, False]


def test_versions_of_another_generation_are_not_used(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A renewal that was killed after its marker and before its versions."""
    source, root = make_tree({"a": 20}), tmp_path / "root"
    renew(source, root)
    versions, changed = root / "raw/versions.parquet", source / "a/001.png"
    old, data = versions.read_bytes(), changed.read_bytes()
    changed.write_bytes(data[:-1] + b"!")
    assert renew(source, root)["newly_packed"] == 1
    versions.write_bytes(old)
    changed.write_bytes(data)
    time = pq.read_table(versions).to_pylist()[1]["version"]
    os.utime(changed, ns=(time, time))
    assert renew(source, root)["newly_packed"] == 1
    require_same(root, source)


def test_idx_files_grow(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (120, 5, 4), dtype=np.uint8)
    write_idx(tmp_path / "idx", "train", images[:100], np.arange(100) % 3 + 1, zipped=False)
    root = tmp_path / "root"
    renew(tmp_path / "idx", root)
    before = packs_of(root)
    images[7] += 1
    write_idx(tmp_path / "idx", "train", images, np.arange(120) % 3 + np.arange(120) // 100 * -1 + 1, zipped=False)
    summary = renew(tmp_path / "idx", root)
    assert (summary["newly_packed"], summary["removed_or_changed"]) == (21, 1)
    assert marker_of(root)["classes"] == ["1", "2", "3", "0"]
    assert {name: packs_of(root)[name] for name in before} == before
    for key, image in packed_images(open_place(str(root))).items():
        assert image.data.endswith(images[int(key[6:11])].tobytes())
    assert renew(tmp_path / "idx", root)["already_done"]


def test_columns_are_kept_with_each_image(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 20}), tmp_path / "root"
    rows = [f"a/{number:03d}.png,00{number // 5},\n" for number in range(19)]
    table = tmp_path / "patients.csv"
    table.write_text("key,patient,site\n" + "".join(rows) + 'b/x.png,7,"x"\n')
    summary = renew(source, root, columns=str(table))
    assert summary["columns"] == {"rows": 20, "rows_without_image": 1, "images_without_row": 1}
    images = packed_images(open_place(str(root)))
    assert images["a/007.png"].columns == {"patient": "001"}
    assert images["a/019.png"].columns == {}
    assert renew(source, root, columns=str(table))["already_done"]
    with pytest.raises(UsageError, match=r"0 are missing in this source and 19 have changed"):
        renew(source, root)
    rows[3] = 'a/003.png,000,"north"\n'
    parquet = tmp_path / "patients.parquet"
    keys, values, sites = zip(*(row.strip().replace('"', "").split(",") for row in rows), strict=True)
    pq.write_table(pa.table({"key": keys, "patient": values, "site": [each or None for each in sites]}), parquet)
    summary = renew(source, root, columns=str(parquet))  # one value changed: only its image is packed again
    assert (summary["newly_packed"], summary["removed_or_changed"]) == (1, 1)
    assert packed_images(open_place(str(root)))["a/003.png"].columns == {"patient": "000", "site": "north"}
    require_same(root, source)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x.csv", "key,a\nx,1\nx,2\n", r"the key x comes twice: in row 1 of --columns .*x\.csv and in row 2 of"),
        ("x.csv", "name,a\nx,1\n", "has the columns 'name', 'a'; it needs 'key'"),
        ("x.csv", "key,a\n\x1b[2J\x0e\n", r"line 2 of .*x\.csv cannot be read: it has 1 cells, the header 2"),
        ("x.csv", "key,a\n,1\n", "has 1 rows without a key"),
        ("x.csv", "key,\udcff\nx,1\n", r"line 1 of .*x\.csv cannot be read: it is not UTF-8"),
        ("x.csv", "", "has no rows"),
        ("x.csv", "key,a\nb/000.png,1\n", "none of its 1 keys is that of an image, as 'a/000.png' is"),
        ("x.parquet", "no", "is damaged"),
    ],
)
def test_an_unusable_table_is_refused(name: str, text: str, line: str, make_tree: TreeMaker, tmp_path: Path) -> None:
    table = tmp_path / name
    table.write_text(text, errors="surrogateescape")
    with pytest.raises(RingsliceError, match=line):
        renew(make_tree({"a": 3}), tmp_path / "root", columns=str(table))
    assert not (tmp_path / "root").exists()
