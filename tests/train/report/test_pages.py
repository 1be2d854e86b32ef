"""The page of a run, and of several: their numbers are those of the JSON lines, nothing is loaded from elsewhere."""

import html
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from etl.errors import UsageError
from etl.storage.filesystem import LocalFilesystem
from etl.storage.place import Place, open_place
from tests.lib.commands import failed, run, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.report.pages import Page
from tests.lib.report.run_folders import RunFolder, confusion
from train.report.command import report_runs
from train.report.metrics import SMOOTHING, smooth

TEN = ["a & <b>", *(f"class {label}" for label in range(1, 10))]


def plain(folder: Path) -> Path:
    RunFolder(folder).write_metrics().write_recipe().write_result().write_confusion(TEN)
    return folder


def elastic(folder: Path) -> Path:
    """Not finished. A rank and its numbers are lost; another one is late; some steps are recorded twice; no validation
    split.
    """
    made = RunFolder(folder, (4, 4, 3), 100, "test", late=2, lost=range(201, 209), recorded_twice=7)
    made.write_metrics().write_recipe(batch=32)
    return folder


def many(folder: Path) -> Path:
    RunFolder(folder, (40,)).write_metrics().write_confusion([f"species {label}" for label in range(120)])
    return folder


def without_metrics(folder: Path) -> Path:
    RunFolder(folder).write_result("no progress")
    return folder


