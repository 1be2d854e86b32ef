"""The page of a run: its numbers are those of the JSON lines, nothing is loaded from elsewhere, whatever is missing."""

import html
import io
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.lib.commands import failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.report.pages import Page, run_page
from tests.lib.report.run_folders import RunFolder, confusion, loss_of, rate_of

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"
TEN = ["a & <b>", *(f"class {label}" for label in range(1, 10))]
Points = Sequence[tuple[float, float]]


def plain(folder: Path) -> None:
    RunFolder(folder).write_metrics().write_recipe().write_result().write_confusion(TEN)


def elastic(folder: Path) -> None:
    """A rank is lost, and with it numbers; another one is late; some steps are told of twice; no validation split."""
    made = RunFolder(folder, (4, 4, 3), 430, "test", late=2, lost=range(861, 869), told_again=7)
    made.write_metrics().write_recipe().write_result("no progress").write_confusion(TEN)


def unfinished(folder: Path) -> None:
    RunFolder(folder, (1, 1)).write_metrics().write_recipe()


def many(folder: Path) -> None:
    made = RunFolder(folder, (40,), 20, late=-1, input_s=0.05).write_metrics().write_recipe().write_result("time")
    made.write_confusion([f"species {label}" for label in range(120)])


def without_metrics(folder: Path) -> None:
    RunFolder(folder).write_result()


