"""The page that compares runs: its numbers are theirs."""

import json
import re
from pathlib import Path

import pytest

from tests.lib.commands import failed, succeeded
from tests.lib.in_process import ringslice_here
from tests.lib.report.pages import Page
from tests.lib.report.run_folders import RunFolder

ONE = "finished: all its epochs are done", "92.22 %", "0.2439", "65.00 % (validation, epoch 2)"
OTHER = "not finished", "–", "–", "65.00 % (test, epoch 2)"  # noqa: RUF001


def ring(folder: Path) -> Path:
    RunFolder(folder).write_metrics().write_recipe().write_result()
    return folder


def elastic(folder: Path) -> Path:
    """Not finished; a rank is lost and another one late, and some steps are recorded twice."""
    RunFolder(folder, (4, 4, 3), 100, "test", late=2, recorded_twice=7).write_metrics()
    (folder / "recipe.toml").write_text('model = "cnn"\nbatch = 32\nlr = 0.1\n')
    return folder


def compare(tmp_path: Path, *words: object) -> Page:
    succeeded(ringslice_here("report", *words, "-o", tmp_path / "page.html"))
    page = Page((tmp_path / "page.html").read_text())
    page.check_self_contained()
    page.check_accessible()
    return page


def test_the_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    one, two = ring(tmp_path / "flowers/runs/best"), elastic(tmp_path / "birds/runs/best")
    page = compare(tmp_path, one, two)
    assert page.named_tables["results-table"][1:] == [
        ["flowers/best", *ONE, "3", "60", "2", "1,196", "59.1 s"],
        ["birds/best", *OTHER, "3", "300", "4, then 3", "1,631", "4 min 59 s"],
    ]
    differences = {name: values for name, *values in page.named_tables["differences-table"][1:]}
    assert differences["root"] == [f"{tmp_path}/flowers", f"{tmp_path}/birds"]
    assert differences["strategy"] == ["horovod", "–"]  # noqa: RUF001
    assert (differences["ranks"], differences["batch"]) == (["2", "4, then 3"], ["64", "32"])
    assert not {"model", "lr"} & set(differences)
    assert page.named_tables["waits-table"][1:] == [
        ["flowers/best", "107.0", "2.0", "1.9 %", "4.0", "3.7 %", "100.0", "93.5 %", "1.0", "0.9 %"],
        ["birds/best", "157.0", "2.0", "1.3 %", "41.5", "25.7 %", "112.5", "72.4 %", "1.0", "0.6 %"],
    ]
    assert page.named_tables["usage-table"][1:] == [
        ["flowers/best", "0", "1,000,000", "2,000,000", "3 GB"],
        ["flowers/best", "1", "1,000,001", "2,000,002", "4 GB"],
        *(["birds/best", str(n), f"1,000,00{n}", f"2,000,00{2 * n}", f"{3 + n} GB"] for n in range(3)),
    ]
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.text)
    curves = [f"{source} {name}" for name in ("loss", "accuracy") for source in ("Training", "Validation", "Test")]
    assert titles == [*(f"{each} by {by}" for each in curves for by in ("step", "time")), "Images per second by step"]
    assert "flowers/best: 2.1000 to 0.7000." in page.prose


def test_runs_of_the_same_settings_without_measured_bytes(tmp_path: Path) -> None:
    """As runs of before have none. Those of the same name, of roots of the same name, are told apart, too."""
    folders = [ring(tmp_path / name / "root/runs/best") for name in ("first", "second")]
    for path in tmp_path.rglob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["kind"] != "ranks"))
    page = compare(tmp_path, *folders)
    labels = [str(folder) for folder in folders]
    assert [row[0] for row in page.named_tables["results-table"][1:]] == labels
    assert [row[0] for row in page.named_tables["differences-table"][1:]] == ["root"]
    assert f"Not measured: {', '.join(labels)}." in page.prose


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("one", "root"), "root is neither the folder of a run (no metrics, no result.json) nor the only root"),
        (("missing",), "missing is neither the folder of a run"),
        (("one", "--name", "x"), "--name 'x' is of slices, and "),
        (("one", "-o", "one/page.html"), "lies among the files of"),
        (("one", "one/../one"), "one is given twice. Give each run once"),
        (("one", "empty"), "empty has no metrics of steps, so it cannot be compared. Leave it out"),
        (("one", "two", "--name", "x"), "--name 'x' is of slices, and "),
        (("one", "two", "-o", "one/page.html"), "lies among the files of"),
        (("one", "set/runs/two", "-o", "set/models/champion.json"), "lies among the files of"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    for name in ("one", "two", "set/runs/two"):
        ring(tmp_path / name)
    (tmp_path / "set/models").mkdir()
    RunFolder(tmp_path / "empty").write_result()
    (tmp_path / "root").mkdir()
    before = sorted(tmp_path.rglob("*"))
    failed(ringslice_here("report", *words, cwd=tmp_path), 2, line)
    assert sorted(tmp_path.rglob("*")) == before
