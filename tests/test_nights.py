"""Ten nights: one percent new images each, some gone, some removed for good; no key ever changes its split."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import Origin
from mapreduce import normalize
from tests.lib.commands import ringslice, succeeded
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.nights import some_png

FIRST, MORE = 400, 4
CLASSES = ("ant", "bee", "cat")


def add_images(source: Path, first: int, number: int) -> None:
    for image in range(first, first + number):
        path = source / CLASSES[image % len(CLASSES)] / f"{image:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(some_png(image))


@pytest.mark.witness
@pytest.mark.integration
def test_ten_nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, root, listed = tmp_path / "source", tmp_path / "root", tmp_path / "removed.txt"
    decoded: list[str] = []

    def counting(raw: Any, normalized: Any, origin: Origin, *rest: Any, **more: Any) -> object:
        decoded.append(origin.pack)
        return normalize_pack(raw, normalized, origin, *rest, **more)

    monkeypatch.setattr(normalize, "normalize_pack", counting)
    split_of: dict[str, str] = {}
    removed: set[str] = set()
    tonight: set[str] = set()
    away: list[tuple[Path, bytes]] = []
    add_images(source, 0, FIRST)
    for night in range(11):
        if night:
            add_images(source, FIRST + MORE * (night - 1), MORE)
            for path, data in away:  # what was gone last night is back
                path.write_bytes(data)
            chosen = sorted(source.rglob("*.png"))[7 * night : 7 * night + 3]
            away = [(path, path.read_bytes()) for path in chosen[:2]]
            for path, _ in away:
                path.unlink()
            tonight = {str(chosen[2].relative_to(source))}
            removed |= tonight
        listed.write_text("".join(f"{key}\n" for key in tonight))  # those of nights before are remembered
        there = {str(path.relative_to(source)) for path in source.rglob("*.png")}
        before = {path: path.stat().st_mtime_ns for path in (root / "normalized/parts").glob("*")}
        decoded.clear()
        ingest_here(source, root, pack_size="16KB")
        normalize_here(root, "--size", "8", "--format", "png")
        words = ("--workers", 2, "--name", f"night-{night:02d}", "--splits-from", "newest", "--remove", listed)
        shard_here(root, *words)
        slices = root / "slices" / f"night-{night:02d}"
        rows = pq.read_table(slices / "examples.parquet").to_pylist()
        assert Counter(row["key"] for row in rows) == Counter(there - removed)
        for row in rows:
            assert split_of.setdefault(row["key"], row["split"]) == row["split"], (night, row["key"])
        departed = pq.read_table(slices / "departed.parquet").to_pylist()
        assert {row["key"] for row in departed if row["removed"]} == removed
        assert {row["key"] for row in departed} == (set(split_of) | removed) - (there - removed)
        if night:
            parts = {row["source"] for row in rows} - {path.stem for path in before}
            assert set(decoded) == parts  # no pack of another night is decoded
            assert json.loads((root / "normalized/run.json").read_text())["decoded"] <= MORE + 2
            assert {path: path.stat().st_mtime_ns for path in before} == before
    splits = Counter(row["split"] for row in rows)
    assert splits["test"] == pytest.approx(len(rows) / 10, abs=4)
    succeeded(ringslice("verify", root, "--name", "night-10", "-r", "inline"))
    succeeded(ringslice("verify", root, "--name", "night-05", "-r", "inline"))  # its generation is kept
    succeeded(ringslice("prune", root, "--keep", 2))
    assert {path.name for path in (root / "slices").iterdir()} == {"night-09", "night-10"}
    succeeded(ringslice("verify", root, "--name", "night-09", "-r", "inline"))
    shutil.rmtree(root / "slices/night-09")
    succeeded(ringslice("verify", root, "--name", "night-10", "-r", "inline", "--every-stage"))
