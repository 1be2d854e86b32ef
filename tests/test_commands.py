"""The commands as a user meets them: exit statuses, one clear line, nothing half-written; and how they begin."""

import errno
import json
import os
import re
import shutil
import signal
from pathlib import Path

import click
import pytest

from mapreduce.cli import cli
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from mapreduce.verify import Verify
from tests.conftest import TreeMaker
from tests.lib.commands import REPOSITORY, contents, failed, ringslice, run, succeeded
from tests.lib.in_process import call_command, job_here, ringslice_here


@pytest.mark.parametrize("command", ["", *cli.commands])
def test_help_has_an_example(command: str) -> None:
    shown = succeeded(ringslice_here(*command.split(), "--help")).stdout
    assert f"Example: ringslice {command}" in shown
    assert "Usage:" in shown


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("ingest", "/no/such/folder", "ROOT"), 2, "/no/such/folder: no such folder"),
        (("ingest", "EMPTY", "ROOT"), 2, "no images in"),
        (("ingest", "/no/\udcff", "ROOT"), 2, r"the place is not UTF-8: b'/no/\xff'. Rename"),
        (("ingest",), 2, "Missing argument 'SOURCE'"),
        (("ingest", "SOURCE", "SOURCE/a/000.png"), 2, "a/000.png is a file. Give a folder"),
        (("ingest", "SOURCE", "FILE/x"), 2, "file/x lies below the file"),
        (("ingest", "SOURCE", "ROOT", "--pack-size", "huge"), 2, "invalid size 'huge'"),
        (("normalize", "ROOT"), 2, "has no finished ingest"),
        (("normalize", "ROOT", "--fit", "round"), 2, "'round' is not one of"),
        (("normalize", "ROOT", "--colour", "gray"), 2, "No such option"),
        (("shard", "ROOT"), 2, "has no finished normalize"),
        (("shard", "ROOT", "--split", "train=0.5"), 2, "not parts of 1"),
        (("shard", "ROOT", "--workers", "0"), 2, "0 is not in the range"),
        (("verify", "ROOT"), 2, "has no finished shard"),
        (("verify", "ROOT", "--name", "../x"), 2, "not a plain folder name"),
        (("verify", "ROOT", "--name", "a\nb"), 2, "not a plain folder name"),
        (("verify", "ROOT", "--name", "ä" * 101), 2, "not a plain folder name of up to 200 bytes"),
        (("shard", "ROOT", "--name", "newest"), 2, "--name newest is what --splits-from calls the newest slices;"),
        (("shard", "ROOT", "--remove", ""), 2, "'--remove': it is empty; give a value, or leave the option out"),
        (("erase", "ROOT"), 2, "give --keys FILE"),
        (("erase", "ROOT", "--keys", "/no/such/file"), 2, "is not the root of a dataset"),
        (("prune", "ROOT", "--keep", "1", "--run-prefix", "x"), 2, "--run-prefix 'x' is for --keep-runs N"),
        (("inspect", "ROOT/x", "--index", "1", "--force"), 2, "--force is for --save FILE"),
        (("doctor", "ROOT", "--only", "tasks"), 2, "give it by --python-bin PATH"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_wrong_use_gets_one_line_and_leaves_nothing(
    words: tuple[str, ...], status: int, line: str, make_tree: TreeMaker, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    make_tree({"a": 2})
    (tmp_path / "file").touch()
    placed = (
        re.sub(r"^(SOURCE|ROOT|EMPTY|FILE)", lambda found: str(tmp_path / found[0].lower()), word) for word in words
    )
    failed(ringslice_here(*placed), status, line)
    assert not (tmp_path / "root").exists()


def test_a_script_has_the_options_of_its_command() -> None:
    shown = succeeded(job_here(Shard, "--help")).stdout
    assert "ROOT" in shown and "--overwrite" in shown
    failed(job_here(Normalize), 2, "give exactly one ROOT")
    failed(job_here(Normalize, "-r", "emr", "a"), 2, "runners are inline, local, hadoop")
    failed(job_here(Verify, "a", "--overwrite"), 2, "--overwrite")


@pytest.mark.integration
@pytest.mark.parametrize("command", ["ringslice read-bench", "mapreduce/verify.py"])
def test_a_process_ends_with_one_line_and_its_status(command: str, tmp_path: Path) -> None:
    """What the tests in this process cannot see: the exit, and that nothing else is on standard error."""
    finished = run(*command.split(), tmp_path / "root")
    failed(finished, 2, "has no finished shard")
    assert (finished.stderr.count("\n"), finished.stdout) == (1, "")
    assert not (tmp_path / "root").exists()


@pytest.mark.integration
def test_what_surrounds_a_command_does_not_matter(make_tree: TreeMaker, tmp_path: Path) -> None:
    """Files of the current folder, mrjob's configuration, closed streams, warnings as errors; an ASCII locale; and a
    Python for Hadoop.
    """
    for name in ("copy", "json", "queue", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is not for Python')")
    (tmp_path / ".mrjob.conf").write_text("runners: {local: {no_such_option: 1}}")
    source = make_tree({"\xe9": 4, "b": 4})
    words = f"ringslice pipeline {source} root --size 8 --workers 1 --split train=1 --python-bin false <&- >&- 2>&-"
    variables = {"HOME": str(tmp_path), "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "ascii"}
    assert run("bash", "-c", words, cwd=tmp_path, variables=variables).returncode == 0
    ascii_names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    failed(ringslice("verify", tmp_path / "root", **ascii_names), 3, "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1")
    wrapper = tmp_path / "wrapper"  # without standard error, bash opens it as that
    wrapper.write_text('#!/bin/bash\nexec ringslice "$@"\n')
    wrapper.chmod(0o755)
    assert run("bash", "-c", "./wrapper verify root 2>&-", cwd=tmp_path).returncode == 0
    failed(ringslice("verify", "--name", "\udcff"), 2, r"an argument is not UTF-8: b'\xff'")
    assert (tmp_path / "root/verified/default/verification.json").exists()


def test_a_config_file_gives_defaults_and_flags_win(make_tree: TreeMaker, tmp_path: Path) -> None:
    config, root = tmp_path / "nightly.toml", tmp_path / "root"
    config.write_text('[normalize]\nsize = "8x6"\nrunner = "inline"\n[shard]\nworkers = 3\nrunner = "inline"\n')
    words = ("pipeline", make_tree({"a": 20}), root, "--config", config, "--workers", 2, "--json")
    stages = json.loads(succeeded(ringslice_here(*words)).stdout)
    assert [stage["stage"] for stage in stages] == ["ingest", "normalize", "shard", "verify"]
    assert json.loads((root / "normalized/dataset.json").read_text())["config"]["size"] == [8, 6]
    assert stages[2]["slices"]["train"] == 2


@pytest.mark.parametrize(
    ("command", "content", "line"),
    [
        ("shard", b"[shard]\nwrokers = 3\n", "[shard] has no option 'wrokers' of shard; known: "),
        ("shard", b"[normalise]\nquality = 5\n", "no command reads 'normalise'; give tables of ingest, normalize, "),
        ("shard", b"normalize = 3\n", "normalize = 3 is not a table; put options below a line [normalize]"),
        ("shard", b"[shard]\nname = ['a']\n", "[shard] name = ['a'] is not one value; give it as a text"),
        ("pipeline", b"[ingest.x]\ny = 1\n", "[ingest] x = {'y': 1} is not one value"),
        ("pipeline", b"\xff\xfe", "is not text; give a TOML file"),
        ("pipeline", b"[ingest]\noverwrite = true\n", "overwrite of [ingest] would go to normalize and shard, too;"),
        ("pipeline", b"[normalize]\nrunner = 'inline'\n[shard]\nrunner = 'local'\n", "would go to shard, too; for pip"),
        ("shard", b"[shard\n", "is not TOML: "),
    ],
)
def test_a_wrong_config_file_is_refused(command: str, content: bytes, line: str, tmp_path: Path) -> None:
    config = tmp_path / "nightly.toml"
    config.write_bytes(content)
    words = ("photos", "ROOT") if command == "pipeline" else ("ROOT",)
    failed(ringslice_here(command, *words, "--config", config, cwd=tmp_path), 2, line)


def test_the_summaries_before_a_stage_that_fails_are_shown(make_tree: TreeMaker, tmp_path: Path) -> None:
    words = ("pipeline", make_tree({"a": 2}), tmp_path / "root", "-r", "inline", "--size", 8, "--json")
    finished = ringslice_here(*words, "--workers", 3)
    failed(finished, 2, "3 slices for 2 training examples")
    assert [each["stage"] for each in json.loads(finished.stdout)] == ["ingest", "normalize"]


def test_an_output_that_nobody_reads_is_a_failure_of_the_environment() -> None:
    """A status 1 would be of the data."""

    @click.command()
    def show() -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    failed(call_command(show, "show"), 3, "Broken pipe (what read the output, or the server, has ended)")


def test_the_place_comes_from_the_environment(make_tree: TreeMaker, tmp_path: Path) -> None:
    succeeded(ringslice_here("ingest", make_tree({"a": 2}), RINGSLICE_DATA=str(tmp_path / "there")))
    assert (tmp_path / "there/raw/dataset.json").exists()


@pytest.mark.integration
def test_a_terminal_gets_a_bar(make_tree: TreeMaker, tmp_path: Path) -> None:
    command = f"ringslice ingest {make_tree({'a': 300})} {tmp_path / 'root'} --pack-size 1KB"
    shown = succeeded(run("script", "-qec", command, "/dev/null", TERM="xterm")).stdout
    assert "━" in shown
    assert "images to do" not in shown


FULL_FOLDER_OF_TEMPORARY_FILES = """
mount -t tmpfs -o size=64k none "$1" || exit 99
TMPDIR="$1" ringslice shard "$2" --workers 2
"""


@pytest.mark.integration
def test_folders_of_temporary_files(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A full one is named, and names may have what is a pattern elsewhere. That of the root begins with a dash."""
    source, folder, root = make_tree({"a": 400}), tmp_path / "[of] ?", tmp_path / "-q8"
    folder.mkdir()
    words = ("--size", 8, "--workers", 1, "--", "-q8")
    succeeded(run("ringslice", "pipeline", source, *words, cwd=tmp_path, TMPDIR=str(folder)))
    shutil.rmtree(root / "slices")
    finished = run("unshare", "-rm", "sh", "-c", FULL_FOLDER_OF_TEMPORARY_FILES, "sh", folder, root)
    failed(finished, 3, f"no space left in {folder}, the folder of temporary files; free some, or set TMPDIR to")


FULL_DISK = """
mount -t tmpfs -o size=200k none "$1" || exit 99
ringslice ingest "$2" "$1/root"; status=$?
find "$1/root" -type f | grep -v _work/plan.json
exit $status
"""


@pytest.mark.integration
def test_a_full_disk_ends_with_one_line_and_status_3(digits: Path, tmp_path: Path) -> None:
    finished = run("unshare", "-rm", "sh", "-c", FULL_DISK, "sh", tmp_path, digits)
    failed(finished, 3, f"No space left on device: {tmp_path}/root/raw/packs/pack-00000.tar (free some space")
    assert finished.stdout == ""  # no file but the plan


def test_stages_of_one_root_are_chained(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A root whose raw images were replaced: what was made of the old ones is not taken for current."""
    source, root = make_tree({"a": 20}), tmp_path / "root"
    words = ("-r", "inline", "--size", 8)
    succeeded(ringslice_here("pipeline", source, root, *words, "--workers", 1))
    (source / "a" / "000.png").write_bytes((source / "a" / "001.png").read_bytes())
    succeeded(ringslice_here("ingest", source, root, "--overwrite"))
    before = contents(root)
    failed(ringslice_here("normalize", root, *words), 2, "was made from other packs")
    assert contents(root) == before


RINGSLICE = ("python", "-P", "-m", "ringslice_entry")


@pytest.mark.integration
@pytest.mark.parametrize("words", [RINGSLICE, ("python", "train/main.py")], ids=["ringslice", "train/main.py"])
def test_a_package_of_another_project_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "etl").mkdir()
    (tmp_path / "etl/__init__.py").touch()
    finished = run(*words, "--help", variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    failed(finished, 3, f"{tmp_path}/etl comes before {REPOSITORY}/etl")


@pytest.mark.integration
def test_an_interrupt_during_the_first_imports_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    finished = run(*RINGSLICE, "--help", variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    assert (finished.returncode, finished.stdout, finished.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.integration
def test_an_interrupt_during_the_imports_of_a_program_in_our_place_is_one_line(tmp_path: Path) -> None:
    """Both signals, as a terminal sends the one and a scheduler the other."""
    interrupt = "for number in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), number)"
    end = "from etl.entry_point import run_reporting\nsys.exit(run_reporting(lambda: 0))"
    (tmp_path / "stage.py").write_text(f"import os, signal, sys\n{interrupt}\n{end}\n")
    start = "from etl.processes import exec_module; exec_module('stage', [])"
    finished = run("python", "-c", start, variables={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"})
    failed(finished, 130, "interrupted")
    assert finished.stderr.count("\n") == 1
