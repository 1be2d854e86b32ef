import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from etl.errors import DataError, UsageError
from etl.raw.ingest import ingest
from etl.raw.source_diff import VERSIONS_FILE
from etl.sources.base import Content, SourceImage
from etl.sources.folder import FolderSource
from etl.storage.place import open_place
from tests.conftest import TreeMaker
from tests.lib.commands import contents
from tests.lib.inline import ingest_here, ingest_values
from tests.lib.sources.archives import some_images, tar_of
from tests.lib.sources.packed import packed_images
from tests.lib.sources.parquet_images import image_table, write_parquet

VALUES = ingest_values(pack_size="2000")


def run(source: Path, root: Path, overwrite: bool = False, **values: Any) -> dict[str, Any]:
    summary = ingest(open_place(str(source)), open_place(str(root)), VALUES | values, overwrite)
    return summary.to_json()


def write_idx(folder: Path, stem: str, images: npt.NDArray[Any], labels: npt.NDArray[Any], zipped: bool) -> None:
    folder.mkdir(exist_ok=True)
    for name, values in ((f"{stem}-images-idx{images.ndim}-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        data = header + values.astype(np.uint8).tobytes()
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)


def test_packs_contain_the_files_byte_for_byte(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"recycled": 7, "a": 5}), tmp_path / "root"
    (source / "a" / "empty.png").write_bytes(b"")
    of_a_nas = ("@eaDir/000.png/SYNOPHOTO_THUMB_M.jpg", "a/@eaDir/x.jpg", "#recycle/y.png")
    of_windows = ("a/Thumbs.db", "a/Thumbs.db:encryptable", "a/000.png:Zone.Identifier", "FOUND.000/FILE0000.CHK")
    of_hadoop = ("a/000.png._COPYING_", "_SUCCESS")
    of_bins = ("RECYCLER/S-1-5-21-7/Dc1.jpg", "RECYCLED/Dd2.jpg")
    for added in ("a/.hidden", "readme.txt", "downloaded.tar.gz", *of_a_nas, *of_windows, *of_bins, *of_hadoop):
        (source / added).parent.mkdir(parents=True, exist_ok=True)
        (source / added).write_bytes(b"x")
    (source / "#recycle" / os.fsdecode(b"\xff")).touch()  # what is hidden is not looked into
    summary = run(source, root)
    assert (summary["images"], summary["classes"], summary["skipped_files"]) == (13, 2, 14)
    assert summary["packs"] > 1
    images = packed_images(open_place(str(root)))
    assert (len(images), list(images)) == (13, sorted(images))
    for key, image in images.items():
        assert (image.data, image.name) == ((source / key).read_bytes(), key.split("/")[0])


def test_a_second_run_does_nothing_and_another_dataset_is_refused(make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 4, "b": 4}), tmp_path / "root"
    run(source, root)
    before = contents(root)
    assert run(source, root)["already_done"]
    assert contents(root) == before
    os.utime(source / "a" / "000.png", (1, 1))
    assert run(source, root)["already_done"]  # touched, but its content is the same
    assert contents(root, VERSIONS_FILE) == {name: before[name] for name in before if VERSIONS_FILE not in name}
    before = contents(root)
    for name in ("000", "001"):
        (source / "a" / f"{name}.png").write_bytes(b"another")
    with pytest.raises(UsageError, match=r"of 8 images in .* 0 are missing in this source and 2 have changed"):
        run(source, root)
    with pytest.raises(UsageError, match=r"more than --max-removed 0\.1; is this another source"):
        for name in "ab":
            shutil.copytree(source / name, tmp_path / "other" / name / "below")
        run(tmp_path / "other", root)
    with pytest.raises(UsageError, match="pack_bytes 2000 there, 9 asked"):
        run(source, root, pack_size=9)
    assert contents(root) == before
    assert run(source, root, overwrite=True)["images"] == 8


