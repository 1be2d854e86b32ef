"""The trainer on HDFS, by both drivers: the digits are those of local files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etl.storage.hdfs_settings import LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import horovodrun, succeeded
from tests.lib.on_hadoop import put, set_site
from tests.lib.ranks.running import FINISHED
from tests.lib.train_in_process import export_here, promote_here
from train.checkpoints import store
from train.checkpoints.store import name_of

TRAIN = ("train/main.py", "--model", "mlp", "--json")


@pytest.fixture(scope="module")
def local(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local root with the run ``mine``: 2 ranks, 1 epoch."""
    root = tmp_path_factory.mktemp("on-hdfs") / "digits"
    for name in ("slices", "normalized"):
        shutil.copytree(digits_root / name, root / name)
    succeeded(horovodrun(2, *TRAIN, "--data", root, "--run", "mine", "--epochs", 1))
    return root


def result(run: Path | Place) -> Any:
    """What a run ended with, but for its speed."""
    found = json.loads((run / "result.json").read_bytes())
    for epoch in found["epochs"]:
        del epoch["images_per_s"]
    return found


@pytest.mark.parametrize(
    "driver", [pytest.param(NATIVE, marks=pytest.mark.witness), pytest.param(LIBHDFS, marks=pytest.mark.chaos)]
)
def test_the_digits_are_those_of_local_files(
    driver: str, local: Path, hadoop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root on HDFS has the same slices."""
    set_site(hadoop, monkeypatch)
    root = open_place(put(hadoop, local / "slices", local / "normalized"))
    other = {NATIVE: LIBHDFS, LIBHDFS: NATIVE}[driver]  # the option wins over the environment
    words = (*TRAIN, "--data", root.uri, "--run", "mine", "--epochs", 1, "--hdfs-driver", driver)
    output = succeeded(horovodrun(2, *words, RINGSLICE_HDFS_DRIVER=other))
    assert "Horovod background loop uncaught exception" not in output.stderr
    run = root / "runs" / "mine"
    assert result(run) == result(local / "runs/mine")
    (step,) = store.steps(run)
    arrays = f"checkpoints/{name_of(step)}/model.safetensors"
    assert (run / arrays).read_bytes() == (local / "runs/mine" / arrays).read_bytes()
    assert [info.base_name for info in run.children()] == FINISHED
    if driver == NATIVE:
        succeeded(horovodrun(2, "train/evaluate.py", "--data", root.uri, "--run", "mine", "--hdfs-driver", driver))
        found = (run / "evaluation-test.json").read_json()
        assert (found["loss"], found["accuracy"]) == tuple(result(run)["result"].values())
        succeeded(promote_here("--data", root.uri, "mine"))
        succeeded(export_here("--data", root.uri, "--run", "champion"))
        assert (run / "export/export.json").read_json()["run"] == "mine"
