"""What an exported model says of files and folders, and how it names those that it cannot use."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from etl.errors import DataError
from tests.lib.commands import Finished, failed, run, succeeded
from tests.lib.train_in_process import export_here, predict_here
from tests.train.conftest import TrainedRun
from train.serving import files as export_files
from train.serving.image_files import find_images
from train.serving.predictor import PredictOptions, Predictor, predict

SCRIPT = "train/predict.py"


@pytest.fixture(scope="module")
def predictor(exported: TrainedRun) -> Predictor:
    return Predictor(exported.export, json.loads((exported.export / export_files.MARKER).read_text()))


def without_tables(data: bytes) -> bytes:
    """A JPEG without its quantisation tables: its segments are sound, and it cannot be decoded."""
    start = data.index(b"\xff\xdb")
    return data[:start] + data[start + 2 + struct.unpack(">H", data[start + 2 : start + 4])[0] :]


@pytest.fixture
def folder(exported: TrainedRun, tmp_path: Path) -> Path:
    """Images and what is none, in folders."""
    some = {label: sorted((exported.source / label).iterdir()) for label in "37"}
    jpeg = next(path for path in some["3"] if path.suffix == ".jpg").read_bytes()
    png = next(path for path in some["3"] if path.suffix == ".png").read_bytes()
    files = {
        "a/three.png": png,
        "a/trois.jpg": jpeg,
        "b/cut.jpg": jpeg[: len(jpeg) * 2 // 3],
        "b/cut.png": png[: len(png) // 2],
        "b/empty.jpg": b"",
        "b/note.txt": b"hello\n",
        "b/tables.jpg": without_tables(jpeg),
        "b/.hidden": b"hello",
        "c/drei.jpg": jpeg,
    }
    for name, data in files.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(data)
    with Image.open(tmp_path / "images/a/three.png") as image:
        image.save(tmp_path / "images/c/three.tiff")
        image.convert("P").save(tmp_path / "images/c/three.bmp")
    return tmp_path / "images"


USABLE = ("a/three.png", "a/trois.jpg", "c/drei.jpg")
UNUSABLE = {
    "b/cut.jpg": "truncated, ",
    "b/cut.png": "truncated, ",
    "b/empty.jpg": "empty, 0 bytes",
    "b/note.txt": "not-an-image, starts with 68656c6c6f0a",
    "b/tables.jpg": "broken, ",
    "c/three.bmp": "unsupported, of a kind that TensorFlow cannot decode; make it a JPEG or PNG",
    "c/three.tiff": "unsupported, tiff, of which TensorFlow knows nothing; make it a JPEG or PNG",
}


@pytest.mark.integration
def test_each_file_is_told_and_what_is_no_image_is_named(exported: TrainedRun, folder: Path) -> None:
    another = sorted((exported.source / "7").iterdir())[3]
    result = run(SCRIPT, exported.export, folder, another, RINGSLICE_TOP="2")
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [line[0] for line in lines] == [*(f"{folder}/{name}" for name in USABLE), str(another)]
    assert lines[1][1:] == lines[2][1:]
    assert all(len(line) == 5 and 1 >= float(line[2]) >= float(line[4]) >= 0 for line in lines)
    failed(result, 1, "7 of 11 files could not be used; each is named above, with its reason")
    named = [line for line in result.stderr.splitlines() if line.startswith("ringslice predict:")]
    for line, (name, why) in zip(named, UNUSABLE.items(), strict=True):
        assert line.startswith(f"ringslice predict: {folder}/{name} cannot be used: {why}")
    assert len(result.stderr.splitlines()) == len(UNUSABLE) + 1


@pytest.mark.parametrize("batch", [1, 4])
def test_lines_of_json_are_the_same_whatever_the_batch(
    batch: int, predictor: Predictor, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="7 of 10 files"):
        predict(predictor, find_images([str(folder)]), PredictOptions(top=3, batch=batch, json=True))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["path"] for each in found] == [f"{folder}/{name}" for name in USABLE]
    for each in found:
        assert each["top"][0] == {"class": each["class"], "probability": each["probability"]}
        shares = [one["probability"] for one in each["top"]]
        assert len(shares) == 3
        assert shares == sorted(shares, reverse=True)


def test_a_class_is_reported_by_its_name(
    predictor: Predictor, exported: TrainedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    images = find_images([str(exported.source / "0")])
    predict(predictor, images, PredictOptions(top=1, batch=32, json=False))
    names = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert len(names) == len(images)
    assert names.count("0") > 0.8 * len(names)


def test_a_probability_that_is_not_finite_is_reported(
    exported: TrainedRun, monkeypatch: pytest.MonkeyPatch, predictor: Predictor, capsys: pytest.CaptureFixture[str]
) -> None:
    images = find_images([str(exported.source / "0")])[:2]
    found = [np.full(10, np.nan, np.float32), np.full(10, 0.1, np.float32)]
    monkeypatch.setattr(predictor, "classify", lambda files: found)
    with pytest.raises(DataError, match="1 of 2 files could not be used"):
        predict(predictor, images, PredictOptions(top=1, batch=32, json=True))
    printed = capsys.readouterr()
    assert "cannot be used: the model's probabilities for it are not finite" in printed.err
    assert json.loads(printed.out)["path"] == images[1].name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("EXPORT", "ABSENT"), "absent: no such file or folder"),
        (("EXPORT", "EMPTY"), "has no files; give images, or a folder of images"),
        (("EMPTY", "IMAGE"), "has no export (no export.json); make one with: train/export.py --data ROOT --run NAME"),
        (("s3://bucket/export", "IMAGE"), "cannot open 's3://bucket/export'"),
    ],
)
def test_wrong_use(words: tuple[str, ...], line: str, exported: TrainedRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    image = next((exported.source / "3").iterdir())
    places = {"EXPORT": exported.export, "EMPTY": tmp_path / "empty", "IMAGE": image, "ABSENT": tmp_path / "absent"}
    failed(predict_here(*(places.get(word, word) for word in words)), 2, line)


@pytest.mark.integration
def test_the_command_lines_need_no_tensorflow() -> None:
    probe = "import sys, train.export, train.predict; sys.exit('tensorflow' in sys.modules)"
    succeeded(run("python", "-c", probe))


@pytest.mark.parametrize(("command", "script"), [(predict_here, SCRIPT), (export_here, "train/export.py")])
def test_help_has_an_example(command: Callable[..., Finished], script: str) -> None:
    assert f"Example: {script}" in succeeded(command("--help")).stdout