@pytest.mark.parametrize("pack_bytes", [2000, 2001])
def test_an_interrupted_run_goes_on_if_it_is_the_same(
    pack_bytes: int, make_tree: TreeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, root = make_tree({"a": 12, "b": 12}), tmp_path / "root"
    run(shutil.copytree(source, tmp_path / "elsewhere"), tmp_path / "whole")
    reads, read_all = list[bool](), FolderSource.read_all

    def read_interrupted(source: FolderSource, images: Sequence[SourceImage]) -> Iterator[Content]:
        for content in read_all(source, images):
            reads.append(True)
            if len(reads) == 22:
                raise KeyboardInterrupt
            yield content

    monkeypatch.setattr(FolderSource, "read_all", read_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(source, root, pack_size=pack_bytes, packs_at_once=1)
    assert not (root / "raw/dataset.json").exists()
    made = {path: path.stat().st_mtime_ns for path in (root / "raw/packs").glob("*.parquet")}
    run(source, root)
    kept = {path for path in made if path.exists() and path.stat().st_mtime_ns == made[path]}
    assert kept == (made.keys() if pack_bytes == 2000 else set())
    assert (len(reads) - 22 < 24) is (pack_bytes == 2000)  # images of packs that are there are not read again
    assert contents(root, "run.json") == contents(tmp_path / "whole", "run.json")


@pytest.mark.parametrize(
    ("zipped", "channels", "train", "test"),
    [(False, 3, "train", "t10k"), (True, 1, "emnist-letters-train", "emnist-letters-test")],
)
def test_idx_files_keep_pixels_and_splits(tmp_path: Path, zipped: bool, channels: int, train: str, test: str) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 5, 4, channels)[: 3 + (channels > 1)], dtype=np.uint8)
    labels = np.arange(12) % 11
    write_idx(tmp_path / "idx", train, images[:8], labels[:8], zipped)
    write_idx(tmp_path / "idx", test, images[8:], labels[8:], zipped)
    assert run(tmp_path / "idx", tmp_path / "root")["source_splits"] == {"test": 4, "train": 8}
    for key, image in packed_images(open_place(str(tmp_path / "root"))).items():
        stem, number = key.split(".")[0].split("/")
        place = int(number) + (8 if stem == test else 0)
        assert image.data.endswith(b" 4 5 255\n" + images[place].tobytes())
        assert image.name == str(labels[place])
    marker = json.loads((tmp_path / "root/raw/dataset.json").read_bytes())
    assert marker["classes"] == [str(label) for label in range(11)]  # as numbers: 10 comes after 9


def test_pairs_of_idx_files_without_a_split_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And folders are no IDX files: Kaggle's MNIST has one of each name beside the files with a dot."""
    idx = tmp_path / "idx"
    for stem in ("one", "two"):
        write_idx(idx, stem, np.zeros((2, 2, 2)), np.zeros(2), zipped=False)
        (idx / f"{stem}-images-idx3-ubyte").rename(idx / f"{stem}-images.idx3-ubyte")
        (idx / f"{stem}-labels-idx1-ubyte").rename(idx / f"{stem}-labels.idx1-ubyte")
        (idx / f"{stem}-images-idx3-ubyte").mkdir()
    (idx / "._one-images.idx3-ubyte").write_bytes(b"of a Mac")
    summary = run(idx, tmp_path / "root")
    assert (summary["source_splits"], summary["skipped_files"]) == ({}, 1)
    assert "has train, t10k, test or validation in its name: one, two" in capsys.readouterr().err


def test_classes_name_the_numbers_of_folders_and_of_idx_files(make_tree: TreeMaker, tmp_path: Path) -> None:
    listed = tmp_path / "classes.txt"
    listed.write_text("cat\ndog\nowl\n")
    folder = make_tree({"2": 2, "0": 1, "dog": 1})
    write_idx(tmp_path / "idx", "train", np.zeros((4, 2, 2)), np.array([2, 2, 0, 1]), zipped=False)
    for source in (folder, tmp_path / "idx"):
        run(source, tmp_path / "roots" / source.name, classes=str(listed))
        marker = json.loads((tmp_path / "roots" / source.name / "raw/dataset.json").read_bytes())
        assert (marker["classes"], marker["counts"]["by_class"]) == (["cat", "dog", "owl"], [1, 1, 2])
    listed.write_text("cat\ndog\n")
    for source in (folder, tmp_path / "idx"):
        with pytest.raises(UsageError, match="has the label '2', which is not one of the 2 --classes"):
            run(source, tmp_path / "root", classes=str(listed))


def test_folders_of_splits(make_tree: TreeMaker, tmp_path: Path) -> None:
    source = make_tree({"Training/a": 2, "dev/a": 1, "Test/b": 1})
    splits = run(source, tmp_path / "root", split_folders=True)["source_splits"]
    assert splits == {"test": 1, "train": 2, "validation": 1}
    with pytest.raises(UsageError, match="look like splits, not classes; give --split-folders"):
        run(source, tmp_path / "other")
    with pytest.raises(UsageError, match="names no split"):
        run(make_tree({"new/a": 1}), tmp_path / "other", split_folders=True)


