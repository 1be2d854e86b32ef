import json
import shutil
from pathlib import Path

import pytest

from etl.errors import DataError
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from tests.lib.commands import failed, ringslice, succeeded
from tests.lib.in_process import ringslice_here
from train.read_bench import show
from train.tf_backend.throughput import WAYS, Rate, Throughput


@pytest.mark.integration
def test_each_way_is_measured_for_each_number_of_slices(digits_root: Path) -> None:
    words = ("read-bench", digits_root, "--seconds", 0.1, "--slices-at-once", "1,2,64", "--json")
    finished = succeeded(ringslice(*words))
    result = json.loads(finished.stdout)
    assert (result["records"], result["slices"]) == (1437, 8)
    measured = result["measurements"]
    assert [(each["read"], each["slices_at_once"]) for each in measured] == [(way, n) for way in WAYS for n in (1, 2)]
    assert all(each["mb_per_s"] > 0 and each["cpu_s_per_gb"] > 0 for each in measured)
    assert [bool(each["records_per_s"]) for each in measured] == [False, False, True, True, True, True]
    assert "Exception" not in finished.stderr


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rates = [Rate("raw", 1, 3e9, None, 2.0, 1.5), Rate("records", 8, 2e9, 50_000, 2.5, 4.0)]
    show("/data/flowers/slices/default", {"records": 100_000}, rates, as_json=False)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["raw", "1", "1,500.0", "-", "0.5"] in rows
    assert ["records", "8", "800.0", "20,000", "2.0"] in rows


def test_wrong_use_is_reported_in_one_line(digits_root: Path, tmp_path: Path) -> None:
    failed(ringslice_here("read-bench", tmp_path), 2, "holds no finished shard")
    failed(ringslice_here("read-bench", digits_root, "--slices-at-once", 64), 2, "has 8 training slices")
    failed(ringslice_here("read-bench", digits_root, "--seconds", 0), 2, "0.0 is not in the range x>0")


@pytest.mark.parametrize("way", WAYS)
def test_a_slice_that_is_missing_is_named(way: str, digits_root: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(digits_root / "slices/default", tmp_path / "default")
    (folder / "train/train-00003-of-00008.tfrecord").unlink()
    manifest = Manifest.from_json(json.loads((folder / "manifest.json").read_text()))
    with pytest.raises(DataError, match=r"train-00003-of-00008\.tfrecord is missing"):
        Throughput(open_place(str(folder)), manifest, "train", seconds=10).measure(way, 1)