RUNS = {each.__name__: each for each in (plain, elastic, unfinished, many, without_metrics)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The page of each run of `RUNS`."""
    root, found = tmp_path_factory.mktemp("root") / "runs", {}
    for name, make in RUNS.items():
        make(root / name)
        found[name] = run_page(root / name, root.parent / f"{name}.html")
    return found


def tiles(page: Page) -> list[tuple[str, str]]:
    return re.findall(r'<div class="card"><b>(.*?)</b><span>(.*?)</span>', page.text)


def terms(page: Page) -> dict[str, str]:
    found = re.findall(r"<dt[^>]*>(.*?)</dt><dd[^>]*>(.*?)</dd>", page.text)
    return {html.unescape(name): html.unescape(re.sub("<.*?>", "", value)) for name, value in found}


def captions(page: Page) -> dict[str, str]:
    found = re.findall(r'<figcaption><b>(.*?)</b>.*?<p class="note">(.*?)</p>', page.text, re.DOTALL)
    return {title: html.unescape(text) for title, text in found}


def test_the_numbers_are_those_of_the_run(pages: dict[str, Page]) -> None:
    page = pages["plain"]
    assert tiles(page) == [
        ("92.22 %", "test accuracy"),
        ("65.00 %", "best validation accuracy, epoch 2"),
        ("3", "of 3 epochs"),
        ("60", "steps"),
        ("2", "ranks"),
        ("1,002", "images/s, median of epochs"),
        ("59.1 s", "from the first step to the last"),
    ]
    assert page.named_tables["results"][1:] == [
        ["train", "0.6667", "83.33 %", "after epoch 3", "83.33 %", "3"],
        ["validation", "0.7000", "53.33 %", "after epoch 3", "65.00 %", "2"],
        ["test", "0.2439", "92.22 %", "at the end", "–", ""],  # noqa: RUF001
    ]
    heads = ["train loss", "train accuracy", "images/s", "validation loss", "validation accuracy", "train skipped"]
    assert page.named_tables["epochs"] == [
        ["epoch", "last step", *heads],
        ["1", "20", "2.0000", "50.00 %", "1,001", "2.1000", "40.00 %", "1"],
        ["2", "40", "1.0000", "75.00 %", "1,002", "1.0500", "65.00 %", "0"],
        ["3", "60", "0.6667", "83.33 %", "1,003", "0.7000", "53.33 %", "1"],
    ]
    assert terms(page) == {
        **{"model": "cnn", "epochs": "3", "batch": "64", "lr": "0.1", "decay": "cosine", "seed": "7"},
        "first step": "2026-01-02 03:04:06 UTC",
        "last step": "2026-01-02 03:05:05 UTC",
        "examples": "7,680 in the steps told of",
        "rolled back": "1,234 steps were lost and taken again",
        "slices": "d7d7d7d7d7d7d7d7…",
        "started": "2026-01-02T03:04:00.000+00:00",
        "finished": "2026-01-02T05:24:00.000+00:00",
        "seconds": "8,400.0",
        "command": "train/main.py --run best",
        "versions": "numpy 2.4.6",
        "ranks by host": "worker0 2",
    }
    assert page.named_tables["parts"][1:] == [
        ["input", "2.0", "2.0", "2.0", "2.0", "0", "1.9 %"],
        ["compute", "100.0", "100.0", "100.0", "100.0", "0", "93.5 %"],
        ["all-reduce", "4.0", "4.0", "4.0", "4.0", "0", "3.7 %"],
        ["other", "1.0", "1.0", "1.0", "", "", "0.9 %"],
    ]
    assert "no rank holds up the others. Nothing stands out: computing takes 93.5 % of the time" in page.told


def test_a_late_rank_and_a_ring_that_became_smaller(pages: dict[str, Page]) -> None:
    page = pages["elastic"]
    assert ("4, then 3", "ranks") in tiles(page)
    assert ("21 min 29 s", "from the first step to the last") in tiles(page)
    assert ("65.00 %", "best test accuracy, epoch 2") in tiles(page)
    assert page.named_tables["results"][2:] == [["test", "0.2439", "92.22 %", "at the end", "65.00 %", "2"]]
    assert terms(page)["not told of"].startswith("8 steps")
    assert terms(page)["examples"] == f"{64 * (860 * 4 + 422 * 3):,} in the steps told of"
    assert terms(page)["ranks by host"] == "worker0 2, worker1 1"
    assert page.named_tables["parts"][1:] == [
        ["input", "2.0", "2.0", "2.0", "2.0", "0", "1.3 %"],
        ["compute", "113.9", "112.5", "116.7", "150.0", "2", "72.4 %"],
        ["all-reduce", "40.1", "41.5", "41.5", "54.0", "0", "25.7 %"],
        ["other", "1.0", "1.0", "1.0", "", "", "0.6 %"],
    ]
    assert page.named_tables["ranks"][1:] == [
        ["2", "1,153", "89.9 %", "153.0", "103.0", "compute"],
        ["1", "129", "10.1 %", "153.0", "103.0", "compute"],
    ]
    for told in (
        "Rank 2 is the last in 89.9 % of the steps",
        "153.0 ms of work of its own then (median) to 103.0 ms on the others: the others wait for it",
        "It is behind in compute",
        "25.7 % of the time goes to the all-reduce",
        "the last rank, which waits least, spends 4.0 ms",
    ):
        assert told in page.told
    assert "Nothing stands out" not in page.told


def test_a_reader_that_is_behind_and_a_run_of_one_rank(pages: dict[str, Page]) -> None:
    assert "24.4 % of the time goes to waiting for input: the reader is behind" in pages["many"].told
    assert "4 ranks that did so less often are left out" in pages["many"].told
    assert [row[0] for row in pages["many"].named_tables["ranks"][1:]] == [str(rank) for rank in range(1, 17)]
    assert "ranks" not in pages["unfinished"].named_tables
    assert "parts" not in pages["without_metrics"].named_tables


@pytest.mark.parametrize(("name", "classes"), [("plain", TEN), ("many", [f"species {n}" for n in range(120)])])
def test_classes(name: str, classes: list[str], pages: dict[str, Page]) -> None:
    page, counts = pages[name], np.array(confusion(len(classes)))
    right, taken, totals = counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1)
    order = np.argsort(right / totals, kind="stable") if len(classes) > 50 else range(len(classes))  # the worst first
    rows = []
    for label in order:
        wrong = np.where(np.arange(len(classes)) == label, 0, counts[label])
        most = f"{classes[wrong.argmax()]} ({wrong.max()})" if wrong.any() else ""
        shares = [f"{100 * right[label] / whole:.2f} %" for whole in (totals[label], taken[label])]
        rows.append([classes[label], str(totals[label]), str(right[label]), *shares, "", most])
    scores, more = page.named_tables["scores"][1:], page.named_tables.get("more-scores", [])[1:]
    assert (scores, more) == (rows[:50], rows[50:])
    assert ("The 50 least accurate classes of 120" in page.told) == ("The other 70 classes" in page.told) == bool(more)
    bars = [float(width) for width in re.findall(r'class="s-train" style="width:([\d.]+)%', page.text)]
    assert bars == pytest.approx([100 * right[label] / totals[label] for label in order], abs=0.006)
    worst = (6, 13) if more else (6, 5)
    assert page.named_tables["mistakes"][1:3] == [
        [classes[n], classes[n + 1], str(n % 7), f"{100 * (n % 7) / totals[n]:.1f} %"] for n in worst
    ]
    told = f"{right.sum():,} of {counts.sum():,} examples"
    assert f"{told} are correct, {counts.sum() - right.sum():,} are not" in page.told
    assert f"{told} of test are on the diagonal" in captions(page)["Confusion matrix"]


def test_the_confusion_matrix_is_drawn(pages: dict[str, Page]) -> None:
    """As numbers, or of many classes as an image, the darker the larger the share."""
    texts = [each.text or "" for each in drawing_of(pages["plain"], "Confusion matrix").iter(f"{SVG}text")]
    numbers = [str(count) for row in confusion(10) for count in row if count]
    assert any(texts[start : start + len(numbers)] == numbers for start in range(len(texts)))
    counts = np.array(confusion(120))
    images = [each.attrib[XLINK] for each in drawing_of(pages["many"], "Confusion matrix").iter(f"{SVG}image")]
    pixels = [np.asarray(Image.open(io.BytesIO(b64decode(each.partition(",")[2]))).convert("L")) for each in images]
    (matrix,) = (each.astype(int) for each in pixels if each.shape == counts.shape)
    matrix = matrix if matrix[0, 0] < matrix[0, 60] else matrix[::-1]  # drawn upwards
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert (np.diff(matrix.ravel()[np.argsort(shares, axis=None, kind="stable")]) <= 0).all()


def drawing_of(page: Page, title: str) -> ElementTree.Element:
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.text)
    return page.drawings()[titles.index(title)]


def line_of(drawing: ElementTree.Element, name: str) -> Points:
    """The points of the line with this id, in the drawing's units, y upwards."""
    (group,) = (each for each in drawing.iter(f"{SVG}g") if each.get("id") == name)
    return [
        (float(x), -float(y))
        for path in group.iter(f"{SVG}path")
        if path.get("clip-path")  # a marker has none
        for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))
    ]


