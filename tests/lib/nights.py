"""Nights of a small source by the real stages, in process, and what each did with the splits."""

import io
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from mapreduce.verify import Verify
from tests.conftest import TreeMaker
from tests.lib.inline import ingest_here, normalize_here, run_here, shard_here


def some_png(number: int, width: int = 9, height: int = 12) -> bytes:
    """A picture of its own for each number."""
    buffer = io.BytesIO()
    pixels = random.Random(number).randbytes(width * height * 3)
    Image.frombytes("RGB", (width, height), pixels).save(buffer, "PNG")
    return buffer.getvalue()


SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5")


class Nights:
    """A source and its root, night by night."""

    def __init__(self, source: Path, root: Path) -> None:
        self.source, self.root = source, root
        self.number = 0

    def ingest(self, **values: object) -> None:
        ingest_here(self.source, self.root, max_removed="1", **values)  # type: ignore[arg-type]
        normalize_here(self.root, "--size", 8, "--format", "raw")

    def night(self, *words: object, **values: object) -> dict[bytes, str]:
        """The split of each content, after all stages."""
        self.ingest(**values)
        self.number += 1
        name = f"night-{self.number}"
        shard_here(self.root, *SHARES, "--splits-from", "newest", "--name", name, *words)
        run_here(Verify, self.root, "--name", name)
        return self.splits(name)

    def splits(self, name: str) -> dict[bytes, str]:
        rows = pq.read_table(self.root / "slices" / name / "examples.parquet").to_pylist()
        splits = {row["sha256"]: row["split"] for row in rows}
        assert all(splits[row["sha256"]] == row["split"] for row in rows)
        return splits


@pytest.fixture
def nights(make_tree: TreeMaker, tmp_path: Path) -> Nights:
    return Nights(make_tree({"ant": 20, "bee": 20}), tmp_path / "root")


def patients(nights: Nights, tmp_path: Path, change: dict[str, str] | None = None) -> str:
    """A table with a patient for each image: one for every four of them."""
    table = tmp_path / "patients.csv"
    keys = sorted(str(path.relative_to(nights.source)) for path in nights.source.rglob("*.png"))
    values = {key: f"patient-{number // 4}" for number, key in enumerate(keys)} | (change or {})
    table.write_text("key,patient\n" + "".join(f"{key},{value}\n" for key, value in values.items()))
    return str(table)


def splits_of_patients(nights: Nights, table: str) -> dict[str, str]:
    patient_of = dict(line.split(",") for line in Path(table).read_text().splitlines()[1:])
    rows = pq.read_table(nights.root / f"slices/night-{nights.number}/examples.parquet").to_pylist()
    return {patient_of[row["key"]]: row["split"] for row in rows}
