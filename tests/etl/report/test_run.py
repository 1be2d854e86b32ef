"""The page of a run: every number is that of the JSON lines, nothing is loaded from elsewhere, whatever is missing."""

import html
import io
import json
import math
import re
import statistics
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.lib.commands import failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.report.pages import Page, run_page
from tests.lib.report.run_folders import RunFolder
from tests.lib.report.run_numbers import PARTS, Told, accuracy, loss, percent

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"
TEN = ["a & <b>", *(f"class {label}" for label in range(1, 10))]
Points = list[tuple[float, float]]


def plain(folder: Path) -> None:
    RunFolder(folder).write_metrics().write_recipe().write_result().write_confusion(TEN)


def elastic(folder: Path) -> None:
    """A rank is lost, and with it numbers; another one is late; some steps are told of twice; no validation split."""
    made = RunFolder(folder, (4, 4, 3), 430, "test", late=2, lost=range(861, 869), told_again=7, seed=1)
    made.write_metrics().write_recipe().write_result("no progress").write_confusion(map(str, range(21)))


def unfinished(folder: Path) -> None:
    RunFolder(folder, (1, 1), seed=2).write_metrics().write_recipe()


def many(folder: Path) -> None:
    made = RunFolder(folder, (40,), 12, input_s=0.05, seed=3).write_metrics().write_recipe().write_result("time")
    made.write_confusion((f"species {label}" for label in range(120)), 20)


def without_metrics(folder: Path) -> None:
    RunFolder(folder).write_result()


RUNS = {each.__name__: each for each in (plain, elastic, unfinished, many, without_metrics)}
by_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Page, Told]]:
    """The page of each run of `RUNS`, and what must stand there."""
    root, found = tmp_path_factory.mktemp("root") / "runs", {}
    for name, make in RUNS.items():
        make(root / name)
        found[name] = run_page(root / name, root.parent / f"{name}.html"), Told(root / name)
    return found


def told_terms(page: Page) -> dict[str, str]:
    return {
        html.unescape(name): html.unescape(re.sub("<.*?>", "", value))
        for name, value in re.findall(r"<dt[^>]*>(.*?)</dt><dd[^>]*>(.*?)</dd>", page.text)
    }


def captions(page: Page) -> dict[str, str]:
    found = re.findall(r'<figcaption><b>(.*?)</b>.*?<p class="note">(.*?)</p>', page.text, re.DOTALL)
    return {title: html.unescape(text) for title, text in found}