def assert_drawn(drawn: Points, expected: Points) -> None:
    """The points are those expected, but for the scale and the origin of each axis."""
    assert len(drawn) == len(expected)
    for axis in (0, 1):
        found, wanted = (np.array([point[axis] for point in each]) for each in (drawn, expected))
        scale, origin = np.polyfit(wanted, found, 1)
        assert scale > 0
        assert found == pytest.approx(scale * wanted + origin, abs=0.01)


def test_curves(pages: dict[str, Page]) -> None:
    page = pages["plain"]
    drawing = drawing_of(page, "Loss by epoch")
    assert_drawn(line_of(drawing, "train-loss"), [(epoch, 2 / epoch) for epoch in (1, 2, 3)])
    assert_drawn(line_of(drawing, "validation-loss"), [(epoch, 2.1 / epoch) for epoch in (1, 2, 3)])
    accuracies = [(1, 0.4), (2, 0.65), (3, 0.9 - 0.5 / 3 - 0.2)]
    assert_drawn(line_of(drawing_of(page, "Accuracy by epoch"), "validation-accuracy"), accuracies)
    speeds = line_of(drawing_of(page, "Images per second"), "images-per-s")
    assert_drawn(speeds, [(epoch, 1000 + epoch) for epoch in (1, 2, 3)])
    assert_drawn(
        line_of(drawing_of(page, "Training loss by step"), "step-loss"), [(n, loss_of(n)) for n in range(1, 61)]
    )
    assert_drawn(line_of(drawing_of(page, "Learning rate by step"), "rate"), [(n, rate_of(n)) for n in range(1, 61)])
    texts = captions(page)
    assert texts["Loss by epoch"] == "train: 2.0000 to 0.6667; validation: 2.1000 to 0.7000."
    assert texts["Accuracy by epoch"] == "train: 50.00 % to 83.33 %; validation: 40.00 % to 53.33 %."
    assert texts["Images per second"].startswith("1,001 to 1,003 images/s")
    assert texts["Learning rate by step"] == "At most 0.09901, 0.0625 at the end."


