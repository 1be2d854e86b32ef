"""The smaller parts of the trainer: models, and where runs live."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from etl.errors import UsageError
from etl.stages.layout import SLICES_FORMAT
from etl.storage.json_files import with_checksum
from etl.storage.place import open_place
from tests.lib.commands import REPOSITORY, run, succeeded
from train.config.builder import find_builder
from train.config.settings import AUTO
from train.runs.folder import choose_run, find_dataset
from train.tf_backend.builders import BUILDERS, build, cnn, mlp

LOADED = """
import sys
from train.parallel.startup import OPTIONAL, hide_packages, prepare_import
with prepare_import():
    import train.loop
assert not set(OPTIONAL) & set(sys.modules), "Keras has loaded them"
import matplotlib, sklearn.base
with hide_packages(OPTIONAL):
    import sklearn.tree
assert sys.modules["sklearn"] is sklearn
"""


@pytest.mark.integration
def test_keras_is_loaded_without_optional_packages() -> None:
    succeeded(run("python", "-c", LOADED))


def test_the_mlp_is_784_1024_10() -> None:
    assert mlp((28, 28, 1), 10).count_params() == 784 * 1024 + 1024 + 1024 * 10 + 10


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (57, 33, 3)])
def test_the_cnn_takes_any_size(shape: tuple[int, int, int]) -> None:
    assert cnn(shape, 7).output_shape == (None, 7)


def test_a_model_begins_with_normalisation() -> None:
    model = build("mlp", (2, 2, 3), 4, mean=[10, 20, 30], std=[1, 2, 4])
    pixels = np.array([[[[11, 24, 30]] * 2] * 2], dtype=np.uint8)
    assert np.allclose(keras.ops.convert_to_numpy(model.layers[0](pixels)), [1, 2, 0])


def test_a_users_module_may_be_called_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text("from train.tf_backend.builders import mlp as own\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "train")  # as of train/main.py
    try:
        assert find_builder("model:own", BUILDERS) is mlp
    finally:
        sys.modules.pop("model", None)


def test_the_newest_finished_slices_are_found(tmp_path: Path) -> None:
    for root, name, finished in (
        ("a", "default", "2026-01-02"),
        ("b", "default", "2026-01-03"),
        ("b", "old", "2026-01-01"),
    ):
        folder = tmp_path / root / "slices" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps(with_checksum({"format": SLICES_FORMAT})))
        (folder / "run.json").write_text(json.dumps({"finished": finished}))
    (tmp_path / "c" / "slices" / "unfinished").mkdir(parents=True)
    found = find_dataset(str(tmp_path), None)
    assert (found.root, found.name) == (str(tmp_path / "b"), "default")
    assert find_dataset(str(tmp_path / "a"), None).root == str(tmp_path / "a")
    assert find_dataset(str(tmp_path), "old").name == "old"
    with pytest.raises(UsageError, match="no slices called 'none'"):
        find_dataset(str(tmp_path), "none")
    with pytest.raises(UsageError, match="no finished slices under"):
        find_dataset(str(tmp_path / "c"), None)


def test_runs_are_numbered_or_named(tmp_path: Path) -> None:
    root = open_place(str(tmp_path))
    assert choose_run(root, None, resume=AUTO).name == "run-0001"
    for name in ("run-0001/checkpoints", "run-0009/audit", "run-0010/_work", "mine/checkpoints", "killed-early/_work"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert choose_run(root, None, resume=None).name == "run-0011"
    assert choose_run(root, None, resume=AUTO).name == "run-0009"
    assert choose_run(root, "killed-early", resume=None).name == "killed-early"
    assert choose_run(root, "mine", resume=AUTO).name == "mine"
    with pytest.raises(UsageError, match="is there already; give --resume"):
        choose_run(root, "mine", resume=None)
    for name in ("../x", "-m"):
        with pytest.raises(UsageError, match="not a plain folder name"):
            choose_run(root, name, resume=AUTO)
