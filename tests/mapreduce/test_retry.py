"""Rejects that are tried again: `normalize --retry-rejects` against normalising everything with the new limits."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import contents
from tests.inline import ingest_here, normalize_here
from tests.test_interrupts import stop_what_runs

__all__ = ["stop_what_runs"]  # a fixture

WORDS = ("--size", "8", "--format", "png", "--max-rejects", "1")
STRICT, LOOSE, LOOSEST = (("--max-pixels", str(number)) for number in (200, 500, 100_000))
RETRY = "--retry-rejects"

Parts = dict[str, dict[str, Any]]


def image(side: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
    return stream.getvalue()


def write_source(folder: Path, night: int = 0) -> Path:
    """Two classes of small images; in "a" some of 20, some of 40 pixels a side and one that is none among them."""
    for label, sides in (("a", (9, 20, 9, 40, 9, 20, 9)), ("b", (9,) * 7)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number, side in enumerate(sides):
            (folder / label / f"{night}-{number}.png").write_bytes(image(side, 100 * night + number + ord(label)))
    (folder / "a" / f"{night}-3b.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("images") / "source")


@pytest.fixture(scope="module")
def strict(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normalised with a limit that rejects the larger images; packs of a few images, some with rejects."""
    root = tmp_path_factory.mktemp("strict") / "root"
    ingest_here(source, root, pack_size="3KB")
    normalize_here(root, *WORDS, *STRICT)
    return root


@pytest.fixture(scope="module")
def fresh(strict: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, str]], Path]:
    """Roots with the same packs, all normalised anew with other limits."""
    made: dict[tuple[str, str], Path] = {}

    def make(limits: tuple[str, str]) -> Path:
        if limits not in made:
            made[limits] = tmp_path_factory.mktemp("fresh") / "root"
            shutil.copytree(strict / "raw", made[limits] / "raw")
            normalize_here(made[limits], *WORDS, *limits)
        return made[limits]

    return make


@pytest.fixture
def root(strict: Path, tmp_path: Path) -> Path:
    return shutil.copytree(strict, tmp_path / "root")


def marker_of(root: Path) -> dict[str, Any]:
    marker: dict[str, Any] = json.loads((root / "normalized/dataset.json").read_text())
    return marker


def parts_of(root: Path) -> Parts:
    """What the marker says of the part of each pack."""
    return {part.get("pack", part["part"]): part for part in marker_of(root)["parts"]}


def reasons_of(root: Path) -> dict[str, str]:
    """The reason of each reject, of all parts that the marker names."""
    listed = [part["part"] for part in parts_of(root).values() if part["rejects"]["count"]]
    rows = [row for part in listed for row in pq.read_table(root / f"normalized/rejects/{part}.parquet").to_pylist()]
    return {row["key"]: row["reason"] for row in rows}


def require_nothing_is_lost(root: Path) -> None:
    """Input = good + rejects: every image of each pack is either one, in all files that the marker names."""
    marker = marker_of(root)
    for pack, part in parts_of(root).items():
        read = [pq.read_table(root / "raw/packs" / f"{pack}.parquet"), *tables_of(root, part)]
        images, goods, rejects = (table["key"].to_pylist() for table in read)
        assert sorted(goods + rejects) == sorted(images)
        assert len(images) == part["input"] == part["records"] + part["rejects"]["count"]
    assert marker["counts"]["input"] == marker["counts"]["good"] + marker["counts"]["rejects"]


def tables_of(root: Path, part: dict[str, Any]) -> Iterator[Any]:
    for folder in ("parts", "rejects"):
        path = root / "normalized" / folder / f"{part['part']}.parquet"
        yield pq.read_table(path) if path.exists() else pq.read_table(root / "raw/packs/pack-00000.parquet").slice(0, 0)


def require_equal(root: Path, fresh: Path) -> None:
    """All images became what normalising all of them anew makes: the same records, rows and rejects."""
    ours, theirs = parts_of(root), parts_of(fresh)
    assert list(ours) == list(theirs)
    for pack, part in ours.items():
        for name in ("sha256", "input", "records", "bytes", "examples", "pack_sha256", "list_sha256"):
            assert part[name] == theirs[pack][name]
        assert part["rejects"]["by_reason"] == theirs[pack]["rejects"]["by_reason"]
        if part["part"] != pack:
            assert part["rejects"] == theirs[pack]["rejects"], "to the same bytes"
        tables = zip(tables_of(root, part), tables_of(fresh, theirs[pack]), strict=True)
        (rows, others), _ = tables
        assert rows.equals(others)
    assert marker_of(root)["config"] == marker_of(fresh)["config"]
    assert marker_of(root)["counts"] == marker_of(fresh)["counts"]


def test_looser_limits_give_what_normalising_all_with_them_gives(
    root: Path, strict: Path, fresh: Callable[[tuple[str, str]], Path]
) -> None:
    assert set(reasons_of(root).values()) == {"too-many-pixels", "not-an-image"}
    before = contents(root)
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    require_equal(root, fresh(LOOSE))
    require_nothing_is_lost(root)
    assert reasons_of(root) == {"a/0-3.png": "too-many-pixels", "a/0-3b.png": "not-an-image"}
    kept = {name: data for name, data in contents(root).items() if name in before}
    changed = {name for name, data in kept.items() if data != before[name]}
    assert changed == {"normalized/dataset.json", "normalized/run.json"}, "files never change"
    assert len(kept) == len(before)
    assert before["normalized/dataset.json"] in contents(root / "normalized/generations").values()
    old, new = parts_of(strict), parts_of(root)
    made = {pack for pack, part in new.items() if part["part"] != pack}
    assert made == {pack for pack, part in old.items() if part["rejects"]["by_reason"].get("too-many-pixels")} - {
        pack for pack, part in new.items() if part["rejects"]["by_reason"] == old[pack]["rejects"]["by_reason"]
    }
    assert all(new[pack]["part"] == f"{pack}.1" and new[pack]["pack"] == pack for pack in made)
    assert 0 < len(made) < len(new)

    normalize_here(root, *WORDS, *LOOSEST, RETRY)
    require_equal(root, fresh(LOOSEST))
    require_nothing_is_lost(root)
    assert reasons_of(root) == {"a/0-3b.png": "not-an-image"}
    assert f"{parts_of(root)['pack-00000']['pack']}.2" in {part["part"] for part in parts_of(root).values()}