def test_the_curve_of_many_steps(pages: dict[str, Page]) -> None:
    """At most 1,000 points are drawn, the least and the largest among them; what is not finite is left out."""
    known = [(step, loss_of(step)) for step in (*range(1, 861), *range(869, 1291)) if step % 97]
    drawn = line_of(drawing_of(pages["elastic"], "Training loss by step"), "step-loss")
    assert 900 < len(drawn) <= 1000
    values = [loss for _, loss in known]
    heights = [height for _, height in drawn]
    scale = (max(heights) - min(heights)) / (max(values) - min(values))
    assert (heights[-1] - heights[0]) / scale == pytest.approx(values[-1] - values[0], abs=0.001)
    assert captions(pages["elastic"])["Training loss by step"] == (
        f"Least {min(values):.4f} at step 1,290, largest {max(values):.4f} at step 1. "
        "Dark: the mean of the last 25 steps. 13 steps without a finite loss are left out."
    )


def test_what_is_missing_is_told(pages: dict[str, Page]) -> None:
    lacks = {
        "plain": [],
        "unfinished": ["result.json", "confusion-test.json", "run.json"],
        "without_metrics": ["metrics/", "recipe.toml", "confusion-test.json"],
    }
    for name, files in lacks.items():
        assert re.findall(r"<li><code>(.*?)</code>: ", pages[name].text) == files
        assert ("not finished" in pages[name].told) == (name == "unfinished")
    assert "finished 2026-01-02 05:24 UTC: all its epochs are done" in pages["plain"].told
    assert "it no longer got better" in pages["elastic"].told
    assert "Not known: there are no metrics of steps." in pages["without_metrics"].told
    assert ("77", "images/s, median of epochs") in tiles(pages["without_metrics"])


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Page]) -> None:
    for page in pages.values():
        page.check_self_contained()
        page.check_accessible()


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    page = run_page(tmp_path / "run", tmp_path / "page.html")
    assert "No step and no epoch is known yet." in page.told
    assert "not finished" in page.told


def test_the_command_writes_the_same_page_again(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "runs" / "best"
    unfinished(folder)
    before = sorted(tmp_path.rglob("*"))
    told = json.loads(succeeded(ringslice_here("report", folder, "--json", cwd=tmp_path)).stdout)
    written = (tmp_path / "best-report.html").read_bytes()
    assert (told["bytes"], told["epochs"], told["steps"], told["finished"]) == (len(written), 2, 40, False)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "best-report.html"])
    run_page(folder, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == written
    path = next((folder / "metrics").glob("*21-*.jsonl"))
    path.write_text(path.read_text().replace('"loss": ', '"loss": x', 1))
    failed(ringslice_here("report", folder, "-o", tmp_path / "page.html"), 1, f"{path.name}, line 1 is damaged (")
    assert not (tmp_path / "page.html").exists()