@by_run
def test_headlines_and_epochs(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    assert re.findall(r'<div class="card"><b>(.*?)</b><span>(.*?)</span>', page.text) == told.tiles()
    assert page.named_tables["results"][1:] == told.result_rows()
    assert page.named_tables["epochs"] == told.epoch_rows()


@by_run
def test_recipe_environment_and_facts(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    terms = told_terms(page)
    for setting, value in told.recipe.items():
        assert terms.pop(setting) == str(value)
    if told.record:
        record = told.record
        hosts = [each["host"] for each in record["ranks"]]
        assert terms.pop("ranks by host") == ", ".join(f"{host} {hosts.count(host)}" for host in dict.fromkeys(hosts))
        assert terms.pop("seconds") == f"{record['seconds']:,}"
        assert (terms.pop("started"), terms.pop("finished")) == (record["started"], record["finished"])
        assert (terms.pop("command"), terms.pop("versions")) == ("train/main.py --run best", "numpy 2.4.6")
    if told.steps:
        for fact, line in (("first step", told.steps[0]), ("last step", told.steps[-1])):
            assert terms.pop(fact) == f"{line['time'][:19].replace('T', ' ')} UTC"
        examples = sum(line["examples"] for line in told.steps)
        assert terms.pop("examples") == f"{examples:,} in the steps told of"
    lost = told.steps[-1]["step"] - told.steps[0]["step"] + 1 - len(told.steps) if told.steps else 0
    if lost:
        assert terms.pop("not told of").startswith(f"{lost} steps")
    if told.result:
        assert terms.pop("rolled back") == "1,234 steps were lost and taken again"
        assert terms.pop("slices") == f"{told.result['slices'][:16]}…"
    assert not terms


@by_run
def test_waits(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    if not told.steps:
        assert "parts" not in page.named_tables
        return
    assert page.named_tables["parts"][1:] == told.part_rows()
    ranks = told.rank_rows()
    assert (f"{len(ranks) - 16} ranks that did so less often are left out" in page.told) == (len(ranks) > 16)
    assert page.named_tables.get("ranks", [])[1:] == ranks[:16]
    assert bool(ranks) == (name != "unfinished")
    overall = ", ".join(f"{part} {percent(share)}" for part, share in zip(PARTS, told.overall, strict=True))
    assert captions(page)["Where the time goes, by step"] == f"All ranks together; in all {overall}."


def test_what_stands_out_is_told(pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages["elastic"]
    assert f"Rank 2 is the last in {percent(told.last_share(2))} of the steps" in page.told
    own, others = (f"{1000 * each(2):,.1f} ms" for each in (told.own_work, told.others_work))
    assert f"{own} of work of its own then (median) to {others} on the others: the others wait for it" in page.told
    assert "It is behind in compute" in page.told
    steps = [line for line in told.steps if line["ranks"] > 1]
    least = statistics.median(max(0.0, line["step_s"]["mean"] - line["own_s"]["max"]) for line in steps)
    assert f"{percent(told.overall[2])} of the time goes to the all-reduce" in page.told
    assert f"the last rank, which waits least, spends {1000 * least:,.1f} ms" in page.told
    assert "Nothing stands out" not in page.told
    page, told = pages["many"]
    assert f"{percent(told.overall[0])} of the time goes to waiting for input: the reader is behind" in page.told
    page, told = pages["plain"]
    assert "no rank holds up the others. Nothing stands out" in page.told
    assert f"computing takes {percent(told.overall[1])} of the time" in page.told
    assert f"computing takes {percent(pages['unfinished'][1].overall[1])} of the time" in pages["unfinished"][0].told


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("unfinished", "without_metrics")])
def test_classes(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    rows = told.score_rows()
    if len(rows) > 50:
        rows.sort(key=lambda row: int(row[2]) / int(row[1]))
    shown = page.named_tables["scores"][1:] + page.named_tables.get("more-scores", [])[1:]
    assert shown == rows
    assert len(page.named_tables["scores"]) - 1 == min(50, len(rows))
    assert (
        ("The 50 least accurate classes of 120" in page.told)
        == ("The other 70 classes" in page.told)
        == (name == "many")
    )
    assert f"confusion matrix of {len(rows)} classes: " in page.text
    bars = [float(width) for width in re.findall(r'class="s-train" style="width:([\d.]+)%', page.text)]
    assert bars == pytest.approx([100 * int(row[2]) / int(row[1]) for row in rows], abs=0.006)
    assert page.named_tables["mistakes"][1:] == told.mistake_rows()
    right, examples = sum(int(row[2]) for row in rows), sum(int(row[1]) for row in rows)
    assert f"{right:,} of {examples:,} examples are correct, {examples - right:,} are not" in page.told
    assert f"{right:,} of {examples:,} examples of test are on the diagonal" in captions(page)["Confusion matrix"]


def test_the_confusion_matrix_is_drawn(pages: dict[str, tuple[Page, Told]]) -> None:
    for name in ("plain", "elastic", "many"):
        page, told = pages[name]
        counts = np.array(told.confusion["counts"])
        drawing = drawing_of(page, "Confusion matrix")
        if len(counts) <= 20:
            texts = [each.text or "" for each in drawing.iter(f"{SVG}text")]
            numbers = [str(count) for count in counts.ravel() if count]
            assert any(texts[start : start + len(numbers)] == numbers for start in range(len(texts)))
            continue
        images = [each.attrib[XLINK] for each in drawing.iter(f"{SVG}image")]
        pixels = [np.asarray(Image.open(io.BytesIO(b64decode(each.partition(",")[2]))).convert("L")) for each in images]
        (matrix,) = (each.astype(int) for each in pixels if each.shape == counts.shape)
        matrix = matrix if matrix[0, 0] < matrix[0, len(matrix) // 2] else matrix[::-1]  # drawn upwards
        shares = counts / counts.sum(axis=1, keepdims=True)
        darker = np.argsort(shares, axis=None, kind="stable")
        assert (np.diff(matrix.ravel()[darker]) <= 0).all()  # the larger the share, the darker


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
        if np.ptp(wanted) > 1e-9:
            scale, origin = np.polyfit(wanted, found, 1)
            assert scale > 0
            assert found == pytest.approx(scale * wanted + origin, abs=0.01)
        else:
            assert np.ptp(found) < 0.01


@by_run
def test_curves_by_epoch(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    for what, wording in (("loss", loss), ("accuracy", accuracy)):
        splits = [split for split in ("train", "validation", "test") if f"{split}_{what}" in told.epochs[0]]
        if not splits:
            continue
        drawing = drawing_of(page, f"{what.capitalize()} by epoch")
        series = {split: [(line["epoch"], line[f"{split}_{what}"]) for line in told.epochs] for split in splits}
        drawn = [point for split in splits for point in line_of(drawing, f"{split}-{what}")]
        assert_drawn(drawn, [point for points in series.values() for point in points])
        ends = {split: (wording(points[0][1]), wording(points[-1][1])) for split, points in series.items()}
        texts = [f"{split}: {a}" + (f" to {b}" if len(told.epochs) > 1 else "") for split, (a, b) in ends.items()]
        assert captions(page)[f"{what.capitalize()} by epoch"] == "; ".join(texts) + "."
    speeds = [(line["epoch"], line["images_per_s"]) for line in told.epochs]
    assert_drawn(line_of(drawing_of(page, "Images per second"), "images-per-s"), speeds)
    assert captions(page)["Images per second"].startswith(f"{speeds[0][1]:,}")


@pytest.mark.parametrize("name", [name for name in RUNS if name != "without_metrics"])
def test_curves_by_step(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages[name]
    known = [(line["step"], line["loss"]) for line in told.steps if not math.isnan(line["loss"])]
    window = max(1, len(told.steps) // 50)
    means: Points = []
    for number, line in enumerate(told.steps):
        own = [each["loss"] for each in told.steps[max(0, number - window + 1) : number + 1]]
        finite = [value for value in own if not math.isnan(value)]
        if finite:
            means.append((line["step"], statistics.fmean(finite)))
    rates = [(line["step"], line["rate"]) for line in told.steps]
    losses = drawing_of(page, "Training loss by step")
    for drawing, line_id, points in (
        (losses, "step-loss", known),
        (losses, "step-loss-smoothed", means),
        (drawing_of(page, "Learning rate by step"), "rate", rates),
    ):
        drawn = line_of(drawing, line_id)
        if len(points) > 1000:
            assert 900 < len(drawn) <= 1000
            points = nearest(drawn, points)
        assert_drawn(drawn, points)
    least, most = (choose(known, key=lambda point: point[1]) for choose in (min, max))
    caption = captions(page)["Training loss by step"]
    extremes = f"Least {loss(least[1])} at step {least[0]:,}, largest {loss(most[1])} at step {most[0]:,}."
    assert caption.startswith(extremes)
    assert (f"the mean of the last {window} steps" in caption) == (window > 1)
    assert (f"{len(told.steps) - len(known)} steps without a finite loss" in caption) == (len(known) < len(told.steps))
    ends = f"At most {max(rate for _, rate in rates):.4g}, {rates[-1][1]:.4g} at the end."
    assert captions(page)["Learning rate by step"] == ends


def nearest(drawn: Points, points: Points) -> Points:
    """Of ``points`` those that were drawn, by their steps; among them must be the first, last, least and largest."""
    (left, _), (right, _) = drawn[0], drawn[-1]
    scale = (points[-1][0] - points[0][0]) / (right - left)
    by_step = dict(points)
    found: Points = [(step, by_step[step]) for step in (round(points[0][0] + (x - left) * scale) for x, _ in drawn)]
    for extreme in (min, max):
        assert extreme(value for _, value in found) == extreme(value for _, value in points)
    return found


def test_shares_by_step(pages: dict[str, tuple[Page, Told]]) -> None:
    page, told = pages["elastic"]
    length = len(told.steps)
    starts = [number * length // 200 for number in range(201)]
    stacked: dict[str, Points] = {part: [] for part in PARTS}
    for begin, end in pairwise(starts):
        sums = dict.fromkeys(PARTS, 0.0)
        for line in told.steps[begin:end]:
            for part, seconds in told.parts_of(line).items():
                sums[part] += line["ranks"] * seconds
        top = 0.0
        for part in PARTS:
            top += sums[part] / sum(sums.values())
            stacked[part].append((told.steps[end - 1]["step"], top))
    drawing = drawing_of(page, "Where the time goes, by step")
    for part in PARTS:
        (group,) = (each for each in drawing.iter(f"{SVG}g") if each.get("id") == f"share-{part}")
        (path,) = group.iter(f"{SVG}path")
        outline = [(float(x), -float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"])]
        upper: dict[float, float] = {}
        for x, y in outline:
            upper[x] = max(y, upper.get(x, -math.inf))
        assert_drawn(sorted(upper.items()), stacked[part])


def test_no_other_number_is_on_the_pages(pages: dict[str, tuple[Page, Told]]) -> None:
    """What the other tests compare taken away, no digit is left; and what is told of a drawing stands below it, too."""
    for page, _ in pages.values():
        text = re.sub(r"<(style|head)>.*?</\1>", "", page.text, flags=re.DOTALL)
        checked = (
            r"<table.*?</table>",
            r"<dl.*?</dl>",
            r"<figure.*?</figure>",
            r'<div class="card"><b>[^<]*</b><span>[^<]*</span>',
            r'<ul class="findings" id="advice">.*?</ul>',
            r'<p class="where">.*?</p>',
            r"<footer>.*?</footer>",
            r"\d+ ranks that did so less often",
            r"[\d,]+ of [\d,]+ examples are correct, [\d,]+ are not",
            r"The 50 least accurate classes of 120|The other 70 classes",
            r"finished 2026-01-02 05:24 UTC",
        )
        for pattern in checked:
            text = re.sub(pattern, "", text, flags=re.DOTALL)
        told = re.sub(r"<[^>]*>", " ", text)
        left = re.findall(r"[^.]*\d[^.]*", told)
        assert left == []
        texts = captions(page)
        for alt, title in zip([str(each["alt"]) for each in page.of("img")], texts, strict=True):
            alt = re.sub(r"matrix of \d+ classes", "", alt)
            assert set(re.findall(r"\d[\d,.]*\d|\d", alt)) <= set(re.findall(r"\d[\d,.]*\d|\d", texts[title]))


def test_what_is_missing_is_told(pages: dict[str, tuple[Page, Told]]) -> None:
    lacks = {
        "plain": [],
        "unfinished": ["result.json", "confusion-test.json", "run.json"],
        "without_metrics": ["metrics/", "recipe.toml", "confusion-test.json"],
    }
    for name, files in lacks.items():
        page, _ = pages[name]
        assert re.findall(r"<li><code>(.*?)</code>: ", page.text) == files
        assert ("not finished" in page.told) == (name == "unfinished")
    assert "finished 2026-01-02 05:24 UTC: all its epochs are done" in pages["plain"][0].told
    assert "it no longer got better" in pages["elastic"][0].told
    assert "Not known: there are no metrics of steps." in pages["without_metrics"][0].told


@by_run
def test_nothing_is_loaded_from_elsewhere(name: str, pages: dict[str, tuple[Page, Told]]) -> None:
    page, _ = pages[name]
    page.check_self_contained()
    assert all(attributes["alt"] for attributes in page.of("img"))
    ids = {attributes["id"] for tag, attributes in page.elements if tag == "section" and "id" in attributes}
    assert {attributes["href"] for attributes in page.of("a")} == {f"#{name}" for name in ids}
    for each in page.of("div"):
        if "scroll" in (each.get("class") or "") and "tabindex" in each:
            assert each["aria-label"]


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
