"""The page of a set of slices: its numbers are the manifest's, and nothing is loaded from elsewhere."""

import itertools
import json
import operator
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError, UsageError
from etl.images.config import NormalizeConfig
from etl.images.geometry import FITS, Size, make_plan
from etl.images.sandbox import DecodeWorker
from etl.report import balance, dataset_page
from etl.report.dataset_page import report_slices
from etl.report.pictures import CONFIG, SIDE, count_enlarged, thumbnail
from etl.report.render import size
from etl.slices.manifest import read_manifest
from etl.stages.layout import slices_stage
from etl.storage.place import open_place
from mapreduce.verify import Verify
from tests.lib.commands import contents, failed, flip_bit, run, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.inline import ingest_here, normalize_here, run_here, shard_here
from tests.lib.pictures.base import save
from tests.lib.report.pages import Page

pytestmark = pytest.mark.integration  # some fixtures decode images in a process of their own


def page_of(root: Path, target: Path, name: str = "default") -> Page:
    report_slices(open_place(str(root)), name, str(target))
    return Page(target.read_text())


def picture(seed: int, width: int, height: int, kind: str = "png") -> bytes:
    return save(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8), kind)


def make_slices(source: Path, root: Path, name: str = "default") -> None:
    ingest_here(source, root, pack_size="4KB", max_removed="1")
    normalize_here(root, "--size", 8, "--format", "png", "--max-rejects", 0.5)
    shard_here(root, "--workers", 2, "--name", name, "--split", "train=0.8,validation=0.1,test=0.1")


@pytest.fixture(scope="module")
def mixed_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of three classes of 20, 12 and 4, of two formats and many sizes, with rejects of three reasons."""
    source, root = tmp_path_factory.mktemp("mixed") / "source", tmp_path_factory.mktemp("mixed") / "root"
    for name, count in {"a & <b>": 20, "cat": 12, "dog": 4}.items():
        (source / name).mkdir(parents=True)
        for number in range(count):
            kind = "jpeg" if number % 4 == 0 else "png"
            (source / name / f"{number:02d}.{kind}").write_bytes(picture(number, 6 + number, 9, kind))
    (source / "cat" / "cut.png").write_bytes(picture(1, 50, 40)[:4000])
    (source / "cat" / "text.png").write_bytes(b"no image at all")
    (source / "dog" / "text.png").write_bytes(b"<html>")
    (source / "dog" / "empty.png").write_bytes(b"")
    make_slices(source, root)
    return root


@pytest.fixture(scope="module")
def mixed_page(mixed_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(mixed_root, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def copied_root(mixed_root: Path, tmp_path: Path) -> Path:
    return shutil.copytree(mixed_root, tmp_path / "root")


def test_the_numbers_are_those_of_the_manifest(mixed_root: Path, mixed_page: Page) -> None:
    page, manifest = mixed_page, read_manifest(slices_stage(open_place(str(mixed_root)), "default"))
    balance, by_class, slices = page.tables[:3]
    for row, (name, split) in zip(balance[1:], manifest["splits"].items(), strict=True):
        records, own = ([each[what] for each in split["slices"]] for what in ("records", "bytes"))
        assert row[:3] == [name, str(split["records"]), str(len(records))]
        assert row[3:5] == [f"{min(records)} to {max(records)}", str(max(records) - min(records))]
        assert int(row[5]) <= 1  # stratified
        assert row[8:] == [size(split["bytes"]), f"{size(min(own))} to {size(max(own))}"]
    for label, row in enumerate(by_class[1:]):
        counts = [split["by_class"][label] for split in manifest["splits"].values()]
        assert row[:5] == [manifest["classes"][label], *map(str, counts), str(sum(counts))]
    recorded = [each for split in manifest["splits"].values() for each in split["slices"]]
    assert [row[:3] for row in slices[1:]] == [[e["name"], str(e["records"]), f"{e['bytes']:,}"] for e in recorded]
    assert "4 of 40 images (10.0 %) could not be used" in page.prose
    facts = "png 27 (75.0 %), jpeg 9 (25.0 %) width 6 to 25 pixels, median 12 height 9 pixels distinct sizes 20"
    assert f"formats {facts} most common 6 × 9 (8.3 %), 7 × 9 (8.3 %), " in page.prose  # noqa: RUF001
    assert "enlarged 6 (16.7 %)" in page.prose
    assert len(page.written) < 60_000


def test_examples_and_rejects_are_shown(mixed_page: Page) -> None:
    shown = [str(each["alt"]) for each in mixed_page.of("img")]
    examples = [alt for alt in shown if alt.startswith("an example")]
    assert len(examples) == 12 + 12 + 4  # at most twelve of a class
    assert sum("of class dog" in alt for alt in examples) == 4
    assert not any("damaged" in alt for alt in examples)
    placeholders = {each["aria-label"] for each in mixed_page.of("div") if each.get("class") == "nothing"}
    assert len(placeholders) == 4
    assert "reject dog/empty.png (empty): nothing can be shown" in placeholders


def test_many_classes_and_slices_are_summarised(
    mixed_root: Path, mixed_page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are three classes and four slices."""
    monkeypatch.setattr(balance, "MAX_CLASSES", 2)
    monkeypatch.setattr(balance, "SHOWN_AT_EACH_END", 1)
    monkeypatch.setattr(balance, "MAX_SLICES", 3)
    many = page_of(mixed_root, tmp_path / "page.html")
    assert [row[0] for row in mixed_page.tables[1][1:]] == ["a & <b>", "cat", "dog"]
    assert [row[0] for row in many.tables[1][1:]] == ["a & <b>", "1 more classes", "dog"]
    few, titles = ({*re.findall(r"<figcaption><b>(.*?)</b>", each.text)} for each in (mixed_page, many))
    assert (few - titles, titles - few) == (set(), {"All classes by size"})
    assert "The 8 smallest and 8 largest of 4 slices" in many.prose


