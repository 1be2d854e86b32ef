"""Run the stages of another commit and of this tree on the same small sources, and compare every file they leave.

python -m tests.same_bytes COMMIT    (or: make same-bytes BASE=COMMIT)

Sources: the digits of the demo, and 40 of them as a folder, IDX, list, Parquet and tar.zst; 30 odd image files; three
nights with kept splits, groups, removed keys and an erasure. Exits 1 and names the files that differ.
"""

import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.lib.commands import REPOSITORY, copy_some
from tests.lib.digits import write_digits
from tests.lib.pictures.table import pictures

LEFT_OUT = ("run.json", "versions.parquet", "verified", "report")  # times, and what only people read
NORMALIZED = ("--size", "28", "--color", "gray", "--format", "png")
KEPT = ("--workers", "2", "--splits-from", "newest", "--group-by", "patient", "--split", "train=0.6,test=0.4")


def write_sources(folder: Path) -> None:
    write_digits(folder / "digits")
    files = sorted(copy_some(folder / "digits", folder / "folder", "0123", slice(10)).rglob("*.png"))
    rows = [{"path": str(path), "image": path.read_bytes(), "label": path.parent.name} for path in files]
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    for name, shape, data in (("images-idx3", pixels.shape, pixels), ("labels-idx1", (40,), np.arange(40) // 10)):
        header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        write(folder / f"idx/train-{name}-ubyte.gz", gzip.compress(header + data.astype(np.uint8).tobytes(), mtime=0))
    lines = ["path,label", *(f"{path},{path.parent.name}" for path in files)]
    write(folder / "list/list.csv", "".join(f"{line}\n" for line in lines).encode())
    (folder / "parquet").mkdir()
    pq.write_table(pa.Table.from_pylist([{**row, "path": None} for row in rows]), folder / "parquet/some.parquet")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in files:
            archive.add(path, str(path.relative_to(folder / "folder")))
    write(folder / "tar/some.tar.zst", pa.Codec("zstd").compress(packed.getvalue(), asbytes=True))
    every = pictures()
    for name in sorted(every)[:: max(1, len(every) // 30)]:
        write(folder / "odd/some" / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.jpg", every[name].data)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def run_all(tree: Path, sources: Path, roots: Path) -> None:
    """Run every command of ``tree`` that writes files; below ``roots`` afterwards."""

    def ringslice(*words: object, status: int = 0) -> None:
        command = [sys.executable, "-m", "ringslice_entry", *map(str, words)]
        variables = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
        if done.returncode != status:
            sys.exit(f"{tree}: {' '.join(command[1:])}\n{done.stderr}")

    ringslice("pipeline", sources / "digits", roots / "digits", *NORMALIZED, "--pack-size", "32KB", "--workers", 8)
    for kind in ("folder", "idx", "list", "parquet", "tar"):
        source = sources / ("list/list.csv" if kind == "list" else kind)
        ringslice("pipeline", source, roots / kind, *NORMALIZED, "--workers", 2, "-r", "inline")
    ringslice("ingest", sources / "odd", roots / "odd")
    ringslice("normalize", roots / "odd", "--size", 32, "--max-rejects", 1, "--format", "raw")
    nights, root, keys = roots.parent / f"nights-{roots.name}", roots / "nights", roots.parent / f"keys-{roots.name}"
    for night in range(3):
        files = sorted(
            copy_some(sources / "digits", nights, "01234"[: night + 3], slice(20 + 9 * night)).rglob("*.png")
        )
        named = [str(path.relative_to(nights)) for path in files]
        table = "".join(f"{name},{name[:-5]}\n" for name in named)
        write(roots.parent / f"patients-{roots.name}.csv", f"key,patient\n{table}".encode())
        write(keys, f"{named[night]}\n".encode())
        ringslice(
            "ingest", nights, root, "--pack-size", "3KB", "--columns", roots.parent / f"patients-{roots.name}.csv"
        )
        ringslice("normalize", root, *NORMALIZED)
        ringslice("shard", root, *KEPT, "--name", night, "--remove", keys)
    ringslice("erase", root, "--keys", keys, status=1)  # slices have the images


def digests(roots: Path) -> dict[str, str]:
    files = [
        path for path in roots.rglob("*") if path.is_file() and not set(path.relative_to(roots).parts) & {*LEFT_OUT}
    ]
    return {str(path.relative_to(roots)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def main(commit: str) -> None:
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as name:
        folder = Path(name)
        archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder / "tree")
        write_sources(folder / "sources")
        found = []
        for tree in (folder / "tree", REPOSITORY):
            run_all(tree, folder / "sources", folder / "roots")
            found.append(digests(folder / "roots"))
            for left in ("roots", "nights-roots", "keys-roots", "patients-roots.csv"):
                path = folder / left
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    base, own = found
    differing = sorted(each for each in base.keys() | own.keys() if base.get(each) != own.get(each))
    print("\n".join(differing) or f"same bytes: {len(own)} files as made by {commit}")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main(sys.argv[1])
