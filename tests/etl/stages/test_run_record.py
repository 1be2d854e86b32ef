"""What is kept of a run, without values that may be secret, and what people see of its result."""

import json
from pathlib import Path

import pytest

from etl.stages.run import masked
from etl.stages.summary import Summary
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from tests.conftest import TreeMaker
from tests.lib.commands import succeeded
from tests.lib.in_process import job_here
from tests.lib.inline import ingest_here

SECRET = "hunter2=&x -y"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-D", f"fs.s3a.secret.key={SECRET}"], ["-D", "fs.s3a.secret.key=***"]),
        ([f"-vDfs.key={SECRET}"], ["-vDfs.key=***"]),
        (["--jobconf", f"fs.key={SECRET}"], ["--jobconf", "fs.key=***"]),
        (["--cmdenv", f"TOKEN={SECRET}"], ["--cmdenv", "TOKEN=***"]),
        (["-D", "a=", "-D", f"b={SECRET}"], ["-D", "a=***", "-D", "b=***"]),
        (["-D", "-D"], ["-D", "-D"]),
        (["--hadoop-args", "-fs x -D a=hunter2 -Db=hunter2"], ["--hadoop-args", "-fs x -D a=***"]),
        (["--hadoop-arg", "-D", "--hadoop-arg", "a=hunter2"], ["--hadoop-arg", "-D", "--hadoop-arg", "a=***"]),
    ],
)
def test_values_are_masked_and_names_are_kept(words: list[str], shown: list[str]) -> None:
    around = ["job.py", "-r", "hadoop", "--size=224", "--job-file=x", "data/D=1", "-"]
    assert masked([*around, *words]) == [*around, *shown]
    assert "hunter2" not in " ".join(masked(words))


def test_no_file_of_a_dataset_has_a_value(make_tree: TreeMaker, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ingest_here(make_tree({"a": 4, "b": 4}), root)
    secrets = ("-D", "fs.key=hunter2", "-Dfs.other=hunter2", "--cmdenv", "TOKEN=hunter2", "--cmdenv=MORE=hunter2")
    for job, words in ((Normalize, ("--size", "8", "--format", "png")), (Shard, ("--workers", "1"))):
        finished = succeeded(job_here(job, root, "-r", "inline", *words, *secrets, "--debug"))
        assert "hunter2" not in finished.stdout + finished.stderr
    command = json.loads((root / "normalized/run.json").read_bytes())["command"]
    assert command[-7:-1] == ["-D", "fs.key=***", "-Dfs.other=***", "--cmdenv", "TOKEN=***", "--cmdenv=MORE=***"]
    for path in root.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("text", "shown"),
    [("[/x]", "[/x]"), ("[red]apple", "[red]apple"), (":smile:", ":smile:"), ("a\n\x1b[2Jb", r"a\n\x1b[2Jb")],
)
@pytest.mark.parametrize("brief", [(), ("classes",)])
def test_texts_are_no_markup(text: str, shown: str, brief: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    tables = [(text, [text], [[text, {text: 1}]])] if text.isprintable() else []
    Summary("ingest", f"d/{text}", False, {"classes": {text: 6}}, tables, brief).show(as_json=False)
    output = capsys.readouterr().out
    assert output.count(shown) == 2 + 4 * (bool(tables) and not brief)