def test_balance_is_that_of_the_counts() -> None:
    counts = np.random.default_rng(3).integers(0, 4, (7, 40))
    columns = {"train": range(30), "test": range(30, 40)}
    splits = {
        split: {
            "records": int(counts[:, own].sum()),
            "bytes": 9,
            "by_class": counts[:, own].sum(axis=1).tolist(),
            "slices": [{"name": str(number), "records": 1, "bytes": 9} for number in own],
        }
        for split, own in columns.items()
    }
    manifest = {"classes": [f"class-{label}" for label in range(7)], "splits": splits}
    numbers, labels = np.nonzero(counts.T)
    split_names = np.where(numbers < 30, "train", "test")
    rows = pa.table([split_names, labels, counts[labels, numbers]], balance.COLUMNS)
    least, most = balance.count_classes(manifest, [rows[:50], rows[50:]])
    for number, row in enumerate(balance.split_balances(manifest, (least, most))):
        own = counts[:, columns[row["name"]]]
        by_class = np.ptp(own, axis=1)
        assert np.ptp(row["by_class"]) == by_class.max()
        assert row["worst_class"] == f"class-{by_class.argmax()}"
        off = np.abs(own.sum(axis=1) - counts.sum(axis=1) * (own.sum() / counts.sum()))
        assert row["off_share"] == pytest.approx(off.max())
        assert least[number].tolist() == own.min(axis=1).tolist()
        assert most[number].tolist() == own.max(axis=1).tolist()


def test_the_images_that_are_enlarged_are_counted() -> None:
    """Of every size around the target, those whose plan makes a side longer."""
    sizes = [Size(height, width) for height in range(2, 32, 2) for width in range(2, 52, 2)]
    heights, widths = np.array(sizes).T
    for fit, only_shrink in itertools.product(FITS, (False, True)):
        plans = [make_plan(size, Size(10, 20), fit, only_shrink) for size in sizes]
        enlarged = [any(map(operator.lt, plan.box.sides, plan.size)) for plan in plans]
        config = NormalizeConfig(10, 20, fit, only_shrink=only_shrink)
        assert count_enlarged(widths, heights, config) == sum(enlarged), (fit, only_shrink)


def test_after_a_renewal_only_what_is_live_counts(tmp_path: Path) -> None:
    """A good image and a reject were removed from the source; their packs stay. The page of the slices before stays."""
    source, root = tmp_path / "source", tmp_path / "root"
    for number in range(20):
        path = source / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, 8 + number, 9) if number % 5 else b"no image")
    make_slices(source, root)
    (source / "a" / "00.png").unlink()
    (source / "b" / "19.png").unlink()
    (source / "b" / "new.jpeg").write_bytes(picture(99, 90, 9, "jpeg"))
    make_slices(source, root, name="second")
    page = page_of(root, tmp_path / "second.html", "second")
    for text in ("3 of 19 images (15.8 %) could not be used", "9 to 90 pixels", "png 15 (93.8 %), jpeg 1 (6.2 %)"):
        assert text in page.prose
    assert "reject a/00.png (not-an-image)" not in page.text
    assert [row[:2] for row in page.tables[-1][1:3]] == [["ingest", "1"], ["normalize", "1"]]
    before = page_of(root, tmp_path / "page.html")
    assert "4 of 20 images (20.0 %) could not be used" in before.prose
    assert "reject a/00.png (not-an-image)" in before.text


