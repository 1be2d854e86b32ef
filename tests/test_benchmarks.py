"""The ways that the benchmarks compare still work; their speed is nobody's concern here."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.lib.commands import REPOSITORY, run, succeeded
from tests.lib.inline import ingest_here

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("way", ["ringslice", "floor", "floor_area", "opencv", "pillow"])
def test_a_way_to_normalise_tells_the_time_of_each_pass(way: str, tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    (source / "a").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(source / "a" / "0.jpg")
    ingest_here(source, root)
    script = REPOSITORY / "benchmarks" / "normalize_ways.py"
    told = succeeded(run("bash", "-c", 'printf "\\n\\n" | python "$@"', "bash", script, way, root, source))
    assert [float(line) > 0 for line in told.stdout.splitlines()] == [True, True]


def test_the_ways_to_keep_weights_leave_nothing(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks" / "checkpoint.py"
    told = succeeded(run("python", script, "--root", tmp_path, "--size", "8MB", "--repeats", 1))
    for way in ("ringslice", "safetensors", "synced", "copy"):
        assert way in told.stdout
    assert f"{tmp_path}: 8 MB" in told.stdout.replace("\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_peers_of_the_trainer_tell_images_per_second(digits_root: Path) -> None:
    script, slices = REPOSITORY / "benchmarks" / "trainer_ways.py", f"{digits_root}/slices/default"
    fit = {"way": "fit", "slices": slices, "model": "mlp", "batch": 100, "epochs": 2, "lr": 0.02}
    rates = json.loads(succeeded(run("python", script, json.dumps(fit))).stdout)
    assert [rate > 0 for rate in rates] == [True, True]
    consumer = {"way": "input", "slices": slices, "seconds": 0.2}
    rates = json.loads(succeeded(run("python", script, json.dumps(consumer))).stdout)
    assert rates.keys() == {"real", "synthetic", "read-bench"}
    assert 0 < rates["synthetic"] < rates["read-bench"]