def run_page(folder: Path, target: Path) -> Page:
    report_runs([open_place(str(folder))], str(target))
    return Page(target.read_text())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The page of each kind of run."""
    root = tmp_path_factory.mktemp("root") / "runs"
    kinds = {each.__name__: each for each in (plain, elastic, many, without_metrics)}
    return {name: run_page(make(root / name), root.parent / f"{name}.html") for name, make in kinds.items()}


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
        ("0.2439", "test loss"),
        ("65.00 %", "best validation accuracy, epoch 2"),
        ("3", "of 3 epochs"),
        ("60", "steps"),
        ("2", "ranks"),
        ("1,002", "images/s, median of epochs"),
        ("59.1 s", "from the first step to the last"),
    ]
    heads = ["train loss", "train accuracy", "images/s", "validation loss", "validation accuracy", "train skipped"]
    assert page.named_tables["epochs"] == [
        ["epoch", "last step", *heads],
        ["1", "20", "2.0000", "50.00 %", "1,001", "2.1000", "40.00 %", "1"],
        ["2", "40", "1.0000", "75.00 %", "1,002", "1.0500", "65.00 %", "0"],
        ["3", "60", "0.6667", "83.33 %", "1,003", "0.7000", "53.33 %", "1"],
    ]
    facts = {
        "lr": "0.1",
        "last step": "2026-01-02 03:05:05 UTC",
        "examples": "7,680 in the recorded steps",
        "rolled back": "1,234 steps were lost and taken again",
        "slices": "d7d7d7d7d7d7d7d7…",
        "seconds": "8,400.0",
        "command": "train/main.py --run best",
        "versions": "numpy 2.4.6",
        "ranks": "worker0 2",
    }
    assert facts.items() <= terms(page).items()
    assert page.named_tables["parts"][1:] == [
        ["input", "2.0", "2.0", "2.0", "1.9 %", "2.0", "1", "100.0 %"],
        ["all-reduce", "4.0", "4.0", "4.0", "3.7 %", "4.0", "1", "100.0 %"],
        ["compute", "100.0", "100.0", "100.0", "93.5 %", "100.0", "1", "100.0 %"],
        ["other", "1.0", "1.0", "1.0", "0.9 %", "", "", ""],
        ["all but all-reduce", "103.0", "103.0", "103.0", "96.3 %", "103.0", "1", "100.0 %"],
    ]
    texts = captions(page)
    assert texts["Loss by epoch"] == "train: 2.0000 to 0.6667; validation: 2.1000 to 0.7000."
    assert texts["Learning rate by step"] == "At most 0.09901, 0.0625 at the end."


def test_a_late_rank_and_a_ring_that_became_smaller(pages: dict[str, Page]) -> None:
    page = pages["elastic"]
    assert {("4, then 3", "ranks"), ("65.00 %", "best test accuracy, epoch 2")} <= set(tiles(page))
    assert terms(page)["not recorded"].startswith("8 steps")
    assert terms(page)["examples"] == f"{64 * (200 * 4 + 92 * 3):,} in the recorded steps"
    assert page.named_tables["parts"][3] == ["compute", "113.8", "112.5", "116.7", "72.3 %", "150.0", "2", "89.7 %"]
    assert page.named_tables["parts"][5][-3:] == ["153.0", "2", "89.7 %"]
    assert [row[0] for row in page.named_tables["usage"][1:]] == ["0", "1", "2"]
    assert captions(page)["Training loss by step"].endswith(" 3 steps without a finite loss are left out.")


def test_of_many_classes_the_worst_come_first_and_of_many_ranks_some(pages: dict[str, Page]) -> None:
    page, counts = pages["many"], np.array(confusion(120))
    right, totals = counts.diagonal(), counts.sum(axis=1)
    scores, more = page.named_tables["scores"][1:], page.named_tables["more-scores"][1:]
    worst = np.argsort(right / totals, kind="stable")
    assert len(scores) == 50
    assert [row[:4] for row in (*scores, *more)] == [
        [f"species {n}", str(totals[n]), str(right[n]), f"{100 * right[n] / totals[n]:.2f} %"] for n in worst
    ]
    assert page.named_tables["mistakes"][1] == ["species 20", "species 21", "6", "30.0 %"]
    correct = f"{right.sum():,} of {counts.sum():,} examples"
    assert f"{correct} are correct, {counts.sum() - right.sum():,} are not" in page.prose
    assert f"{correct} of test are on the diagonal" in captions(page)["Confusion matrix"]
    assert [row[0] for row in pages["plain"].named_tables["scores"][1:]] == TEN
    assert "more-scores" not in pages["plain"].named_tables
    assert [row[0] for row in page.named_tables["usage"][1:]] == [str(rank) for rank in range(16)]
    assert "24 more ranks are left out" in page.prose


def missing(page: Page) -> list[str]:
    return re.findall(r"<li><code>(.*?)</code>: ", page.text)


def test_missing_files_are_reported(pages: dict[str, Page]) -> None:
    assert missing(pages["plain"]) == []
    assert missing(pages["without_metrics"]) == ["metrics/", "recipe.toml", "confusion-test.json"]
    assert "finished 2026-01-02 05:24 UTC: all its epochs are done" in pages["plain"].prose
    assert "not finished" in pages["elastic"].prose
    assert missing(pages["elastic"]) == ["result.json", "confusion-test.json", "run.json"]
    assert "it no longer got better" in pages["without_metrics"].prose
    assert "Not known: there are no metrics of steps." in pages["without_metrics"].prose
    assert {"parts", "usage"}.isdisjoint(pages["without_metrics"].named_tables)
    assert ("77", "images/s, median of epochs") in tiles(pages["without_metrics"])


def test_the_command_writes_the_same_page_again(tmp_path: Path) -> None:
    """Of a run that is not finished."""
    folder = elastic(tmp_path / "root/runs/best")
    before = sorted(tmp_path.rglob("*"))
    summary = json.loads(succeeded(ringslice_here("report", folder, "--json", cwd=tmp_path)).stdout)
    written = (tmp_path / "best-report.html").read_bytes()
    assert [summary[name] for name in ("bytes", "epochs", "steps", "finished")] == [len(written), 3, 300, False]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "best-report.html"])
    assert run_page(folder, tmp_path / "again.html").text == written.decode()


def test_a_link_stays_and_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    without_metrics(tmp_path / "run")
    (tmp_path / "page.html").symlink_to("elsewhere.html")
    for _ in range(2):  # it leads to nothing, then to the first page
        run_page(tmp_path / "run", tmp_path / "page.html")
        assert (tmp_path / "page.html").readlink() == Path("elsewhere.html")
        assert not (tmp_path / "elsewhere.html").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is not a regular file"):
        run_page(tmp_path / "run", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "lost.html").symlink_to("nowhere/page.html")
    with pytest.raises(UsageError, match="nowhere: no such folder"):
        run_page(tmp_path / "run", tmp_path / "lost.html")


@pytest.mark.integration
def test_the_core_and_the_extra_report_suffice(tmp_path: Path) -> None:
    plain(tmp_path / "run")
    probe = "import sys; sys.modules.update(dict.fromkeys(('keras', 'safetensors', 'tensorflow', 'torch')))"
    words = ("report", tmp_path / "run", "-o", tmp_path / "page.html")
    succeeded(run("python", "-c", f"{probe}; from mapreduce.cli import main; main()", *words))


HEAD = '{"format": "ringslice.confusion/1", "split": "test", "classes": ["a", "b"], "counts":'
RESULT = '{"format": "ringslice.run/2", "settings": {}, "epochs": [], '
RANKS = '{"kind": "ranks", "steps": 1, "sent_bytes": [1], "received_bytes": [1], '
STEPS = "metrics/steps-1-1.jsonl"
STEP = '{"kind": "step", "step": 1, "epoch": 1, "examples": 8, "ranks": 1, "time": "2026-01-02T03:04:05.678Z"'


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("recipe.toml", "epochs = ", "recipe.toml is damaged"),
        ("result.json", "{", "result.json is not JSON"),
        ("result.json", '{"format": "other/1"}', "result.json is damaged (its format is 'other/1')"),
        ("confusion-test.json", '{"format": "ringslice.confusion/2"}', "its format is 'ringslice.confusion/2'"),
        ("confusion-test.json", HEAD + "[[1]]}", "counts of shape (1, 1) for 2 classes"),
        ("confusion-test.json", HEAD + "[[1, 2], [3, 4.5]]}", "or not integers"),
        (STEPS, STEP, "steps-1-1.jsonl is damaged (JSON parse error: Missing a comma or '}'"),
        (STEPS, STEP + ', "step_s": {"mean": 1, "max": 1}}', "metrics is damaged (a step has no step_s.slowest_rank)"),
        (STEPS, '{"kind": "epoch", "epoch": 1, "train_loss": "a"}', "metrics is damaged (Unable to merge"),
        (STEPS, '{"kind": "epoch"}', "metrics is damaged (an epoch has no number)"),
        (STEPS, RANKS + '"peak_memory_bytes": [1, 2]}', "(a line of ranks is not whole)"),
        (STEPS, RANKS[:-2] + "}", "(a line of ranks is not whole)"),
        ("result.json", RESULT + '"stopped": {}}', "result.json is damaged (stopped is {}, against type"),
        ("result.json", RESULT + '"result": {"test_loss": "a"}}', "(result.test_loss is 'a', against type"),
        ("run.json", '{"finished": "yesterday"}', "run.json is damaged (Invalid isoformat string: 'yesterday')"),
        ("run.json", '{"command": [1, 2]}', "run.json is damaged (command[0] is 1, against type string)"),
        ("run.json", '{"ranks": [1]}', "run.json is damaged (ranks[0] is 1, against type object)"),
    ],
)
def test_a_damaged_file_is_named(name: str, content: str, what: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    RunFolder(folder).write_metrics()
    (folder / name).write_text(content)
    failed(ringslice_here("report", folder, "-o", tmp_path / "page.html"), 1, what)
    assert not (tmp_path / "page.html").exists()


@given(arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e6, 1e6) | st.sampled_from([math.nan, 1e17])))
def test_curves_are_means_of_the_last_values(values: np.ndarray) -> None:
    window = max(1, len(values) // SMOOTHING)
    for number, mean in enumerate(smooth(values)):
        own = values[max(0, number + 1 - window) : number + 1]
        own = own[np.isfinite(own)]
        assert math.isnan(mean) if not len(own) else mean == pytest.approx(own.mean(), rel=1e-9, abs=1e-6)


# --- pages that compare runs ---


def compare(tmp_path: Path, *words: object) -> Page:
    succeeded(ringslice_here("report", *words, "-o", tmp_path / "page.html"))
    return Page((tmp_path / "page.html").read_text())


def test_the_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    finished = "finished: all its epochs are done", "92.22 %", "0.2439", "65.00 % (validation, epoch 2)"
    unfinished = "not finished", "–", "–", "65.00 % (test, epoch 2)"  # noqa: RUF001
    one, two = plain(tmp_path / "flowers/runs/best"), elastic(tmp_path / "birds/runs/best")
    page = compare(tmp_path, one, two)
    assert page.named_tables["results-table"][1:] == [
        ["flowers/best", *finished, "3", "60", "2", "1,196", "59.1 s"],
        ["birds/best", *unfinished, "3", "300", "4, then 3", "1,631", "4 min 59 s"],
    ]
    differences = {name: values for name, *values in page.named_tables["differences-table"][1:]}
    assert differences["root"] == [f"{tmp_path}/flowers", f"{tmp_path}/birds"]
    assert differences["strategy"] == ["horovod", "–"]  # noqa: RUF001
    assert (differences["ranks"], differences["batch"]) == (["2", "4, then 3"], ["64", "32"])
    assert not {"model", "lr"} & set(differences)
    waits = ["107.0", "2.0", "1.9 %", "4.0", "3.7 %", "100.0", "93.5 %", "1.0", "0.9 %"]
    assert page.named_tables["waits-table"][1] == ["flowers/best", *waits]
    assert page.named_tables["usage-table"][1:] == [
        ["flowers/best", "0", "1,000,000", "2,000,000", "3 GB"],
        ["flowers/best", "1", "1,000,001", "2,000,002", "4 GB"],
        *(["birds/best", str(n), f"1,000,00{n}", f"2,000,00{2 * n}", f"{3 + n} GB"] for n in range(3)),
    ]
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.text)
    curves = [f"{source} {name}" for name in ("loss", "accuracy") for source in ("Training", "Validation", "Test")]
    assert titles == [*(f"{each} by {by}" for each in curves for by in ("step", "time")), "Images per second by step"]
    assert "flowers/best: 2.1000 to 0.7000." in page.prose


def test_of_many_ranks_some_are_compared(tmp_path: Path) -> None:
    page = compare(tmp_path, plain(tmp_path / "runs/two"), many(tmp_path / "runs/many"))
    assert [row[0] for row in page.named_tables["usage-table"][1:]] == ["two"] * 2 + ["many"] * 16
    assert "24 more ranks of many are left out." in page.prose


def test_runs_of_the_same_settings_without_measured_bytes(tmp_path: Path) -> None:
    """As runs of before have none. Those of the same name, of roots of the same name, are told apart, too."""
    folders = [plain(tmp_path / name / "root/runs/best") for name in ("first", "second")]
    for path in tmp_path.rglob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["kind"] != "ranks"))
    page = compare(tmp_path, *folders)
    labels = [str(folder) for folder in folders]
    assert [row[0] for row in page.named_tables["results-table"][1:]] == labels
    assert [row[0] for row in page.named_tables["differences-table"][1:]] == ["root"]
    assert f"Not measured: {', '.join(labels)}." in page.prose


def test_a_path_on_two_filesystems_is_of_two_runs(tmp_path: Path) -> None:
    folder = str(plain(tmp_path / "flowers/runs/best"))
    report_runs([Place(LocalFilesystem(), folder) for _ in range(2)], f"{folder}/page.html")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("one", "root"), "root is neither the folder of a run (no metrics, no result.json) nor the only root"),
        (("one", "--name", "x"), "--name 'x' is of slices, and "),
        (("one", "-o", "one/page.html"), "lies among the files of"),
        (("one", "one/../one"), "one is given twice. Give each run once"),
        (("one", "empty"), "empty has no metrics of steps, so it cannot be compared. Leave it out"),
        (("one", "set/runs/two", "-o", "set/models/champion.json"), "lies among the files of"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    for name in ("one", "two", "set/runs/two"):
        plain(tmp_path / name)
    (tmp_path / "set/models").mkdir()
    RunFolder(tmp_path / "empty").write_result()
    (tmp_path / "root").mkdir()
    before = sorted(tmp_path.rglob("*"))
    failed(ringslice_here("report", *words, cwd=tmp_path), 2, line)
    assert sorted(tmp_path.rglob("*")) == before