IDX_HEADER = bytes([0, 0, 8, 3]) + np.array([3, 2, 2], ">u4").tobytes()


def test_idx_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    images, source = np.zeros((3, 2, 2), np.uint8), tmp_path / "idx"
    write_idx(source, "train", images, np.zeros(2), zipped=False)
    with pytest.raises(DataError, match="do not belong together"):
        run(source, tmp_path / "root")
    write_idx(tmp_path / "planes", "train", np.zeros((3, 3, 2, 4), np.uint8), np.zeros(3), zipped=False)
    with pytest.raises(DataError, match=r"have 4 channels, by their last size; write 1 \(gray\) or 3 \(RGB\)"):
        run(tmp_path / "planes", tmp_path / "root")
    (source / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match="no labels beside it; expected train-labels-idx1-ubyte"):
        run(source, tmp_path / "root")
    write_idx(tmp_path / "cut", "train", images, np.zeros(3), zipped=True)
    path = tmp_path / "cut" / "train-images-idx3-ubyte.gz"
    for data, line in (
        (path.read_bytes()[:-9], "not a complete gzip file"),
        (gzip.compress(IDX_HEADER + bytes(11)), "truncated or too long"),
        *((gzip.compress(IDX_HEADER[:length]), "truncated or too long|not an IDX file") for length in (0, 3, 4, 15)),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=line):
            run(tmp_path / "cut", tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_the_same_pair_of_idx_files_twice_or_one_without_a_name_is_refused(tmp_path: Path) -> None:
    for zipped in (False, True):
        write_idx(tmp_path / "idx", "train", np.zeros((3, 2, 2)), np.zeros(3), zipped)
    with pytest.raises(UsageError, match=r"more than once: train-images-idx3-ubyte, train-images-idx3-ubyte\.gz\. L"):
        run(tmp_path / "idx", tmp_path / "root")
    write_idx(tmp_path / "unnamed", "", np.zeros((3, 2, 2)), np.zeros(3), zipped=False)
    for path in (tmp_path / "unnamed").iterdir():
        path.rename(path.with_name(path.name.lstrip("-")))
    with pytest.raises(UsageError, match=r"unnamed/images-idx3-ubyte: '/00000.pgm' cannot be a key, because it is abs"):
        run(tmp_path / "unnamed", tmp_path / "root")


def test_options_of_other_sources_are_refused(make_tree: TreeMaker, tmp_path: Path) -> None:
    folder = make_tree({"a": 2})
    write_idx(tmp_path / "idx", "train", np.zeros((2, 2, 2)), np.zeros(2), zipped=False)
    (tmp_path / "some.tar").write_bytes(tar_of(some_images()))
    (tmp_path / "list.csv").write_text(f"path,label\n{folder}/a/000.png,a\n")
    write_parquet(open_place(str(tmp_path / "some.parquet")), image_table(2))
    columns = {"image_column", "label_column", "split_column", "key_column"}
    supported = {
        folder: {"split_folders"},
        tmp_path / "idx": set(),
        tmp_path / "some.tar": {"split_folders", "label_column", "split_column"},
        tmp_path / "list.csv": columns,
        tmp_path / "some.parquet": columns,
    }
    for source, known in supported.items():
        for name in {"split_folders", *columns} - known:
            option = f"--{name.replace('_', '-')}"
            values: dict[str, Any] = {name: name == "split_folders" or "x"}
            with pytest.raises(UsageError, match=rf"{option} does not apply to a source of the kind '.*{source.name}"):
                ingest_here(source, tmp_path / "root", **values)
        assert run(source, tmp_path / "roots" / source.name)["images"] >= 1
    with pytest.raises(UsageError, match="--pack-size: with --in-place each file of SOURCE is a pack; leave one of"):
        run(tmp_path / "some.tar", tmp_path / "root", in_place=True)
    with pytest.raises(UsageError, match=r"--classes .*: is not a file"):
        ingest_here(folder, tmp_path / "root", classes=tmp_path)
    with pytest.raises(UsageError, match=r"--columns .*: no such file"):
        ingest_here(folder, tmp_path / "root", columns=tmp_path)
    assert not (tmp_path / "root").exists()


def test_a_root_inside_the_source_is_refused(make_tree: TreeMaker, tmp_path: Path) -> None:
    source = make_tree({"a": 2})
    before = contents(source)
    (tmp_path / "link").symlink_to(source)
    for place in (source, source / "a/root", tmp_path / "link", tmp_path / "link/a/root"):
        with pytest.raises(UsageError, match=r"ROOT .* lies in SOURCE .* give a ROOT outside"):
            run(source, place)
    assert contents(source) == before
    assert run(source, source / ".root")["images"] == run(source, source.with_name(f"{source.name}2"))["images"] == 2
    assert run(source, source / ".root")["already_done"]
    (tmp_path / "nothing").symlink_to("missing")
    for name in ("nothing", "nothing/root"):
        with pytest.raises(UsageError, match=r"nothing is a symbolic link to nothing\. Make"):
            run(source, tmp_path / name)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_lies_in_the_folder_of_raw_is_not_replaced(overwrite: bool, make_tree: TreeMaker, tmp_path: Path) -> None:
    root, photos = tmp_path / "root", tmp_path / "root/raw/photos"
    shutil.copytree(source := make_tree({"a": 2}), photos)
    (names := root / "raw/names.txt").write_text("a\n")
    (tmp_path / "link").symlink_to(root / "raw")
    before = contents(root)
    for place, more in ((photos, {}), (tmp_path / "link", {}), (source, {"classes": names})):
        with pytest.raises(UsageError, match=r"(SOURCE|--classes) .* lies in .*/raw, which ingest writes"):
            ingest_here(place, root, overwrite=overwrite, **more)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda source: (source / "a/x.tar.gz").write_bytes(b"x"), r"x\.tar\.gz is not an image; give a folder"),
        (lambda source: (source / "a/x\x1b[31m.png").write_bytes(b"x"), "cannot be a key, because it has control"),
        (lambda source: os.symlink("x", os.fsencode(source) + b"/a/\xff.png"), r"a link in .*/a is not UTF-8: b'\\xff"),
        (lambda source: (source / "a" / ("d/" * 300)).mkdir(parents=True), "more than 256 folders deep"),
        (lambda source: (source / "a/lost.jpg").symlink_to(source / "absent"), r"a/lost\.jpg is a link to nothing"),
        (lambda source: Path(os.fsdecode(os.fsencode(source) + b"/a/\xff.png")).touch(), "is not UTF-8; rename it"),
        (lambda source: os.renames(source / "a", source / "photos/a"), "lie in folders below 'photos', .* give .*/pho"),
        (lambda source: shutil.copytree(source / "a", source / "a "), "the classes 'a' and 'a ', which differ only by"),
        (
            lambda source: [shutil.copytree(source / "a", source / name) for name in ("caf\xe9", "cafe\u0301")],
            r"'cafe\\u0301' and 'caf\\xe9', which differ",
        ),
        (lambda source: (source / "a/x-images-idx3-ubyte").write_bytes(b"x"), "is an IDX file, not an image. Give the"),
        (lambda source: (source / "x-images-idx3-ubyte").write_bytes(b"x"), "has IDX files and the folder 'a'"),
        (lambda source: (source / "a/more.zip").write_bytes(b"x"), "a/more.zip is an archive, not an image; unpack it"),
        (lambda source: (source / "a").rename(source / " "), "the folder .* has a label that is empty"),
    ],
)
def test_a_folder_that_cannot_be_ingested_is_refused_in_one_line(
    change: Callable[[Path], object], line: str, make_tree: TreeMaker, tmp_path: Path
) -> None:
    source = make_tree({"a": 1})
    change(source)
    with pytest.raises(UsageError, match=line) as raised:
        run(source, tmp_path / "root")
    assert str(raised.value).isprintable()
    assert not (tmp_path / "root").exists()


def test_an_archive_in_place_of_folders_of_classes_is_named(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    for name in ("archive.tar.gz", "notes.docx"):
        (source / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=r"no images in .*; give archive\.tar\.gz itself"):
        run(source, tmp_path / "root")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source" / "x.tar")
    with pytest.raises(UsageError, match=r"x\.tar is a pipe or a device, not a file"):
        run(tmp_path / "source", tmp_path / "root")
    with pytest.raises(UsageError, match=r"x\.tar is neither a file nor a folder"):
        run(tmp_path / "source" / "x.tar", tmp_path / "root")