def test_a_picture_is_small_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of formats that `normalize` does not know reach no program of theirs."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started; exit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    avif = picture(2, 60, 40, "AVIF").partition(b"mdat")[0] + b"mdat" + bytes(2000)
    with DecodeWorker(CONFIG) as worker:
        whole = thumbnail(worker, picture(2, 200, 100, "jpeg"), caption="", alt="")
        assert (whole.width, whole.height) == (SIDE, SIDE // 2)
        large = save(Image.new("1", (11_000, 11_000)), "PNG")
        for nothing in (b"", b"text", picture(2, 200, 100)[:9000], large, postscript, avif):
            assert thumbnail(worker, nothing, caption="", alt="").uri is None
    assert not (tmp_path / "started").exists()


def test_the_findings_of_verify_are_shown(
    mixed_page: Page, copied_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a damaged record has a place holder. Of the last duplicates one is put into another split."""
    assert "not verified yet" in mixed_page.prose
    assert "Not known: verify these slices first" in mixed_page.prose
    monkeypatch.setattr(dataset_page, "SHOWN_FINDINGS", 1)
    monkeypatch.setattr(dataset_page, "SHOWN_CONTENTS", 2)
    for path in (copied_root / "slices/default/train").glob("*.tfrecord"):
        flip_bit(path, path.stat().st_size // 2)
    with pytest.raises(DataError):
        run_here(Verify, copied_root)
    duplicates = copied_root / "verified/default/duplicates.parquet"
    rows = (table := pq.read_table(duplicates)).to_pylist()
    rows[-1]["split"] = "validation" if rows[-1]["split"] != "validation" else "test"
    pq.write_table(pa.Table.from_pylist(rows, table.schema), duplicates)
    page = page_of(copied_root, tmp_path / "page.html")
    for text in (": 2 findings", "and 1 more; see", "12 contents under several keys", "and 10 more, in duplicates"):
        assert text in page.prose
    shown = page.prose.partition("contents under several keys")[2]
    assert shown.index(rows[-1]["key"]) < shown.index(rows[0]["key"])  # duplicates across splits come first
    assert page.text.count("(damaged): nothing can be shown") in (1, 2)
    shard_here(copied_root, "--workers", 1, "--overwrite")
    assert "but these are other slices: verify again" in page_of(copied_root, tmp_path / "page.html").prose


def test_missing_parts_and_slices_are_reported(copied_root: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied_root / "normalized/tables")
    assert "Not known: " in page_of(copied_root, tmp_path / "page.html").prose
    (copied_root / "normalized/dataset.json").write_text("damaged")
    assert "Not known: " in page_of(copied_root, tmp_path / "page.html").prose
    shutil.rmtree(copied_root / "normalized")
    for path in copied_root.rglob("slices/**/*.tfrecord"):
        path.unlink()
    found = page_of(copied_root, tmp_path / "page.html")
    assert "the normalized images that these slices were made from are gone" in found.prose
    assert found.tables[-1][2] == ["normalize", "not known"]
    assert not [each for each in found.of("img") if str(each["alt"]).startswith("an example")]
    (copied_root / "slices/default/class_counts.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"class_counts\.parquet is damaged"):
        page_of(copied_root, tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


def test_the_command_writes_the_same_page_again(mixed_root: Path, mixed_page: Page, tmp_path: Path) -> None:
    before = set(mixed_root.rglob("*"))
    summary = json.loads(succeeded(ringslice_here("report", mixed_root, "--json", cwd=tmp_path)).stdout)
    written = (tmp_path / "default-report.html").read_bytes()
    assert (written.decode(), len(written)) == (mixed_page.text, summary["bytes"])
    assert (summary["examples_shown"], summary["rejects_shown"]) == (28, 4)
    succeeded(ringslice_here("report", mixed_root, "-o", f"file://{tmp_path}/there.html"))
    assert (tmp_path / "there.html").read_bytes() == written
    assert set(mixed_root.rglob("*")) == before


def test_what_it_draws_with_is_missing(mixed_root: Path, tmp_path: Path) -> None:
    probe = "import sys; sys.modules['matplotlib'] = None; from mapreduce.cli import main; main()"
    finished = run("python", "-c", probe, "report", mixed_root, "-o", tmp_path / "page.html")
    failed(finished, 3, "report needs matplotlib; run: pip install 'ringslice[report]'")


def test_wrong_use(copied_root: Path, tmp_path: Path) -> None:
    (copied_root / "erased").mkdir()
    before = contents(tmp_path)
    for name, target, line in (
        ("other", "page.html", "has no finished shard"),
        ("default", "", "is a folder"),
        ("default", "root/slices/default/page.html", "lies among the files of a dataset"),
        ("default", "root/erased/images.parquet", "lies among the files of a dataset"),
    ):
        with pytest.raises(UsageError, match=line):
            page_of(copied_root, tmp_path / target, name)
    assert contents(tmp_path) == before
